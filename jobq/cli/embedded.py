"""`jobq embedded`: the embedded server of this project."""

from __future__ import annotations

from jobq.cli.options import group
from jobq.cli.session import Session, command
from jobq.embedded import server


@group("embedded", "status", "stop")
def embedded() -> None:
    """Show or stop this project's embedded server.

    jobq starts this server when no URL is set.
    """


@command("status", "", "--json", group=embedded)
def status(session: Session) -> bool:
    """Show whether the embedded server is running, and where its data and socket are.

    Exit code 1: the server isn't running.
    """
    state = server.status(session.settings)
    text = f"not running; data in {state.data}"
    if state.running:
        text = (
            f"running: {state.kind} {state.version}, process {state.pid}, up {state.uptime_s:,} s, "
            f"{state.clients} clients, {state.memory / 2**20:.1f} MiB; "
            f"data {state.data}, socket {state.socket}"
        )
    session.say(state._asdict(), text)
    return state.running


@command("stop", "", group=embedded)
def stop(session: Session) -> bool:
    """Stop the embedded server; its data is kept.

    Exit code 1: the server wasn't running.
    """
    stopped = server.stop(session.settings)
    session.say({"stopped": stopped}, "stopped" if stopped else "not running")
    return stopped
