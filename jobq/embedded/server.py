"""A Valkey of the project's own: started or joined where no URL is set.

Any number of processes share it. Its data outlive it (an append-only file), it outlives its starter, and it
ends once nobody has been connected for `embedded_idle_s`. It listens on a unix socket only.
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

from jobq.config import ServerSettings, embedded_from_env
from jobq.embedded.place import (
    Place,
    check,
    data_folder,
    is_own_socket,
    opened,
    place,
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
#: How long a server that lives but answers nowhere may take to answer or to end.
SILENT_S = 10.0
#: pytest sets them for the tests and for all processes that they start.
_PYTEST = frozenset(("PYTEST_VERSION", "PYTEST_CURRENT_TEST"))


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
    """The URL of the running server, started if need be. EmbeddedError says what is missing or wrong.

    The first time in a process is a warning, unless the settings ask for it or the command line says it:
    whoever forgot JOBQ_URL must not look for the messages elsewhere.
    """
    asked = _allowed(settings)
    where = _where(settings)
    prepare(where)
    with locked(where.lock):
        socket = _settled(where)
        if socket is None:
            socket, word = _started(where), "started an"
        else:
            word = "joined the"
        _watch(where, socket, settings.embedded_idle_s)
    _announce(f"{word} embedded server at {socket}; data in {where.data}", asked)
    return f"unix://{socket}"


def announced_by(say: Callable[[str], object] | None) -> None:
    """Who says it instead of the warning: the command line. None: nobody."""
    global _say
    _say = say


_say: Callable[[str], object] | None = None
_warned = False


def _announce(text: str, asked: bool) -> None:
    global _warned
    loud = not (asked or _say or _warned)
    if loud:
        _warned = True
        text += (
            ". JOBQ_URL isn't set: set it for another server, or JOBQ_EMBEDDED=1 to use this one without a "
            "warning, or 0 to forbid it"
        )
    logger.log(logging.WARNING if loud else logging.INFO, "%s", text)
    if _say:
        _say(text)


def _allowed(settings: ServerSettings) -> bool:
    """Whether it was asked for; EmbeddedError where it is forbidden, or under pytest not asked for."""
    by_variable = embedded_from_env()
    if by_variable is False or settings.embedded is False:
        said = "JOBQ_EMBEDDED=0 forbids" if by_variable is False else "the settings forbid"
        raise EmbeddedError(
            f"no JOBQ_URL or REDIS_URL is set, and {said} the embedded server; set JOBQ_URL=redis://…"
        )
    asked = bool(settings.embedded or by_variable)
    if not asked and not _PYTEST.isdisjoint(os.environ):
        raise EmbeddedError(
            "no JOBQ_URL or REDIS_URL is set, and tests don't use the embedded server unasked: they would write "
            "to the data of the project. Set JOBQ_URL to a server for tests, or JOBQ_EMBEDDED=1 with JOBQ_DATA, "
            "a temporary folder"
        )
    return asked


def status(settings: ServerSettings) -> EmbeddedStatus:
    """Whether it runs, and what it says of itself."""
    where = _where(settings)
    check(where)
    socket = running(where)
    if socket is None:
        return EmbeddedStatus(False, str(where.data))
    with client_of(socket) as client:
        info: dict[str, Any] = client.info()
    return EmbeddedStatus(
        True, str(where.data), str(socket), info["process_id"],
        str(info.get("valkey_version", info["redis_version"])), info["connected_clients"] - 1,
        info["used_memory"], info["uptime_in_seconds"],
    )  # fmt: skip


def stop(settings: ServerSettings) -> bool:
    """End it and wait until it is gone; whether there was one. Its data stay."""
    where = _where(settings)
    check(where)
    if not where.data.is_dir():
        return False
    with locked(where.lock):
        socket = _settled(where)
        if socket is not None:
            shut_down(socket, where.server_lock)
    return socket is not None


def running(where: Place) -> Path | None:
    """The socket of a server that works on these data, wherever it listens."""
    for socket in dict.fromkeys([*_noted(where.known_socket), where.socket]):
        # Whoever else listens could claim to work on these data.
        if is_own_socket(socket) and answers(socket, where.data):
            return socket
    return None


def _noted(known: Path) -> list[Path]:
    try:
        with open(opened(known, os.O_RDONLY), "rb") as file:
            return [Path(os.fsdecode(file.read()))]
    except FileNotFoundError:
        return []


def _where(settings: ServerSettings) -> Place:
    return place(data_folder(settings.data_dir, Path.cwd()))


def _settled(where: Place) -> Path | None:
    """Like running(), but None is certain: two servers on one append-only file would spoil it."""
    deadline = time.monotonic() + SILENT_S
    while (socket := running(where)) is None and held(where.server_lock):
        if time.monotonic() > deadline:
            pid = where.pid_file.read_text().strip() if where.pid_file.is_file() else "unknown"
            raise EmbeddedError(
                f"a server, process {pid}, works on {where.data} but can't be reached: its socket was "
                "removed, or it runs in another container; end it, or set JOBQ_DATA or JOBQ_URL"
            )
        time.sleep(0.02)
    return socket


def _started(where: Place) -> Path:
    if folder_of(where.socket) == "":
        # Its data folder was removed and made anew: what it would still be told, nobody would find again.
        shut_down(where.socket, where.server_lock)
    launch(where)
    return where.socket


def _watch(where: Place, socket: Path, idle_s: float) -> None:
    """See that somebody ends it when it is idle: a process of its own, since every starter may leave."""
    if held(where.watch_lock):
        return
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    command = [
        sys.executable,
        "-P",
        "-m",
        "jobq.embedded.watch",
        str(where.data),
        str(socket),
    ]
    subprocess.run(
        [*command, str(idle_s)], check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, cwd=where.data, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
