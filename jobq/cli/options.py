"""Declare commands: every option has an environment variable, and every help text ends with examples.

An option is taken from the flag, JOBQ_<COMMAND>_<OPTION>, JOBQ_<OPTION> (shared options only), [tool.jobq] of the
nearest pyproject.toml, or its default, in this order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import click

from jobq import extras
from jobq.config import duration_s
from jobq.errors import ConfigError
from jobq.habits import remedy

Function = Callable[..., object]
SHARED_DEFAULTS = "jobq.shared_defaults"


def variable_of(path: str) -> str:
    """Return the environment variable of an option: `worker --max-jobs` -> JOBQ_WORKER_MAX_JOBS."""
    return "JOBQ_" + path.replace(" --", "_").replace(" ", "_").replace("-", "_").upper()


class Option(click.Option):
    """An option whose help names its environment variables. The command's own variables override shared variables.

    Attributes:
        key: The option's name in variables and pyproject.toml, if the long flag would be too long.
    """

    def __init__(
        self, *args: Any, shared: tuple[str, ...] = (), key: str | None = None, **attrs: Any
    ) -> None:
        super().__init__(*args, **{"show_envvar": True, **attrs})
        self.shared = shared
        self._key = key

    def variables(self, ctx: click.Context) -> tuple[str, ...]:
        """Return the option's environment variables in the order in which they are read."""
        return (f"{ctx.auto_envvar_prefix}_{self.key.upper()}", *self.shared)

    @property
    def key(self) -> str:
        """Return the option's name in pyproject.toml, such as `max_jobs` for --max-jobs."""
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

    path: str = ""
    examples: str = ""

    def place_in(self, group: Group | None, examples: Sequence[str]) -> None:
        """Add the command to its group.

        Args:
            examples: The rest of each command line after `jobq GROUP COMMAND`.
        """
        self.path = f"{group.path if group else 'jobq'} {self.name}"
        self.examples = "\n".join(f"{self.path} {example}".rstrip() for example in examples)
        if group is not None:
            group.add_command(self)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section("Examples"):
            for line in self.examples.strip().splitlines():
                formatter.write(f"  {line.strip()}\n" if line.strip() else "\n")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _take_defaults(self, ctx)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if hint := remedy(f"options of {self.name}", error.option_name):
                raise click.UsageError(f"{error.format_message()} {hint}", ctx) from error
            takes_argument = any(isinstance(param, click.Argument) for param in self.params)
            if error.option_name.startswith("--") or not takes_argument:
                raise
            hint = f"If an id or a name begins with {error.option_name}, put -- before it."
            raise click.UsageError(f"{error.format_message()} {hint}", ctx) from error
        except click.UsageError as error:
            hint = remedy("arguments", self.name or "")
            if not hint or type(error) is not click.UsageError:
                raise
            raise click.UsageError(f"{error.format_message()}. {hint}", ctx) from error


class Command(WithExamples):
    """A single command.

    Attributes:
        operation: The verb in the audit log; '' if the command doesn't change anything.
    """

    operation: str = ""


