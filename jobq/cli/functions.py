"""`jobq functions`: the scripts as a library of server functions."""

from __future__ import annotations

import click

from jobq.cli import exits
from jobq.cli.options import Group, command, option
from jobq.cli.session import Session


@click.group("functions", cls=Group)
def functions() -> None:
    """The scripts as functions of the server, for users who may only FCALL.

    Processes call them where JOBQ_FUNCTIONS=1 is set.
    """


functions.examples = "jobq functions load\njobq functions check"


@command(
    "load",
    examples="""
        jobq functions load
        jobq functions load --url redis://jobq_deployer:secret@queue.example --prune
    """,
)
@option("--prune", is_flag=True, help="Then drop the libraries of other versions of jobq.")
def load(session: Session, prune: bool) -> None:
    """Bring this version's library to the server, to each node of a Cluster. Harmless to repeat.

    Other versions' libraries stay, so that they work on while a deploy is under way.
    """
    from jobq.engine.functions import drop_library, library, load_library, other_libraries

    nodes = load_library(session.client)
    made = library()
    said = {"library": made.name, "functions": len(made.commands), "nodes": nodes}
    session.say(
        said, f"{made.name}: {len(made.commands)} functions on {nodes} node{'s' * (nodes > 1)}"
    )
    for name in other_libraries(session.client) if prune else []:
        drop_library(session.client, name)
        session.say({"library": name, "dropped": True}, f"{name}: dropped")


@command("check", examples="jobq functions check")
def check(session: Session) -> int:
    """Compare the server's library with this version's scripts. Exit code 4: missing or swapped."""
    from jobq.engine.functions import check_library, library

    check_library(session.client)
    session.say({"library": library().name, "ok": True}, f"{library().name}: as it should be")
    return exits.OK


functions.add_command(load)
functions.add_command(check)
