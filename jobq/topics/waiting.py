"""Sleeping until something is appended: XREAD on a connection of its own, from the index seen last.

What it reads is thrown away: the poll that follows decides who gets it. So a wake-up that is lost, or one too
many, costs time and nothing else.
"""

from __future__ import annotations

import select
import socket
import threading
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from jobq.errors import UnavailableError

if TYPE_CHECKING:
    from redis.connection import Connection

    from jobq.client.connection import Client

#: The end of every index: the second half of an entry's id is its time.
_ANY_TIME = 2**64 - 1
#: After the server's own limit: a connection that died without a word answers never.
GRACE_S = 2.0


class LogWaiter:
    """Waits for the log of one topic. One thread waits; any may end it."""

    def __init__(self, client: Client, log_key: str) -> None:
        self._client = client
        self._key = log_key
        self._connection: Connection | None = None
        self._ended = threading.Event()

    def wait(self, after: int, seconds: float) -> None:
        """Return when the log has a message after that index, after so many seconds, or for no reason."""
        if self._ended.is_set() or seconds <= 0:
            return
        try:
            if self._connection is None:
                self._connection = self._client.open_connection(self._key)
            self._connection.send_command(
                "XREAD", "COUNT", 1, "BLOCK", max(1, round(seconds * 1000)), "STREAMS", self._key,
                f"{after}-{_ANY_TIME}",
            )  # fmt: skip
            file = self._client.fileno(self._connection)
            if not select.select([file], [], [], seconds + GRACE_S)[0]:
                self._drop()
            else:
                self._connection.read_response()
        except UnavailableError:
            self._drop()
            if not self._ended.is_set():
                raise
        except (RedisError, OSError, ValueError):
            self._drop()
            self._ended.wait(min(0.1, seconds))

    def end(self) -> None:
        """End the wait now, from any thread, and every later one."""
        self._ended.set()
        connection = self._connection
        sock = connection._sock if connection else None
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    @property
    def ended(self) -> bool:
        """Whether waits are over at once."""
        return self._ended.is_set()

    def go_on(self) -> None:
        """Wait again from now on."""
        self._ended.clear()

    def close(self) -> None:
        """Close the connection; the next wait opens another."""
        self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            connection.disconnect()
