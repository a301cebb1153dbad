"""Import the modules that hold jobs, as `--import` and pyproject.toml name them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from jobq.cli import project
from jobq.errors import ConfigError


def load(modules: Iterable[str]) -> None:
    """Import them. The working folder is on the path, and the folder of the nearest pyproject.toml.

    ConfigError where there is no such module; what goes wrong inside one comes through as it is.
    """
    _extend_path()
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


def _extend_path() -> None:
    here = Path.cwd()
    path = project.nearest(here)
    for folder in filter(None, (path and path.parent, here)):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
