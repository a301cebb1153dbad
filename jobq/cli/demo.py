"""`jobq demo`: run the census example as it lies beside or in the package."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from jobq.cli.options import command, option
from jobq.cli.session import Session
from jobq.errors import ConfigError

SCRIPT = Path("examples", "stdlib_census", "demo.py")


@command("demo", examples="jobq demo\njobq demo --files 500 --processes 4")
@option("--files", type=click.IntRange(10), help="So many files, spread evenly.  [default: all]")
@option("--processes", type=click.IntRange(1), default=2, show_default=True, help="Children.")
@option("--keep", is_flag=True, help="Leave its folder and keys for a look.")
def demo(session: Session, files: int | None, processes: int, keep: bool) -> NoReturn:
    """See it work: thousands of real files, bad ones among them, one child killed in the middle.

    Exit code 1: a figure differs from that of a plain loop.
    """
    arguments = ["--processes", str(processes), *(["--keep"] if keep else [])]
    if files is not None:
        arguments += ["--files", str(files)]
    # In this process's place: whoever ends it ends the demo, which ends its worker.
    os.execve(sys.executable, [sys.executable, str(script()), *arguments], environment(session))


def script() -> Path:
    """The example inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package, package.parent):
        if (folder / SCRIPT).is_file():
            return folder / SCRIPT
    raise ConfigError(f"no {SCRIPT} in or beside {package}; is the installation whole?")


def environment(session: Session) -> dict[str, str]:
    """This one, with the server that the command line names; the package on its path."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    named = {"JOBQ_URL": session.url} if session.url else {}
    return {**os.environ, **named, "PYTHONPATH": path}
