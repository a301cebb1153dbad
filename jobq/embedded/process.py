"""Starts the embedded server, finds it, and stops it.

A running server holds a lock on a file in its data folder. A pid doesn't show whether the server is running, because
the system reuses pids. Nor does the socket, which disappears if the temporary folder is cleaned.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, ConnectionError, RedisError, TimeoutError
from redis.retry import Retry

from jobq.embedded.files import ServerFiles, noted, opened, write
from jobq.embedded.program import usable
from jobq.errors import EmbeddedError

START_S = 60.0
#: Logged by a server when the end of its file is incomplete, after a power cut.
TORN = "Truncating the AOF"
#: Logged by a server whose file was written by a newer server, or by the other kind of server.
FOREIGN = "RDB format version"
OTHER_SERVER = "{} can't read the files of another server here; set JOBQ_SERVER to that server"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file inside the `with` block."""
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
        # Closing would not release the lock if a child that another thread has forked also has the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def held(path: Path) -> bool:
    """Return whether a running process holds the lock on this file."""
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
    """Return a client for the server at `socket`. The client doesn't retry."""
    # The server's replies contain file paths, which can be invalid UTF-8.
    return Redis(
        unix_socket_path=str(socket), socket_timeout=5, retry=Retry(NoBackoff(), 0), protocol=2,
        decode_responses=True, encoding_errors="surrogateescape",
    )  # fmt: skip


def folder_of(socket: Path) -> str | None:
    """Return the data folder of the server at `socket`.

    Return '' if the folder was removed, None if no server answers.
    """
    deadline = time.monotonic() + START_S
    while True:
        try:
            with client_of(socket) as client:
                client.ping()
                return str(client.config_get("dir")["dir"])
        except (BusyLoadingError, TimeoutError) as error:
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"the embedded server at {socket} didn't answer within {START_S:g} s: {error}; try again, or end "
                    "its process"
                ) from error
            time.sleep(0.05)
        except (ConnectionError, OSError):
            return None


def answers(socket: Path, data: Path) -> bool:
    """Return whether the server at `socket` uses this data folder.

    This check is necessary because a copied data folder contains the socket path of another server.
    """
    return same(folder_of(socket), data)


def same(folder: str | None, data: Path) -> bool:
    """Return whether `folder`, which a server reports, is the folder `data`, even if the two paths differ."""
    try:
        return bool(folder) and os.path.samefile(str(folder), data)
    except OSError:
        return False


def launch(files: ServerFiles) -> None:
    """Start the server and wait until it answers.

    The caller must hold `files.lock`, and the data folder must not be in use.
    """
    began = files.log.stat().st_size if files.log.exists() else 0
    program = _program(files)
    ran = _spawned(files, program)
    if ran.returncode:
        raise EmbeddedError(f"the embedded server can't start: {(ran.stdout + ran.stderr)[-500:]}")
    deadline = time.monotonic() + START_S
    while not answers(files.socket, files.data):
        if not held(files.server_lock) or time.monotonic() > deadline:
            said = _said(files.log, began)[-500:]
            remedy = f"; {OTHER_SERVER.format(program)}" if FOREIGN in said else ""
            fault = (
                f"didn't answer within {START_S:g} s of its start"
                if held(files.server_lock)
                else "exited at its start"
            )
            raise EmbeddedError(
                f"the embedded server {fault}; {files.log} ends with: {said}{remedy}"
            )
        time.sleep(0.01)
    if TORN in _said(files.log, began):
        # Otherwise the first half of a transaction may stay in the file, and be applied at the next start.
        with client_of(files.socket) as client:
            client.bgrewriteaof()
    write(files.known_socket, os.fsencode(files.socket))
    write(files.known_program, os.fsencode(program))


def _program(files: ServerFiles) -> str:
    """Return the server program that last used the data folder, or the best program if that program isn't usable.

    Other programs may be too old to read the data. Any user may have written the stored path, so only the path of a
    usable program is accepted.
    """
    paths = [program.path for program in usable()]
    last = noted(files.known_program)
    return last if last in paths else paths[0]


def _spawned(files: ServerFiles, program: str) -> subprocess.CompletedProcess[str]:
    lock = opened(files.server_lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The server inherits the descriptor, and with it the lock.
        return subprocess.run(
            [
                program, "--daemonize", "yes", "--port", "0", "--unixsocket", str(files.socket),
                "--unixsocketperm", "700", "--dir", str(files.data), "--logfile", str(files.log),
                "--appendonly", "yes", "--appendfsync", "everysec", "--save", "",
                "--maxmemory-policy", "noeviction", "--hash-max-listpack-entries", "8",
                "--pidfile", str(files.pid_file),
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
    """Stop the server at `socket`, and wait until it has released its lock.

    Afterwards, its pid may still be listed, even permanently if process 1 of a container doesn't reap its children.
    """
    try:
        with client_of(socket) as client:
            client.shutdown()
    except (ConnectionError, TimeoutError):
        pass  # it has ended by itself, or is still writing
    except RedisError as error:
        raise EmbeddedError(
            f"the embedded server at {socket} can't be stopped: {error}; see server.log next to {lock}"
        ) from error
    deadline = time.monotonic() + START_S
    while held(lock):
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"the embedded server at {socket} didn't stop within {START_S:g} s; kill its process"
            )
        time.sleep(0.01)
