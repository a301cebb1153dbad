"""The embedded server: a Valkey server for one project. It is started if no URL is set and it isn't running yet.

Any number of processes share it. The server outlives the process that started it, and keeps its data in an append-only
file. It stops when no client has been connected for `embedded_idle_s`. It listens only on a Unix socket.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jobq.client.runtime import runtime
from jobq.config import ServerSettings, embedded_from_env
from jobq.embedded.files import (
    ServerFiles,
    check,
    data_folder,
    files_of,
    is_own_socket,
    noted,
    prepare,
)
from jobq.embedded.process import (
    answers,
    client_of,
    folder_of,
    held,
    launch,
    locked,
    shut_down,
)
from jobq.errors import EmbeddedError

logger = logging.getLogger("jobq.server")
#: How long to wait for an unresponsive server to answer or to stop.
SILENT_S = 10.0
#: pytest sets these variables for the tests and for all processes that they start.
_PYTEST = frozenset(("PYTEST_VERSION", "PYTEST_CURRENT_TEST"))


class EmbeddedStatus(NamedTuple):
    """The state of the embedded server. If the server isn't running, all numbers are 0."""

    running: bool
    data: str
    socket: str = ""
    pid: int = 0
    version: str = ""
    clients: int = 0
    memory: int = 0
    uptime_s: int = 0
    kind: str = ""


def start_or_join(settings: ServerSettings) -> str:
    """Return the URL of the embedded server, and start the server if it isn't running.

    Raises EmbeddedError if the server can't start.

    The first call in a process logs a warning, because the user may have forgotten JOBQ_URL. The call doesn't log a
    warning if the settings request the embedded server, or if `announced_by` replaced the warning.
    """
    asked = _allowed(settings)
    files = _where(settings)
    prepare(files)
    with locked(files.lock):
        socket = _settled(files)
        if socket is None:
            socket, word = _started(files), "started an"
        else:
            word = "joined the"
        _watch(files, socket, settings.embedded_idle_s)
    _announce(f"{word} embedded server at {socket}; data in {files.data}", asked)
    return f"unix://{socket}"


def announced_by(say: Callable[[str], object] | None) -> None:
    """Call `say` to announce the server, instead of logging a warning. If `say` is None, don't announce the server."""
    runtime.announce = say


def _announce(text: str, asked: bool) -> None:
    loud = not (asked or runtime.announce or runtime.warned_of_embedded)
    if loud:
        runtime.warned_of_embedded = True
        text += (
            ". JOBQ_URL isn't set: set JOBQ_URL to use another server, or JOBQ_EMBEDDED=1 to use this server without a "
            "warning, or 0 to forbid it"
        )
    logger.log(logging.WARNING if loud else logging.INFO, "%s", text)
    if runtime.announce:
        runtime.announce(text)


def _allowed(settings: ServerSettings) -> bool:
    """Return whether the settings request the embedded server.

    Raises EmbeddedError if the settings forbid it, or if tests use it without requesting it.
    """
    by_variable = embedded_from_env()
    if by_variable is False or settings.embedded is False:
        said = "JOBQ_EMBEDDED=0 forbids" if by_variable is False else "the settings forbid"
        raise EmbeddedError(
            f"no JOBQ_URL or REDIS_URL is set, and {said} the embedded server; set JOBQ_URL=redis://…"
        )
    asked = bool(settings.embedded or by_variable)
    if not asked and not _PYTEST.isdisjoint(os.environ):
        raise EmbeddedError(
            "no JOBQ_URL or REDIS_URL is set, and tests don't use the embedded server by default, because tests would "
            "write to the project's data. Set JOBQ_URL to a server for tests, or JOBQ_EMBEDDED=1 with JOBQ_DATA, "
            "a temporary folder"
        )
    return asked


def status(settings: ServerSettings) -> EmbeddedStatus:
    """Return the state of the embedded server, even if the server isn't running."""
    files = _where(settings)
    check(files)
    socket = running(files)
    if socket is None:
        return EmbeddedStatus(False, str(files.data))
    with client_of(socket) as client:
        info: dict[str, Any] = client.info()
    return EmbeddedStatus(
        True, str(files.data), str(socket), info["process_id"],
        str(info.get("valkey_version", info["redis_version"])), info["connected_clients"] - 1,
        info["used_memory"], info["uptime_in_seconds"], "Valkey" if "valkey_version" in info else "Redis",
    )  # fmt: skip


def stop(settings: ServerSettings) -> bool:
    """Stop the embedded server and wait for its exit; return whether it was running. The data aren't deleted."""
    files = _where(settings)
    check(files)
    if not files.data.is_dir():
        return False
    with locked(files.lock):
        socket = _settled(files)
        if socket is not None:
            shut_down(socket, files.server_lock)
    return socket is not None


def running(files: ServerFiles) -> Path | None:
    """Return the socket of the server that uses the data folder `files.data`; None if no server answers."""
    for socket in dict.fromkeys([Path(noted(files.known_socket) or files.socket), files.socket]):
        # Another user's server could claim to work on these data.
        if is_own_socket(socket) and answers(socket, files.data):
            return socket
    return None


def data_of(settings: ServerSettings) -> Path:
    """Return the embedded server's data folder, which may not exist."""
    return _where(settings).data


def _where(settings: ServerSettings) -> ServerFiles:
    return files_of(data_folder(settings.data_dir, Path.cwd()))


def _settled(files: ServerFiles) -> Path | None:
    """Return the running server's socket, or None if it is certain that no server is running.

    A second server would corrupt the append-only file.
    """
    deadline = time.monotonic() + SILENT_S
    while (socket := running(files)) is None and held(files.server_lock):
        if time.monotonic() > deadline:
            pid = files.pid_file.read_text().strip() if files.pid_file.is_file() else "unknown"
            raise EmbeddedError(
                f"the server with process id {pid} uses {files.data} but can't be reached: its socket was "
                "removed, or it runs in another container; end that process, or set JOBQ_DATA or JOBQ_URL"
            )
        time.sleep(0.02)
    return socket


def _started(files: ServerFiles) -> Path:
    if folder_of(files.socket) == "":
        # The server's data folder was removed and recreated, so later writes would be lost.
        shut_down(files.socket, files.server_lock)
    launch(files)
    return files.socket


def _watch(files: ServerFiles, socket: Path, idle_s: float) -> None:
    """Start a process that stops the server once no client uses it.

    By then, all processes that used the server may have exited.
    """
    if held(files.watch_lock):
        return
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    command = [
        sys.executable,
        "-P",
        "-m",
        "jobq.embedded.watch",
        str(files.data),
        str(socket),
    ]
    subprocess.run(
        [*command, str(idle_s)], check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, cwd=files.data, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
