"""Settings from [tool.jobq] of pyproject.toml and from environment variables."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from jobq import trust, variables
from jobq.cli.options import Option, variable_of
from jobq.errors import ConfigError

#: Key in [tool.jobq] -> the option it is the default of, in every command that has it.
SHARED = {"url": "url", "namespace": "namespace", "queues": "queues", "imports": "import"}


def nearest(folder: Path) -> trust.Search:
    """Find the nearest trusted pyproject.toml in `folder` or its parents. The result explains why other files are
    ignored."""
    try:
        return trust.project(folder)
    except OSError as error:
        raise ConfigError(f"{error.filename} can't be read: {error.strerror}") from error


def read_project(project: trust.Project) -> dict[str, Any]:
    """Return the section [tool.jobq] of the project, or {} if there is none."""
    try:
        parsed = tomllib.loads(project.text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{project.path} can't be read: {error}; fix it, or work in another folder"
        ) from error
    section = parsed.get("tool", {}).get("jobq", {})
    return section if isinstance(section, dict) else {}


def checked(section: dict[str, Any], commands: Collection[str], path: Path) -> dict[str, Any]:
    """Return the section. Raise ConfigError if it has an unknown key."""
    unknown = sorted(set(section) - set(SHARED) - set(commands))
    if unknown:
        raise ConfigError(
            f"{path}: [tool.jobq] has no key {unknown[0]!r}; allowed keys are {', '.join(SHARED)} and a table per "
            f"command"
        )
    for key in set(section) - set(SHARED):
        if not isinstance(section[key], dict):
            raise ConfigError(
                f"{path}: [tool.jobq] {key} = {section[key]!r} is not a table; write options of {key} below "
                f"[tool.jobq.{key}]"
            )
    return section


def shared_defaults(section: dict[str, Any]) -> dict[str, Any]:
    """Return the default of each option that several commands share."""
    return {SHARED[key]: _plain(key, value) for key, value in section.items() if key in SHARED}


def command_defaults(section: dict[str, Any]) -> dict[str, Any]:
    """Return each command's own defaults, in click's format. A group's defaults contain its commands' defaults."""
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


def unknown(app: click.Group, environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable JOBQ_… that no setting and no option reads.

    The function loads only commands that occur in a variable's name. To suggest a similar name, it loads all commands.
    """
    names = {name for name in environ if name.startswith(variables.PREFIX)} - variables.KNOWN
    if not names:
        return []
    with click.Context(app, info_name="jobq", auto_envvar_prefix="JOBQ") as context:
        for command in app.list_commands(context):
            if any(name.startswith(f"{variable_of(command)}_") for name in names):
                names.difference_update(_of_one(app, command, context))
    return variables.unknown(names, variables.KNOWN.union(options(app))) if names else []


def options(app: click.Group) -> Iterator[str]:
    """Yield the environment variables of all options."""
    with click.Context(app, info_name="jobq", auto_envvar_prefix="JOBQ") as context:
        yield from _of(app, context)


def _of_one(app: click.Group, name: str, context: click.Context) -> Iterator[str]:
    command = app.get_command(context, name)
    assert command is not None
    yield from _of(command, click.Context(command, info_name=name, parent=context))


def _of(command: click.Command, context: click.Context) -> Iterator[str]:
    for param in command.params:
        if isinstance(param, Option):
            yield from param.variables(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from _of_one(command, name, context)
