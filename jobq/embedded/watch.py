"""`python -m jobq.embedded.watch DATA SOCKET IDLE_S`: stop an embedded server that no client uses.

The command returns immediately. It continues in a background process, until the server has stopped.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

from redis.exceptions import RedisError, TimeoutError

from jobq.embedded.files import ServerFiles, opened
from jobq.embedded.process import client_of, folder_of, held, locked, same, shut_down
from jobq.embedded.server import running
from jobq.errors import EmbeddedError

POLL_EVERY_S = 15.0


class Use(NamedTuple):
    """Numbers of connections: current connections, and all connections since the server's start.

    Both numbers include the connection that reads them.
    """

    now: int
    ever: int

    def since(self, before: Use) -> bool:
        """Return whether any client is connected now, or was connected since `before` was measured."""
        return self.now > 1 or self.ever != before.ever + 1


BUSY = Use(2, 0)


def main(data: str, socket: str, idle_s: str) -> None:
    """Watch the server in this process, unless another process already does."""
    files, limit_s = ServerFiles(Path(data), Path(socket)), float(idle_s)
    mine = opened(files.watch_lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if os.fork():
        os._exit(0)
    os.setsid()
    watch(files, mine, limit_s)


def watch(files: ServerFiles, mine: int, limit_s: float) -> None:
    """Check the server regularly; return when it has stopped. Stop it if no client used it for `limit_s` seconds."""
    last, used_at = BUSY, time.monotonic()
    while True:
        if not os.fstat(mine).st_nlink:
            if _over(files):
                return
            last = last._replace(ever=last.ever + 1)  # _over opened a connection
        use = _poll(files)
        if use is None:
            socket = _gone(files, mine)
            if socket is None:
                return
            files, use = files._replace(socket=socket), BUSY
        if use.since(last):
            used_at = time.monotonic()
        elif time.monotonic() - used_at >= limit_s and _ended(files, mine, use):
            return
        last = use
        time.sleep(min(POLL_EVERY_S, max(0.05, limit_s / 4)))


def _over(files: ServerFiles) -> bool:
    """Return whether the watcher must exit, because its lock file or the server's data folder was removed."""
    folder = folder_of(files.socket)
    if folder == "":
        # The server's data folder was removed, so later writes would be lost.
        shut_down(files.socket, files.server_lock)
    return not folder or held(files.watch_lock)


def _poll(files: ServerFiles) -> Use | None:
    try:
        with client_of(files.socket) as client:
            folder = client.config_get("dir")["dir"]
            clients, stats = client.info("clients"), client.info("stats")
    except TimeoutError:
        return BUSY
    except RedisError:
        return None
    use = Use(int(clients["connected_clients"]), int(stats["total_connections_received"]))
    return use if same(folder, files.data) else None


def _gone(files: ServerFiles, mine: int) -> Path | None:
    """Return the server's socket if the server was restarted. Otherwise, stop watching and return None."""
    try:
        with locked(files.lock):
            socket = running(files)
            if socket is None:
                # Close it under the lock, so that a process starting the next server never meets an ending watcher.
                os.close(mine)
            return socket
    except EmbeddedError:
        return files.socket


def _ended(files: ServerFiles, mine: int, last: Use) -> bool:
    """Stop the server if it is idle; return whether it was stopped.

    During this call, a lock keeps other processes from starting to use the server.
    """
    try:
        with locked(files.lock):
            use = _poll(files)
            if use is None or use.since(last):
                return False
            shut_down(files.socket, files.server_lock)
            os.close(mine)
    except EmbeddedError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
