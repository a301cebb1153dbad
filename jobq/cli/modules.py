"""Import the modules that `--import` and pyproject.toml name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

import click

from jobq import trust
from jobq.cli import output, settings
from jobq.errors import ConfigError

#: Functions that `load` calls after importing the modules. Frameworks add theirs to discover a project's jobs.
loaders: list[Callable[[], object]] = []


def load(modules: Iterable[str]) -> None:
    """Import modules from `sys.path`, the working folder or the folder of the nearest pyproject.toml.

    A working folder that every user can write to is not searched, because another user could replace modules there.
    Raises ConfigError if a module doesn't exist. Exceptions that a module raises are not caught.
    """
    modules = list(modules)
    left_out = _extend_path()
    if left_out and modules:
        click.echo(f"jobq: {output.escaped(left_out)}", err=True)
    for name in modules:
        _require_name(name)
        _import(name)
    for more in loaders:
        more()


def _import(name: str) -> None:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        # Only if this module or its package is missing, not one that it imports.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise _missing(name) from error


def require(modules: Iterable[str]) -> None:
    """Raise ConfigError if a module can't be found. Don't import the modules."""
    _extend_path()
    for name in modules:
        _require_name(name)
        if not _has_file(name):
            _import(name)  # a package may make its modules, so only an import shows what is missing


def _has_file(name: str) -> bool:
    top, *rest = name.split(".")
    spec = sys.modules[top].__spec__ if top in sys.modules else find_spec(top)
    for part in rest:
        if spec is None or not spec.submodule_search_locations:
            return False
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    return spec is not None


def _require_name(name: str) -> None:
    if name.startswith(".") or "/" in name:
        raise ConfigError(f"{name!r} isn't the name of a module; write --import {_as_module(name)}")


def _missing(name: str) -> ConfigError:
    written, module = _as_module(name), sys.modules.get(name.rpartition(".")[0])
    if module is not None and not hasattr(module, "__path__"):
        written = module.__name__  # the name of a job or file
    remedy = "check --import" if written == name else f"write --import {written}"
    return ConfigError(f"no module {name!r} is in {Path.cwd()} or installed; {remedy}")


def _as_module(path: str) -> str:
    """Convert a file's path to a module name, such as app/jobs.py to `app.jobs`. A module name stays unchanged."""
    name = Path(path).name if path.startswith(("/", "..")) else path
    return name.removeprefix("./").removesuffix(".py").strip("./").replace("/", ".")


def module_of(job: str) -> list[str]:
    """Return the module that a job's name begins with, such as app.jobs for app.jobs.resize, or [] if there is none.

    A module that another user may have put into the working folder is ignored; only --import can load it.
    """
    _extend_path()
    top, _, rest = job.partition(".")
    if not rest or _may_be_foreign(top):
        return []
    name = job.rpartition(".")[0]
    while name:
        try:
            if find_spec(name):
                return [name]
        except (ImportError, ValueError, AttributeError):
            pass  # no such package, or a module that has no submodules
        name = name.rpartition(".")[0]
    return []


def _may_be_foreign(top: str) -> bool:
    """Return whether another user could have put the module into the working folder."""
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
        f"jobq: {output.escaped(f'{top} of {here} is not imported: the folder {fault}; to trust it, pass --import')}",
        err=True,
    )
    return True


def _extend_path() -> str:
    """Add the working folder to sys.path. Return '', or why the folder was not added."""
    here = Path.cwd()
    project = settings.nearest(here).project
    folders = [project.path.parent] if project else []
    left_out = ""
    if not trust.writable_by_all(here):
        folders.append(here)
    elif here not in folders:
        if not sys.flags.safe_path and sys.path[:1] == [str(here)]:
            del sys.path[0]  # `python -m jobq` put it there
        left_out = (
            f"can't import modules from {here}: every user can write to it; use your own folder, "
            "or add this folder to PYTHONPATH"
        )
    for folder in folders:
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    return left_out
