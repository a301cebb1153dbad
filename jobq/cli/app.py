"""The `jobq` command: its verbs, each loaded when called, and how any of them ends."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import click

from jobq import __version__
from jobq.cli import exits, output, project
from jobq.cli.options import SHARED_DEFAULTS, LazyGroup
from jobq.errors import JobqError, masked_text

#: Verb -> module and name of its command.
COMMANDS = {
    "worker": "worker:worker",
    "enqueue": "enqueue:enqueue",
    "queues": "queues:queues",
    "status": "messages:status",
    "messages": "messages:messages",
    "cancel": "messages:cancel",
    "dead": "dead:dead",
    "pause": "control:pause",
    "resume": "control:resume",
    "clear": "control:clear",
    "events": "events:events",
    "doctor": "checks:doctor",
    "fsck": "checks:fsck",
    "audit": "audit:audit",
    "reliable": "reliable:reliable",
    "topic": "topic:topic",
    "functions": "functions:functions",
    "acl": "acl:acl",
    "server": "server:server",
    "demo": "demo:demo",
    "resque": "resque:resque",
    "chaos": "chaos:chaos",
    "rsmq": "rsmq:rsmq",
    "lake": "lake:lake",
    "report": "report:report",
    "spark": "spark:spark",
}


class Verbs(LazyGroup):
    """All there are; help ends with the exit codes, too."""

    verbs = COMMANDS
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

    Every option can be set by its variable, named in the help, and in [tool.jobq] of the nearest
    pyproject.toml; a flag wins over a variable, a variable over the file. The file and its folder must be
    yours or root's, and nobody else may be able to write to them; JOBQ_PYPROJECT names another.
    """
    ctx.color = output.wants_color()
    found, refused = project.nearest(Path.cwd())
    for reason in refused:
        click.echo(f"jobq: {output.escaped(reason)}", err=True)
    if found:
        section = project.checked(project.read(found), COMMANDS, found.path)
        ctx.meta[SHARED_DEFAULTS] = project.shared_defaults(section)
        ctx.default_map = project.command_defaults(section)


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line; every way it can end becomes an exit code."""
    try:
        code = app.main(args, prog_name="jobq", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else exits.OK
    except JobqError as error:
        click.echo(f"jobq: {output.escaped(str(error))}", err=True)
        return exits.code_of(error)
    except click.ClickException as error:
        # Some quote an argument, which may be a URL that lacks its --url.
        shown = io.StringIO()
        error.show(shown)
        click.echo(masked_text(shown.getvalue()), err=True, nl=False)
        return error.exit_code
    except click.Abort:
        click.echo("jobq: not done", err=True)
        return exits.NO
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        # Python would fail once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.PIPE_CLOSED
    except Exception:
        click.echo(masked_text(traceback.format_exc()), err=True, nl=False)
        return exits.FAILED
