"""Warns about connections that modules open on import, because all forked children would share these connections."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress

from jobq.worker import logger

_FILES = "/proc/self/fd"
_SQLITE = b"SQLite format 3\0"


class OpenConnections:
    """The connections that were open before the worker imported the modules with jobs. Without /proc, this is empty."""

    def __init__(self) -> None:
        self._before = set(_connections())

    def warn_of_new(self) -> None:
        """Log a warning about connections that were opened after this object was created."""
        new = sorted(what for _, what in set(_connections()) - self._before)
        if new:
            logger.warning(
                "connections opened while the modules were loaded are shared by all children: %s; two processes that "
                "use the same connection read each other's replies. Close it at the end of the module (SQLAlchemy: "
                "engine.dispose(), Django: connections.close_all()), or open it at first use", ", ".join(new),
            )  # fmt: skip


def _connections() -> Iterator[tuple[int, str]]:
    try:
        files = [int(name) for name in os.listdir(_FILES)]
    except OSError:
        return
    for file in files:
        with suppress(OSError):
            facts = os.fstat(file)
            if stat.S_ISSOCK(facts.st_mode):
                what = _peer(file)
            elif stat.S_ISREG(facts.st_mode) and os.pread(file, len(_SQLITE), 0) == _SQLITE:
                what = f"SQLite database {os.readlink(f'{_FILES}/{file}')}"
            else:
                continue
            if what:
                yield facts.st_ino, what


def _peer(file: int) -> str:
    """Describe a connection, such as `connection to 10.0.0.7:5432`; return '' if child processes may share it."""
    with socket.socket(fileno=os.dup(file)) as connection:
        if connection.type != socket.SOCK_STREAM:
            return ""
        peer = connection.getpeername()
    if isinstance(peer, bytes):
        peer = peer.decode(errors="replace")
    if isinstance(peer, tuple):
        host = f"[{peer[0]}]" if ":" in peer[0] else peer[0]
        return f"connection to {host}:{peer[1]}"
    return f"connection to {peer}" if peer else ""
