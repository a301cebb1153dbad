"""Serve the dashboard with limits on connections and on the time to send a request or read a reply.

Each client uses a file descriptor of this process. A connection whose client sends nothing, or sends or reads slowly,
is closed after `PATIENCE_S`, or earlier if another client needs the slot. The connections that have waited longest are
closed first.
"""

from __future__ import annotations

import logging
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from jobq.worker.cautions import OnceAMinute

logger = logging.getLogger("jobq.web")
#: How long a client may take to connect and send its headers, to send its body, and to read 48 KiB of a reply.
PATIENCE_S = 30.0
#: Maximum number of connections; fewer if the process may open only few files.
MAX_CONNECTIONS = 1_000
#: Connections that asyncio accepts before reading any, and connections waiting in the kernel.
ACCEPTED_AT_ONCE, BACKLOG = 16, 256
#: How long requests may take to end at shutdown.
GRACE_S = 3
_OUT_OF_FILES = "socket.accept() out of system resource"


class Connections:
    """Tracks a server's open connections, and closes connections whose clients are too slow. It isn't thread-safe."""

    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._now = now
        self._open: dict[int, socket.socket] = {}
        #: File -> start of waiting, longest first.
        self._waiting: dict[int, float] = {}
        self._closed: Counter[str] = Counter()
        self._due = OnceAMinute()

    def add(self, connection: socket.socket) -> None:
        """Add a connection. If there are too many, close the connections that have waited longest for their clients."""
        file = connection.fileno()
        self._open[file] = connection
        self.mark(file, waits=True)
        if len(self._open) > self.most:
            self._open = {file: sock for file, sock in self._open.items() if sock.fileno() == file}
        while len(self._open) > self.most and self._waiting:
            self._close(next(iter(self._waiting)), "to make room")

    def mark(self, file: int, *, waits: bool) -> None:
        """Record whether a connection waits for its client or for the server."""
        self._waiting.pop(file, None)
        if waits and file in self._open:
            self._waiting[file] = self._now()

    def sweep(self) -> None:
        """Close connections whose clients are too slow, and log the number of closed connections once a minute."""
        until = self._now() - PATIENCE_S
        while self._waiting:
            file, since = next(iter(self._waiting.items()))
            if since > until:
                break
            self._close(file, "too slow")
        if self._closed and self._due.is_due("closed"):
            logger.warning(
                "closed connections of the dashboard: %d were too slow (over %g s), %d to make room (limit %d)",
                self._closed["too slow"], PATIENCE_S, self._closed["to make room"], self.most,
            )  # fmt: skip
            self._closed.clear()

    def _close(self, file: int, why: str) -> None:
        del self._waiting[file]
        connection = self._open.pop(file, None)
        if connection is None or connection.fileno() != file:
            return  # it closed by itself
        self._closed[why] += 1
        try:
            # asyncio owns the socket, and closes it when it sees the end.
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the client is gone already


class ListeningSocket(socket.socket):
    """A socket that adds each connection to `connections` before its TLS handshake."""

    connections: Connections

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection."""
        connection, address = super().accept()
        self.connections.add(connection)
        return connection, address


class BoundedProtocol(H11Protocol):
    """The HTTP protocol of one connection. It records when the connection waits for its client."""

    def __init__(self, connections: Connections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._connections = connections
        self._blocked = False
        self._phase: object = ("headers", None)

    def data_received(self, data: bytes) -> None:
        """Process bytes from the client."""
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        """Record that the connection is now waiting for the next request."""
        super().on_response_complete()
        self._note()

    def pause_writing(self) -> None:
        """Record that the client reads its reply too slowly."""
        super().pause_writing()
        self._blocked = True
        self._note()

    def resume_writing(self) -> None:
        """Record that the client has resumed reading its reply."""
        super().resume_writing()
        self._blocked = False
        self._note()

    def _note(self) -> None:
        cycle = self.cycle
        phase: object = None
        if self._blocked:
            phase = "reply"
        elif cycle is None or cycle.response_complete:
            phase = ("headers", cycle)
        elif cycle.more_body:
            phase = ("body", cycle)
        if phase != self._phase:
            self._phase = phase
            file = self.transport.get_extra_info("socket").fileno()
            self._connections.mark(file, waits=phase is not None)


class BoundedServer(uvicorn.Server):
    """Serves an application at one socket that is already listening."""

    def __init__(
        self, app: Any, listening: socket.socket, connections: Connections | None = None, **options: Any
    ) -> None:  # fmt: skip
        self.connections = connections or Connections(most_connections())
        self._listening = ListeningSocket(fileno=listening.detach())
        self._listening.connections = self.connections
        protocol: Any = partial(BoundedProtocol, self.connections)
        super().__init__(
            uvicorn.Config(
                app, http=protocol, ws="none", loop="asyncio", backlog=ACCEPTED_AT_ONCE, lifespan="off",
                log_config=None, access_log=False, proxy_headers=False, server_header=False,
                timeout_graceful_shutdown=GRACE_S, **options,
            )
        )  # fmt: skip

    def serve_until_signal(self) -> None:
        """Serve until TERM or INT."""
        for name in ("uvicorn.error", "asyncio"):
            logging.getLogger(name).addFilter(once_a_minute())
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self.run(sockets=[self._listening])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        self._listening.listen(BACKLOG)

    async def on_tick(self, counter: int) -> bool:
        """Close slow connections once a second. uvicorn calls this method ten times a second."""
        if counter % 10 == 0:
            self.connections.sweep()
        return await super().on_tick(counter)


def most_connections() -> int:
    """Return the maximum number of connections: about half of the open-file limit. The rest is for Redis and files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files < 0 else min(MAX_CONNECTIONS, max(8, files // 2))


def once_a_minute() -> Callable[[logging.LogRecord], bool]:
    """Return a filter that limits log lines which clients can cause.

    The filter passes each such line once a minute, with the number of omitted lines.
    """
    due, left_out = OnceAMinute(), Counter[str]()

    def passes(record: logging.LogRecord) -> bool:
        text = str(record.msg).partition("\n")[0]
        if record.levelno > logging.WARNING and text != _OUT_OF_FILES:
            return True
        if not due.is_due(text):
            left_out[text] += 1
            return False
        if number := left_out.pop(text, 0):
            record.msg = f"{record.msg} (and {number:,} more since the last such line)"
        return True

    return passes
