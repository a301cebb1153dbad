"""`jobq embedded`: the embedded server of this project."""

from __future__ import annotations

from jobq.cli.options import group
from jobq.cli.session import Session, command
from jobq.embedded import server


@group("embedded", "status", "stop")
def embedded() -> None:
    """Show or stop this project's embedded server.

    jobq starts it when no URL is set.
    """


@command("status", "", "--json", group=embedded)
def status(session: Session) -> bool:
    """Show whether the embedded server runs, and where its data and socket are.

    Exit code 1: it doesn't run.
    """
    found = server.status(session.settings)
    text = f"not running; data in {found.data}"
    if found.running:
        text = (
            f"running: {found.kind} {found.version}, process {found.pid}, up {found.uptime_s:,} s, "
            f"{found.clients} clients, {found.memory / 2**20:.1f} MiB; "
            f"data {found.data}, socket {found.socket}"
        )
    session.say(found._asdict(), text)
    return found.running


@command("stop", "", group=embedded)
def stop(session: Session) -> bool:
    """Stop the embedded server; its data is kept.

    Exit code 1: it wasn't running.
    """
    stopped = server.stop(session.settings)
    session.say({"stopped": stopped}, "stopped" if stopped else "not running")
    return stopped
