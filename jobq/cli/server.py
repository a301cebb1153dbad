"""`jobq server`: the embedded server of this project."""

from __future__ import annotations

import click

from jobq.cli import exits
from jobq.cli.options import Group, command
from jobq.cli.session import Session


@click.group("server", cls=Group)
def server() -> None:
    """The embedded server, which jobq starts by itself where no URL is set."""


server.examples = "jobq server status\njobq server stop"


@command("status", examples="jobq server status\njobq server status --json")
def status(session: Session) -> int:
    """Show whether it runs, and where its data and socket are. Exit code 1: it doesn't run."""
    from jobq.embedded import server as embedded

    found = embedded.status(session.settings)
    text = f"not running; data in {found.data}"
    if found.running:
        text = (
            f"running: Valkey {found.version}, process {found.pid}, up {found.uptime_s:,} s, "
            f"{found.clients} clients, {found.memory / 2**20:.1f} MiB; "
            f"data {found.data}, socket {found.socket}"
        )
    session.say(found._asdict(), text)
    return exits.OK if found.running else exits.NO


@command("stop", examples="jobq server stop")
def stop(session: Session) -> int:
    """End it; its data stay. Exit code 1: it didn't run."""
    from jobq.embedded import server as embedded

    stopped = embedded.stop(session.settings)
    session.say({"stopped": stopped}, "stopped" if stopped else "not running")
    return exits.OK if stopped else exits.NO


server.add_command(status)
server.add_command(stop)
