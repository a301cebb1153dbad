"""The `jobq` command: its subcommands, which load at first use, and the exit code for each outcome."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from jobq import __version__
from jobq.cli import exits, output, settings
from jobq.cli.optional import with_optional
from jobq.cli.options import SHARED_DEFAULTS, LazyGroup, Verb
from jobq.errors import JobqError, masked_text

#: Set by shells that ask for completions.
COMPLETION = "_JOBQ_COMPLETE"
#: Core commands by section of the help. Optional commands are in `jobq.cli.optional`.
CORE = {
    "Every day": {
        "worker": Verb("worker", "worker", "Run jobs until TERM or INT."),
        "enqueue": Verb("enqueue", "enqueue", "Enqueue a job."),
        "queues": Verb(
            "queues",
            "queues",
            "Count the messages of each queue and its partitions, once or repeatedly.",
        ),
        "workers": Verb("why", "workers", "List the workers and their running jobs."),
        "control": Verb(
            "control", "control", "Pause, resume, drain or restart workers, or dump their stacks."
        ),
        "status": Verb("messages", "status", "Show the state and attempts of messages."),
        "running": Verb(
            "why",
            "running_",
            "List running jobs, longest-running first: job, run time, usual run time, worker.",
        ),
        "why": Verb("why", "why_", "Explain why messages wait, where they run, or how they ended."),
        "cancel": Verb("messages", "cancel", "Cancel the given messages."),
        "pause": Verb(
            "queues",
            "pause",
            "Pause a queue until it is resumed, or for a given time.",
        ),
        "resume": Verb("queues", "resume", "Resume paused queues."),
    },
    "Queues": {
        "queue": Verb("queues", "queue", "Inspect, empty or unregister a queue."),
        "partitions": Verb(
            "partitions", "partitions", "Show the partitions of a queue, or change their number."
        ),
        "key": Verb("keys", "key", "Show the keys of a queue, and limit running messages per key."),
        "dead": Verb("dead", "dead", "List, revive and purge dead messages."),
        "limit": Verb(
            "limit",
            "limit",
            "List, change or hold the limits on rates and concurrency that programs share.",
        ),
        "events": Verb("events", "events", "Show recorded events, and set how much is recorded."),
        "schedule": Verb("schedule", "schedule", "List, add, pause and check schedules."),
        "audit-log": Verb(
            "audit_log",
            "audit_log",
            "List changes made by commands and in the dashboard, newest first.",
        ),
        "check": Verb(
            "check", "check", "Check the server or the structure of queues, or find lost messages."
        ),
    },
    "Other protocols": {},
    "History": {},
    "Server": {
        "embedded": Verb("embedded", "embedded", "Show or stop this project's embedded server."),
        "functions": Verb(
            "functions", "functions", "Load jobq's scripts into the server as functions."
        ),
        "completion": Verb(
            "completion",
            "completion",
            "Print a shell completion script for commands, options and flow ids.",
        ),
        "acl": Verb("acl", "acl", "Print commands that create users with minimal rights."),
    },
    "Try it": {
        "demo": Verb(
            "demo",
            "demo",
            "Run an example with thousands of files, and kill a worker process midway.",
        ),
    },
}
SECTIONS = with_optional(CORE)
#: Every verb of the first level.
COMMANDS = tuple(name for verbs in SECTIONS.values() for name in verbs)


class Verbs(LazyGroup):
    """The group of all commands. Its help also lists the exit codes."""

    sections = SECTIONS
    examples = """
        jobq demo                                      see it work
        jobq worker --import app.jobs --queues high:6,low
        jobq enqueue app.jobs.resize a.jpg width=200
        jobq queues --watch
    """

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in exits.MEANINGS.items()])
        super().format_epilog(ctx, formatter)


@click.command(
    cls=Verbs,
    context_settings={"auto_envvar_prefix": "JOBQ", "help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def app(ctx: click.Context) -> None:
    """jobq: background jobs on Redis or Valkey, each run at least once.

    A command's help names an environment variable for each option. Options can also be set in [tool.jobq] of the
    nearest pyproject.toml. A flag overrides a variable, and a variable overrides the file. The file and its folder must
    be owned by you or root, and nobody else may have write access. JOBQ_PYPROJECT names another file.
    """
    ctx.color = output.wants_color()
    project, refused = settings.nearest(Path.cwd())
    for reason in (*refused, *settings.unknown(app, os.environ)):
        click.echo(f"jobq: {output.escaped(reason)}", err=True)
    if project:
        section = settings.checked(settings.read_project(project), COMMANDS, project.path)
        ctx.meta[SHARED_DEFAULTS] = settings.shared_defaults(section)
        ctx.default_map = settings.command_defaults(section)


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code, however it ends."""
    output.open_standard_streams()
    code = _ended(args)
    # Python would fail at exit with a traceback if nobody reads the last lines.
    gone = output.silence_closed_pipes()
    return exits.PIPE_CLOSED if gone and code == exits.OK else code


def _ended(args: Sequence[str] | None) -> int:
    try:
        code = _invoked(args)
        return code if isinstance(code, int) else exits.OK
    except JobqError as error:
        _complain(f"jobq: {output.escaped(str(error))}")
        return exits.code_of(error)
    except click.ClickException as error:
        # Some quote an argument, which may be a URL with a password.
        shown = io.StringIO()
        error.show(shown)
        _complain(shown.getvalue())
        return error.exit_code
    except click.exceptions.Exit as asked:
        return asked.exit_code
    except click.Abort:
        _complain("jobq: not done")
        return exits.NO
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        return exits.PIPE_CLOSED
    except UnicodeEncodeError as error:
        _complain(f"jobq: {error.object!r} isn't UTF-8 text")
        return exits.USAGE
    except Exception:
        _complain(traceback.format_exc())
        return exits.FAILED


def _invoked(args: Sequence[str] | None) -> object:
    """Run click, but without its function `main`, which would exit with 1 for a closed pipe."""
    if COMPLETION in os.environ:
        # Its module says how bash splits words.
        app.get_command(click.Context(app), "completion")
        return app.main(args, prog_name="jobq", standalone_mode=False)
    words = [_as_utf8(word) for word in sys.argv[1:]] if args is None else list(args)
    with app.make_context("jobq", words) as ctx:
        return app.invoke(ctx)


def _as_utf8(word: str) -> str:
    """Decode a word as UTF-8 if the locale, such as C, could not decode it. Leave file paths unchanged."""
    if word.isascii() or os.path.lexists(word):
        return word
    try:
        word.encode()
    except UnicodeEncodeError:
        with suppress(UnicodeDecodeError):
            return os.fsencode(word).decode()
    return word


def _complain(text: str) -> None:
    with suppress(BrokenPipeError):
        click.echo(masked_text(text), err=True, nl=not text.endswith("\n"))
