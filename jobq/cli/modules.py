"""Import the modules that hold jobs, as `--import` and pyproject.toml name them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click

from jobq import trust
from jobq.cli import output, settings
from jobq.errors import ConfigError


def load(modules: Iterable[str]) -> None:
    """Import them. The working folder is on the path, and the folder of the nearest pyproject.toml.

    A working folder that everybody can write to isn't: files there could pose as any module. ConfigError
    where there is no such module; what goes wrong inside one comes through as it is.
    """
    modules = list(modules)
    left_out = _extend_path()
    if left_out and modules:
        click.echo(f"jobq: {output.escaped(left_out)}", err=True)
    for name in modules:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            # Only when it's this module, or a package it is in, that is missing, and not one it imports.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise ConfigError(
                f"no module {name!r} in {Path.cwd()} or installed; check --import"
            ) from error


def module_of(job: str) -> list[str]:
    """The module that a job's name begins with, if there is one: `app.jobs` of app.jobs.resize.

    Nobody asked for it by name, so it is none that somebody else may have put into the working folder.
    """
    _extend_path()
    top, _, rest = job.partition(".")
    if not rest or _of_a_stranger(top):
        return []
    name = job.rpartition(".")[0]
    while name:
        try:
            if find_spec(name):
                return [name]
        except (ImportError, ValueError, AttributeError):
            pass  # no such package, or one that is no package
        name = name.rpartition(".")[0]
    return []


def _of_a_stranger(top: str) -> bool:
    """Whether this module would come from the working folder, and somebody else could have put it there."""
    here = Path.cwd()
    fault = trust.fault(here.stat())
    if not fault:
        return False
    try:
        spec = find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return False
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    if not any(place and Path(place).resolve().is_relative_to(here) for place in places):
        return False
    click.echo(
        f"jobq: {output.escaped(f'{top} of {here} is not imported: the folder {fault}; to trust it, give --import')}",
        err=True,
    )
    return True


def _extend_path() -> str:
    """Why the working folder was left out; empty: it wasn't."""
    here = Path.cwd()
    found = settings.nearest(here).found
    folders = [found.path.parent] if found else []
    left_out = ""
    if not trust.writable_by_all(here):
        folders.append(here)
    elif here not in folders:
        if not sys.flags.safe_path and sys.path[:1] == [str(here)]:
            del sys.path[0]  # `python -m jobq` put it there
        left_out = (
            f"no module is imported from {here}: everybody can write to it; work in a folder of yours, or "
            "name it in PYTHONPATH"
        )
    for folder in folders:
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    return left_out
