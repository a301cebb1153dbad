"""`jobq demo`: run the census example of the package."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import click

from jobq.cli.options import option
from jobq.cli.session import Session, command
from jobq.errors import ConfigError

FOLDER = Path("examples", "stdlib_census")
SCRIPT, PIPELINE = FOLDER / "demo.py", FOLDER / "pipeline.py"


@command("demo", "", "--files 500 --processes 4", "--pipeline")
@option(
    "--files", "Number of files.  [default: all; with --pipeline 4000]", type=click.IntRange(10)
)
@option("--processes", "Number of worker processes.", type=click.IntRange(1), default=2)
@option("--keep", "Keep the folder and the keys.")
@option(
    "--web yes|no",
    "Serve the dashboard of the run at the end, until Ctrl-C.  [default: in a terminal]",
)
@option("--pipeline", "Also use a lake, DataFrames and reports; needs jobq[spark].")
@option("--rows", "With --pipeline: rows to enqueue.  [default: 100000]", type=click.IntRange(1))
@option("--page FILE", "With --pipeline: report file to write.  [default: jobq-demo.html]")
def demo(
    session: Session, files: int | None, processes: int, keep: bool, web: str | None,
    pipeline: bool, **with_pipeline: Any,
) -> NoReturn:  # fmt: skip
    """Run an example with thousands of files, and kill a worker process midway.

    With --pipeline, the example also stores its history in a lake, enqueues rows of a DataFrame, and writes a page with
    every report. Exit code 1: a result differs from the expected value.
    """
    if pipeline and web == "yes":
        raise ConfigError("--web can't be combined with --pipeline; use only one of them")
    if not pipeline and any(value is not None for value in with_pipeline.values()):
        raise ConfigError("--rows and --page need --pipeline")
    arguments = ["--processes", str(processes), *(["--keep"] if keep else [])]
    if web == "yes" or (web is None and not pipeline and _is_looked_at()):
        arguments.append("--web")
    for name, given in {"files": files, **with_pipeline}.items():
        arguments += [f"--{name}", str(given)] if given is not None else []
    path = str(script(PIPELINE if pipeline else SCRIPT))
    # Replace this process, so that a signal to it ends the demo, which ends its worker.
    os.execve(sys.executable, [sys.executable, path, *arguments], environment(session))


def _is_looked_at() -> bool:
    """Return whether the dashboard's packages are installed and a person at a terminal can open it."""
    return sys.stdin.isatty() and sys.stdout.isatty() and find_spec("uvicorn") is not None


def script(path: Path = SCRIPT) -> Path:
    """Return the path of the example, in the installed package or in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package, package.parent):
        if (folder / path).is_file():
            return folder / path
    raise ConfigError(f"{path} is not in or next to {package}; reinstall jobq")


def environment(session: Session) -> dict[str, str]:
    """Return environment variables that make the example use this command's server and package."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    named = {"JOBQ_URL": session.url} if session.url else {}
    # The demo prints itself which server it uses.
    return {"JOBQ_EMBEDDED": "1", **os.environ, **named, "PYTHONPATH": path}
