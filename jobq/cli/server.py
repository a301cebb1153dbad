"""`jobq server`: the embedded server of this project."""

from __future__ import annotations

import click

from jobq.cli.options import Group, command
from jobq.cli.session import Session


@click.group("server", cls=Group)
def server() -> None:
    """The embedded server, which jobq starts by itself where no URL is set."""


server.examples = "jobq server status\njobq server stop"


@command("status", examples="jobq server status\njobq server status --json")
@click.pass_context
def status(ctx: click.Context, session: Session) -> None:
    """Show whether it runs, and where its data and socket are. Exit code 1: it doesn't run."""


@command("stop", examples="jobq server stop")
def stop(session: Session) -> None:
    """End it; its data stay."""


server.add_command(status)
server.add_command(stop)
