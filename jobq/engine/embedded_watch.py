"""`python -m jobq.engine.embedded_watch DATA SOCKET IDLE_S`: ends an embedded server that nobody uses.

Returns at once; the watching goes on in a process without parent or terminal, until the server is gone.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

from jobq.engine.embedded import _client, _locked, shut_down
from jobq.engine.embedded_place import Place

LOOK_EVERY_S = 15.0


def main(data: str, socket: str, idle_s: str) -> None:
    """Watch, unless somebody does."""
    where, limit_s = Place(Path(data), Path(socket)), float(idle_s)
    held = os.open(where.watch_lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if os.fork():
        os._exit(0)
    os.setsid()
    watch(where, limit_s)


def watch(where: Place, limit_s: float) -> None:
    """Look now and then; return when the server has gone, by itself or at this watcher's request."""
    from redis.exceptions import RedisError

    used_at = time.monotonic()
    with _client(where.socket) as client:
        while True:
            try:
                if int(client.info("clients")["connected_clients"]) > 1:
                    used_at = time.monotonic()
                if time.monotonic() - used_at >= limit_s and _ended(where):
                    return
            except RedisError:
                return
            time.sleep(min(LOOK_EVERY_S, max(0.05, limit_s / 4)))


def _ended(where: Place) -> bool:
    """Under the lock that starters take: nobody joins a server that is about to leave."""
    with _locked(where.lock):
        with _client(where.socket) as client:
            if int(client.info("clients")["connected_clients"]) > 2:
                return False
        shut_down(where.socket)
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
