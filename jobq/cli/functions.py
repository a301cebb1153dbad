"""`jobq functions`: the scripts as a library of server functions."""

from __future__ import annotations

from jobq.cli.options import group, option
from jobq.cli.session import Session, command
from jobq.client.functions import (
    Library,
    area_library,
    check_library,
    drop_library,
    library,
    load_library,
    other_libraries,
)
from jobq.durations import counted


@group("functions", "load", "check")
def functions() -> None:
    """Load jobq's scripts into the server as functions.

    Use functions if the server's users may call FCALL but not EVAL. With JOBQ_FUNCTIONS=1, jobq calls functions instead
    of scripts.
    """


library_option = option(
    "--library engine|reliable|topic|all",
    "chosen",
    "engine: jobq's scripts. Other libraries have functions for any client, such as reliable_push and topic_append.",
    default="engine",
)


def _libraries(chosen: str) -> list[Library]:
    every = {
        "engine": library(), "reliable": area_library("reliable"), "topic": area_library("topic"),
    }  # fmt: skip
    return [every[name] for name in every if chosen in ("all", name)]


@command(
    "load",
    "",
    "--library reliable",
    "--url redis://jobq_deployer:secret@queue.example --prune",
    group=functions,
)
@library_option
@option("--prune", "Also delete libraries of other jobq versions.")
def load(session: Session, chosen: str, prune: bool) -> None:
    """Load this version's libraries into the server, or into each node of a Cluster. The command can be repeated
    safely.

    The engine library's name depends on its scripts, so two versions can run during a deploy. The other
    libraries have fixed names, so loading them replaces another version's functions.
    """
    for made in _libraries(chosen):
        nodes = load_library(session.client, made)
        said = {"library": made.name, "functions": len(made.commands), "nodes": nodes}
        told = f"{made.name}: {counted(len(made.commands), 'function')} on {counted(nodes, 'node')}"
        session.say(said, told)
    for name in other_libraries(session.client) if prune else []:
        drop_library(session.client, name)
        session.say({"library": name, "dropped": True}, f"{name}: dropped")


@command("check", "", "--library reliable", group=functions)
@library_option
def check(session: Session, chosen: str) -> None:
    """Compare the server's libraries with this version's scripts.

    Exit code 4: a library is missing, or differs from the scripts.
    """
    for made in _libraries(chosen):
        check_library(session.client, made)
        session.say({"library": made.name, "ok": True}, f"{made.name}: up to date")
