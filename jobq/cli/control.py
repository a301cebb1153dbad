"""Verbs that steer a queue: pause, resume, clear."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click

from jobq.cli import output
from jobq.cli.options import command, yes_option
from jobq.cli.session import Session
from jobq.engine.queue import Queue

names_argument = click.argument("names", metavar="QUEUE...", nargs=-1, required=True)


@command("pause", examples="jobq pause low\njobq pause low high --json")
@names_argument
def pause(session: Session, names: tuple[str, ...]) -> None:
    """Hand out nothing from QUEUE... until resume. Running jobs go on; enqueueing still works."""
    _set(session, names, Queue.pause, {"paused": True}, "paused")


@command("resume", examples="jobq resume low")
@names_argument
def resume(session: Session, names: tuple[str, ...]) -> None:
    """End a pause of QUEUE..."""
    _set(session, names, Queue.resume, {"paused": False}, "resumed")


def _set(
    session: Session, names: tuple[str, ...], act: Callable[[Queue], None], facts: dict[str, bool],
    word: str,
) -> None:  # fmt: skip
    """All of them first, then the words: a reader that goes away changes nothing."""

    def one(queue: Queue) -> Iterator[str]:
        act(queue)
        yield queue.name

    for name in list(session.from_each(names, one)):
        session.say({"queue": name, **facts}, f"{name}: {word}")


@command("clear", examples="jobq clear low\njobq clear low --yes --json")
@names_argument
@yes_option
def clear(session: Session, names: tuple[str, ...], yes: bool) -> None:
    """Drop every live message of QUEUE... Running jobs can't finish any more; the dead stay."""
    queues = session.queues(names)
    live = {queue.name: queue.counts().messages for queue in queues}
    told = ", ".join(f"{count:,} of {name}" for name, count in live.items())
    session.confirmed(f"Drop all live messages ({told})?", yes)
    with output.progress(len(queues), "clearing", quiet=session.as_json) as bar:
        dropped = []
        for queue in queues:
            dropped.append((queue.name, queue.clear()))
            bar.update(1)
    for name, count in dropped:
        session.say({"queue": name, "cleared": count}, f"{name}: {count:,} messages cleared")
