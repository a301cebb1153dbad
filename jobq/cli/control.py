"""Verbs that steer a queue: pause, resume, clear."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches

import click

from jobq.cli import exits, output
from jobq.cli.options import command, yes_option
from jobq.cli.session import Session
from jobq.errors import JobqError
from jobq.queue.queue import Queue

names_argument = click.argument("names", metavar="QUEUE...", nargs=-1, required=True)


@command("pause", examples="jobq pause low\njobq pause low high --json")
@names_argument
def pause(session: Session, names: tuple[str, ...]) -> int:
    """Hand out nothing from QUEUE... until resume. Running jobs go on; enqueueing still works.

    Exit code 1: one was never used here.
    """
    return _set(session, names, lambda queue: queue.admin.pause(), {"paused": True}, "paused")


@command("resume", examples="jobq resume low")
@names_argument
def resume(session: Session, names: tuple[str, ...]) -> int:
    """End a pause of QUEUE... Exit code 1: one was never used here."""
    return _set(session, names, lambda queue: queue.admin.resume(), {"paused": False}, "resumed")


def _set(
    session: Session, names: tuple[str, ...], act: Callable[[Queue], None], facts: dict[str, bool],
    word: str,
) -> int:  # fmt: skip
    """All of them first, then the words: a reader that goes away changes nothing."""

    def one(queue: Queue) -> Iterator[str]:
        act(queue)
        yield queue.name

    used = _used(session, names)
    for name in list(session.from_each(used, one)) if used else ():
        session.say({"queue": name, **facts}, f"{name}: {word}")
    return exits.OK if len(used) == len(names) else exits.NO


def _used(session: Session, names: tuple[str, ...]) -> list[str]:
    """Those of the names that queues here have; of each other one a line that says so."""
    from jobq.queue.directory import queue_names

    session.queues(names)  # what no key can hold is no name
    try:
        known = set(queue_names(session.client))
    except JobqError:
        # The list of names is damaged, or out of reach: nothing is known against them.
        return list(names)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 3)
            meant = f"; did you mean {' or '.join(near)}?" if near else ""
            record = {"queue": name, "status": "nil", "nearest": near}
            session.say(record, f"{name}: no queue of that name was ever used here{meant}")
    return [name for name in names if name in known]


@command("clear", examples="jobq clear low\njobq clear low --yes --json")
@names_argument
@yes_option
def clear(session: Session, names: tuple[str, ...], yes: bool) -> int:
    """Drop every live message of QUEUE... Running jobs can't finish any more; the dead stay.

    Exit code 1: one was never used here.
    """
    used = _used(session, names)
    queues = session.queues(used) if used else []
    live = {queue.name: queue.admin.counts().messages for queue in queues}
    told = ", ".join(f"{count:,} of {name}" for name, count in live.items())
    if queues:
        session.confirmed(f"Drop all live messages ({told})?", yes)
    with output.progress(len(queues), "clearing", quiet=session.as_json) as bar:
        dropped = []
        for queue in queues:
            dropped.append((queue.name, queue.admin.clear()))
            bar.update(1)
    for name, count in dropped:
        session.say({"queue": name, "cleared": count}, f"{name}: {count:,} messages cleared")
    return exits.OK if len(used) == len(names) else exits.NO


@command("forget", changes=True, examples="jobq forget low\njobq forget low --json")
@names_argument
def forget(session: Session, names: tuple[str, ...]) -> int:
    """List QUEUE... no longer, and drop its events: for a queue that is empty for good.

    Refused while it holds a message, dead ones too, or a worker serves it. It comes back by itself within
    a minute of an enqueue. A few bytes stay, so that the fences of its jobs never go back.
    Exit code 1: one was refused, or never used here.
    """
    from jobq.queue.directory import forget_queue, served
    from jobq.queue.keys import key

    used, left = _used(session, names), 0
    workers = served(session.client)
    for queue in session.queues(used) if used else ():
        counts = queue.admin.counts()
        why = ""
        if counts.messages or counts.dead or counts.quarantined:
            why = f"it holds {counts.messages:,} messages, {counts.dead:,} dead, {counts.quarantined:,} in quarantine"
        elif queue.name in workers:
            why = "a worker serves it, and would list it again"
        else:
            session.client.command("UNLINK", key(queue.prefix, "events"))
            forget_queue(session.client, queue.name)
        left += bool(why)
        word = f"not forgotten: {why}" if why else "forgotten"
        session.say(
            {"queue": queue.name, "forgotten": not why, "why": why}, f"{queue.name}: {word}"
        )
    return exits.OK if len(used) == len(names) and not left else exits.NO