class Group(WithExamples, click.Group):
    """A group of commands, listed in the order of their declaration."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; for an unknown command, suggest similar names."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchOption:
            raise
        except click.UsageError as error:
            if hint := remedy("commands", args[0]):
                raise click.UsageError(f"No such command {args[0]!r}. {hint}", ctx) from error
            names = self.list_commands(ctx)
            near = get_close_matches(args[0], names, 3)
            groups = {name: self.get_command(ctx, name) for name in names}
            near += [
                f"{name} {args[0]}"
                for name, group in groups.items()
                if isinstance(group, click.Group) and args[0] in group.list_commands(ctx)
            ][:3]
            meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{meant}", ctx) from error


class CommandGroup(Group, Command):
    """A command that also has subcommands, such as `jobq web`, which has `jobq web user add`."""

    def __init__(self, *args: Any, **attrs: Any) -> None:
        super().__init__(*args, **{"invoke_without_command": True, **attrs})


class Verb(NamedTuple):
    """Location of a command that is loaded at first use.

    Attributes:
        module: The command's module in jobq.cli.
        says: The command's help line.
        extra: The jobq extra whose packages the command needs.
    """

    module: str
    name: str
    says: str
    extra: str = ""


class LazyGroup(Group):
    """Loads a command's module at first use. The help doesn't load modules.

    Attributes:
        sections: For each heading in the help, the commands and their locations.
    """

    sections: ClassVar[Mapping[str, Mapping[str, Verb]]]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for verbs in self.sections.values() for name in verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for verbs in self.sections.values():
            if verb := verbs.get(cmd_name):
                command = getattr(import_module(f"jobq.cli.{verb.module}"), verb.name)
                assert isinstance(command, click.Command)
                return command
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raise ConfigError if a required package isn't installed."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            name = ctx.invoked_subcommand or ""
            extra = next(verbs[name].extra for verbs in self.sections.values() if name in verbs)
            package = (error.name or "").partition(".")[0]
            if not extra or not extras.brings(extra, package):
                raise
            raise ConfigError(f"{name} needs {package}; {extras.install(extra)}") from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for heading, verbs in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:{width}}", verb.says) for name, verb in verbs.items()])


def _take_defaults(command: click.Command, ctx: click.Context) -> None:
    options = {p.key: p for p in command.params if isinstance(p, Option)}
    known = {key: param.name or "" for key, param in options.items()}
    if isinstance(command, click.Group):
        known |= {name: name for name in command.list_commands(ctx)}
    own = dict(ctx.default_map or {})
    unknown = sorted(set(own) - set(known))
    if unknown:
        place = ".".join(ctx.command_path.split()[1:])
        raise ConfigError(
            f"[tool.jobq.{place}] has no option {unknown[0]!r}; see jobq {place} --help"
        )
    defaults = {**ctx.meta.get(SHARED_DEFAULTS, {}), **own}
    for key in defaults.keys() & options.keys():
        if options[key].multiple and isinstance(defaults[key], str):
            defaults[key] = [defaults[key]]
    ctx.default_map = {known[key]: value for key, value in defaults.items() if key in known}


class Duration(click.ParamType[float]):
    """Parses 30, 500ms, 15s, 5m, 1h or 2d as seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            return duration_s(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class Modules(click.ParamType[str]):
    """A module name, such as app.jobs. An environment variable may contain several names, separated by commas or
    spaces."""

    name = "module"

    def split_envvar_value(self, rv: str) -> list[str]:
        return rv.replace(",", " ").split()


class Names(click.types.StringParamType):
    """A comma-separated string of names. click doesn't split an environment variable of this type."""

    def split_envvar_value(self, rv: str) -> list[str]:
        return [rv]


DURATION = Duration()


def option(names: str, *words: str, **attrs: Any) -> Callable[[Function], Function]:
    """Declare an Option: `option("-n, --name QUEUE", "Name of the queue.")`.

    Args:
        names: The names and the metavar. An option without a metavar or a type is a flag. The metavar DURATION sets the
            type Duration. A metavar such as low|high sets a choice.
        words: The help text, after the parameter's name if that differs from the long flag.
    """
    *flags, last = names.split(", ")
    last, _, metavar = last.partition(" ")
    *parameter, text = words
    if metavar == "DURATION":
        attrs["type"] = DURATION
    elif "|" in metavar:
        attrs["type"] = click.Choice(metavar.split("|"))
    elif metavar:
        attrs["metavar"] = metavar
    elif attrs.get("type") is None:
        attrs["is_flag"] = True
    if attrs.get("default", "") != "" and "[default" not in text and not attrs.get("is_flag"):
        attrs.setdefault("show_default", True)
    return click.option(*flags, last, *parameter, cls=Option, help=text, **attrs)


def _joined(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> str | None:
    return ",".join(value) or None


def queues_option_of(text: str, **attrs: Any) -> Callable[[Function], Function]:
    """Declare --queues, which can be repeated. The command receives one comma-separated string, or None."""
    attrs |= {"type": Names(), "multiple": True, "callback": _joined, "shared": ("JOBQ_QUEUES",)}
    return option("-q, --queues NAMES", text, **attrs)


def queues_arguments(function: Function) -> Function:
    """Declare arguments that name queues. The command receives one comma-separated string, or None."""
    return click.argument("queues", metavar="[QUEUE...]", nargs=-1, callback=_joined)(function)


def limit_option(
    default: int | None, most: int | None = None, *, short: bool = True
) -> Callable[[Function], Function]:
    """Declare --limit, the maximum number of records to show. `short` also declares -n."""
    names, kind = "-n, " * short + "--limit N", click.IntRange(0 if most is None else 1, most)
    shown = "all" if default is None else True
    return option(names, "Show at most N.", type=kind, default=default, show_default=shown)


queues_option = queues_option_of("Queues, comma-separated; repeatable.  [default: all]")
offset_option = option("--offset N", "Skip the first N.", type=click.IntRange(0), default=0)
import_option = option(
    "--import MODULE", "modules", "Import this module of jobs, from sys.path or the working folder; repeatable.",
    type=Modules(), multiple=True, shared=("JOBQ_IMPORT",)
)  # fmt: skip
yes_option = option("-y, --yes", "Don't ask for confirmation. Needed without a terminal.")

server_options = (
    option("--url URL", "URL of the server.  [default: an embedded server]", shared=("JOBQ_URL", "REDIS_URL")),
    option("--namespace NAME", "Prefix of all jobq keys.  [default: jobq]", shared=("JOBQ_NAMESPACE",)),
    option("--json", "as_json", "Print JSON, one document per line.", shared=("JOBQ_JSON",)),
)  # fmt: skip
#: Option of commands that write to the audit log.
by_option = option(
    "--actor NAME", "who", "Your name in the audit log.  [default: the system's user and host]", shared=("JOBQ_ACTOR",)
)  # fmt: skip


def group(name: str, *examples: str, parent: Group | None = None) -> Callable[[Function], Group]:
    """Declare a group of commands, in `parent` if it is given. The examples omit `jobq` and the group's name."""

    def declare(function: Function) -> Group:
        made = click.group(name, cls=Group)(function)
        made.place_in(parent, examples)
        return made

    return declare


#: Options of commands that name queues of Sidekiq and Resque.
NAMESPACE_OPTIONS = (
    option("--sidekiq-namespace TEXT", "Namespace of Sidekiq's keys.  [default: none]"),
    option("--resque-namespace TEXT", "Namespace of Resque's keys.  [default: resque]"),
)
