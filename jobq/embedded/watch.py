"""`python -m jobq.embedded.watch DATA SOCKET IDLE_S`: ends an embedded server that nobody uses.

Returns at once; the watching goes on in a process without parent or terminal, until the server is gone.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

from jobq.embedded.place import Place, opened
from jobq.embedded.process import client_of, folder_of, locked, same, shut_down
from jobq.embedded.server import running
from jobq.errors import EmbeddedError

LOOK_EVERY_S = 15.0


class Use(NamedTuple):
    """One look at the server, by a connection of its own: clients there now, and connections ever made."""

    now: int
    ever: int

    def since(self, before: Use) -> bool:
        """Whether somebody is there, or came and went between the looks."""
        return self.now > 1 or self.ever != before.ever + 1


BUSY = Use(2, 0)


def main(data: str, socket: str, idle_s: str) -> None:
    """Watch, unless somebody does."""
    where, limit_s = Place(Path(data), Path(socket)), float(idle_s)
    mine = opened(where.watch_lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if os.fork():
        os._exit(0)
    os.setsid()
    watch(where, mine, limit_s)


def watch(where: Place, mine: int, limit_s: float) -> None:
    """Look now and then; return when the server has gone, by itself or at this watcher's request."""
    last, used_at = BUSY, time.monotonic()
    while os.fstat(mine).st_nlink:
        use = _look(where)
        if use is None:
            socket = _gone(where, mine)
            if socket is None:
                return
            where, use = where._replace(socket=socket), BUSY
        if use.since(last):
            used_at = time.monotonic()
        elif time.monotonic() - used_at >= limit_s and _ended(where, mine, use):
            return
        last = use
        time.sleep(min(LOOK_EVERY_S, max(0.05, limit_s / 4)))
    if folder_of(where.socket) == "":
        # Its data folder was removed: what it is told from now on, nobody would find again.
        shut_down(where.socket, where.server_lock)


def _look(where: Place) -> Use | None:
    """None: no server, or not one on these data."""
    from redis.exceptions import RedisError, TimeoutError

    try:
        with client_of(where.socket) as client:
            folder = client.config_get("dir")["dir"]
            clients, stats = client.info("clients"), client.info("stats")
    except TimeoutError:
        return BUSY
    except RedisError:
        return None
    use = Use(int(clients["connected_clients"]), int(stats["total_connections_received"]))
    return use if same(folder, where.data) else None


def _gone(where: Place, mine: int) -> Path | None:
    """The socket of a server that was started in its place meanwhile. None: let go of the watch."""
    try:
        with locked(where.lock):
            socket = running(where)
            if socket is None:
                # Still under the lock: whoever starts the next must find no watcher that is leaving.
                os.close(mine)
            return socket
    except EmbeddedError:
        return where.socket


def _ended(where: Place, mine: int, last: Use) -> bool:
    """Under the lock that starters take: nobody joins a server that is about to leave."""
    try:
        with locked(where.lock):
            use = _look(where)
            if use is None or use.since(last):
                return False
            shut_down(where.socket, where.server_lock)
            os.close(mine)
    except EmbeddedError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
