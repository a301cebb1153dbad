"""`[tool.jobq]` of the nearest pyproject.toml: defaults below flags and environment.

[tool.jobq]
imports = ["app.jobs"]
queues = "high:6,low"

[tool.jobq.worker]
processes = 4
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from jobq import trust
from jobq.errors import ConfigError

#: Key in [tool.jobq] -> the option it is the default of, in every command that has it.
SHARED = {"url": "url", "namespace": "namespace", "queues": "queues", "imports": "import"}


def nearest(folder: Path) -> trust.Search:
    """The pyproject.toml of `folder` or of the nearest folder above it, and why others aren't read."""
    try:
        return trust.project(folder)
    except OSError as error:
        raise ConfigError(f"{error.filename} can't be read: {error.strerror}") from error


def read(found: trust.Project) -> dict[str, Any]:
    """Its [tool.jobq], {} without one."""
    try:
        parsed = tomllib.loads(found.text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{found.path} can't be read: {error}; mend it, or work from another folder"
        ) from error
    section = parsed.get("tool", {}).get("jobq", {})
    return section if isinstance(section, dict) else {}


def checked(section: dict[str, Any], commands: Collection[str], path: Path) -> dict[str, Any]:
    """The same section; ConfigError for a key that nothing reads."""
    unknown = sorted(set(section) - set(SHARED) - set(commands))
    if unknown:
        raise ConfigError(
            f"{path}: [tool.jobq] has no key {unknown[0]!r}; it takes {', '.join(SHARED)} and a table per command"
        )
    for key in set(section) - set(SHARED):
        if not isinstance(section[key], dict):
            raise ConfigError(
                f"{path}: [tool.jobq] {key} = {section[key]!r} should be a table of options"
            )
    return section


def shared_defaults(section: dict[str, Any]) -> dict[str, Any]:
    """Option -> default, for every command that has the option."""
    return {SHARED[key]: _plain(key, value) for key, value in section.items() if key in SHARED}


def command_defaults(section: dict[str, Any]) -> dict[str, Any]:
    """Command -> option -> default, as click takes it; groups hold their commands."""
    return {key: _renamed(value) for key, value in section.items() if isinstance(value, dict)}


def _plain(key: str, value: Any) -> Any:
    if key == "imports":
        return [value] if isinstance(value, str) else value
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _renamed(table: dict[str, Any]) -> dict[str, Any]:
    return {
        SHARED.get(key, key).replace("-", "_"): _renamed(value)
        if isinstance(value, dict)
        else _plain(key, value)
        for key, value in table.items()
    }
