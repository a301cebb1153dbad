"""How commands are declared: every option has its variable, every help ends with examples.

An option takes the first of: the flag, JOBQ_<COMMAND>_<OPTION>, the plain JOBQ_<OPTION> of those that
many commands share, [tool.jobq] of the nearest pyproject.toml, its default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar

import click

from jobq.config import duration_s
from jobq.errors import ConfigError

Function = Callable[..., object]
SHARED_DEFAULTS = "jobq.shared_defaults"


class Option(click.Option):
    """An option that names its variables in the help; `shared` are read after the command's own.

    key: what variables and pyproject.toml call it where its long flag would be too long there.
    """

    def __init__(
        self, *args: Any, shared: tuple[str, ...] = (), key: str | None = None, **attrs: Any
    ) -> None:
        super().__init__(*args, **{"show_envvar": True, **attrs})
        self.shared = shared
        self._key = key

    def variables(self, ctx: click.Context) -> tuple[str, ...]:
        """Environment variables in the order they are read."""
        return (f"{ctx.auto_envvar_prefix}_{self.key.upper()}", *self.shared)

    @property
    def key(self) -> str:
        """The long flag as variables and pyproject.toml write it: `max_jobs`."""
        return self._key or max(self.opts, key=len).lstrip("-").replace("-", "_")

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        return next(
            (os.environ[name] for name in self.variables(ctx) if os.environ.get(name)), None
        )

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        extra["envvars"] = self.variables(ctx)
        return extra


class WithExamples(click.Command):
    """A command or group whose help ends with examples."""

    examples: str = ""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section("Examples"):
            for line in self.examples.strip().splitlines():
                formatter.write(f"  {line.strip()}\n" if line.strip() else "\n")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _take_defaults(self, ctx)
        return super().parse_args(ctx, args)


class Command(WithExamples):
    """One verb."""


class Group(WithExamples, click.Group):
    """A family of verbs.

    removed: verb of an earlier version -> the error that names what replaces it.
    """

    removed: Mapping[str, str] = MappingProxyType({})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.removed:
            ctx.fail(self.removed[cmd_name])
        return super().get_command(ctx, cmd_name)


class LazyGroup(Group):
    """Loads a verb's module when it is asked for; help lists the verbs in the order of `verbs`.

    verbs: name -> module in jobq.cli and name of its command, with a colon between.
    """

    verbs: ClassVar[dict[str, str]]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.verbs:
            return super().get_command(ctx, cmd_name)
        module, name = self.verbs[cmd_name].split(":")
        found = getattr(import_module(f"jobq.cli.{module}"), name)
        assert isinstance(found, click.Command)
        return found


def _take_defaults(command: click.Command, ctx: click.Context) -> None:
    """From pyproject.toml: the shared defaults that this command has options for, then its own."""
    known = {p.key: p.name or "" for p in command.params if isinstance(p, Option)}
    if isinstance(command, click.Group):
        known |= {name: name for name in command.list_commands(ctx)}
    own = dict(ctx.default_map or {})
    unknown = sorted(set(own) - set(known))
    if unknown:
        place = ".".join(ctx.command_path.split()[1:])
        raise ConfigError(
            f"[tool.jobq.{place}] has no option {unknown[0]!r}; see jobq {place} --help"
        )
    found = {**ctx.meta.get(SHARED_DEFAULTS, {}), **own}
    ctx.default_map = {known[key]: value for key, value in found.items() if key in known}


class Duration(click.ParamType[float]):
    """30, 500ms, 15s, 5m, 1h, 2d -> seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            return duration_s(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class Modules(click.ParamType[str]):
    """A module's dotted name; variables hold several, split by commas or blanks."""

    name = "module"

    def split_envvar_value(self, rv: str) -> list[str]:
        return rv.replace(",", " ").split()


DURATION = Duration()


def option(*names: str, **attrs: Any) -> Callable[[Function], Function]:
    """click.option with this house's Option."""
    return click.option(*names, cls=Option, **attrs)


queues_option = option(
    "-q", "--queues", metavar="NAMES", shared=("JOBQ_QUEUES",),
    help="Queues, comma-separated.  [default: all there are]",
)  # fmt: skip
import_option = option(
    "--import", "modules", type=Modules(), multiple=True, metavar="MODULE", shared=("JOBQ_IMPORT",),
    help="Module with jobs; repeat for more. The working folder is on its path.",
)  # fmt: skip
yes_option = option("-y", "--yes", is_flag=True, help="Don't ask.")

server_options = (
    option("--url", metavar="URL", shared=("JOBQ_URL", "REDIS_URL"), help="Server.  [default: an embedded one]"),
    option("--namespace", metavar="NAME", shared=("JOBQ_NAMESPACE",), help="First part of every key.  [default: jobq]"),
    option("--json", "as_json", is_flag=True, shared=("JOBQ_JSON",), help="JSON: one document, or one a line."),
)  # fmt: skip


def group(
    name: str, *, examples: str, parent: click.Group | None = None, removed: dict[str, str] | None = None
) -> Callable[[Function], Group]:  # fmt: skip
    """Declare a group of verbs, in `parent` if it is given. removed: old verb -> what to say about it."""

    def declare(function: Function) -> Group:
        made = click.group(name, cls=Group)(function)
        made.examples, made.removed = examples, removed or {}
        if parent is not None:
            parent.add_command(made)
        return made

    return declare
