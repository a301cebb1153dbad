"""`jobq dead`: list, show, revive and purge messages that are out of attempts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar

import click

from jobq.cli import output
from jobq.cli.messages import content_facts, job_name
from jobq.cli.options import (
    group,
    limit_option,
    offset_option,
    option,
    queues_option,
    yes_option,
)
from jobq.cli.output import Listing
from jobq.cli.session import Session, command
from jobq.errors import ConfigError
from jobq.queue.queue import Queue
from jobq.queue.types import DeadMessage

PER_CALL = 500
DEAD = Listing(
    ("queue", "dead id:dead_id", "job", "died at:died_at", "attempts", "ncrashes", "reason"),
    ("ncrashes", "attempts", "died at", "job"),
    "no dead messages: no message has run out of attempts",
)

older_option = option(
    "--older-than DURATION",
    "With --all or --where: only messages that have been dead for this long.",
)


class Conditions(click.types.StringParamType):
    """A variable holds one a line: patterns have blanks."""

    def split_envvar_value(self, rv: str) -> list[str]:
        return rv.splitlines()


where_option = option(
    "--where FIELD=PATTERN", "conditions", "Only messages whose reason, job or mid matches; * stands for any text, and "
    "a reason is matched by its first line. Repeatable: all must match.", type=Conditions(), multiple=True
)  # fmt: skip
ids_argument = click.argument("ids", metavar="[ID...]", nargs=-1)
all_option = option("--all", "everything", "All dead messages of the one queue in --queues.")


class Where:
    """What --where asks of a dead message: for each condition a field and the pattern of all its text."""

    FIELDS: ClassVar[dict[str, Callable[[DeadMessage], str]]] = {
        "reason": lambda message: message.reason.partition("\n")[0],
        "job": lambda message: job_name(message.content),
        "mid": lambda message: message.mid,
    }

    def __init__(self, conditions: Sequence[str]) -> None:
        self._asked = [self._read(condition) for condition in conditions]

    def _read(self, condition: str) -> tuple[Callable[[DeadMessage], str], re.Pattern[str]]:
        field, equals, pattern = condition.partition("=")
        if field not in self.FIELDS or not equals:
            known = " or ".join(f"{name}=PATTERN" for name in self.FIELDS)
            raise ConfigError(f"unknown condition --where {condition!r}; give {known}")
        parts = (re.escape(part) for part in re.split(r"\*+", pattern))
        return self.FIELDS[field], re.compile(".*".join(parts), re.DOTALL)

    def __bool__(self) -> bool:
        return bool(self._asked)

    def __call__(self, message: DeadMessage) -> bool:
        return all(pattern.fullmatch(field(message)) for field, pattern in self._asked)


@group("dead", "list", "show resize:a.jpg", "revive --all --queues low")
def dead() -> None:
    """List, revive and purge messages that are out of attempts.

    ID is a mid, which means the newest dead message of that mid, or mid#generation.
    """


@command("list", "", "--queues low --all --json", group=dead)
@queues_option
@offset_option
@limit_option(100, 1000)
@option("--all", "everything", "Show all from --offset on.")
@where_option
def list_(
    session: Session, queues: str | None, offset: int, limit: int, everything: bool,
    conditions: tuple[str, ...],
) -> None:  # fmt: skip
    """List dead messages with the reason, newest first."""
    where = Where(conditions)

    left: list[str] = []

    def page(queue: Queue) -> Iterator[dict[str, Any]]:
        found = filter(where, _opened(session, queue, offset))
        for message in islice(found, None if everything else limit):
            yield _record(session, queue.name, message)
        if next(found, None) is not None:
            number = (
                "more" if where else f"{max(1, queue.admin.counts().dead - offset - limit):,} more"
            )
            left.append(f"{queue.name}: {number} not shown; add --all, --limit or --offset")

    found = session.from_each(queues, page)
    session.say_all(found, DEAD)
    for line in left:
        session.note(line)


@command("show", "resize:a.jpg", "resize:a.jpg --json | jq -r .content", group=dead)
@click.argument("dead_id", metavar="ID")
@queues_option
def show(session: Session, dead_id: str, queues: str | None) -> bool:
    """Show all of one dead message, its content included.

    Exit code 1: there is no such dead message.
    """
    for queue, message in _found(session, dead_id, queues):
        record = _record(session, queue.name, message, content=True)
        text = [f"{key}: {output.indented(str(value))}" for key, value in record.items()]
        click.echo(output.json_line(record) if session.as_json else "\n".join(text))
        return True
    # A queue that can't be read may have it.
    if not session.problems:
        session.say({"dead_id": dead_id, "status": "nil"}, f"{dead_id}: not among the dead")
    return False


@command(
    "revive",
    "resize:a.jpg",
    "--all --queues low",
    "--where 'reason=no job *' --where 'job=app.mail.*'",
    group=dead,
    changes=True,
)
@ids_argument
@all_option
@where_option
@older_option
@queues_option
def revive(session: Session, ids: tuple[str, ...], queues: str | None, **which: Any) -> bool:
    """Enqueue dead messages again, with all their attempts.

    Exit code 1: there is no such dead message, or a newer message has its mid.
    """
    words = _each(
        session, ids, queues, which, "reviving", lambda queue, some: queue.admin.revive(*some)
    )
    return all(word == "revived" for word in words)


@command(
    "purge", "resize:a.jpg", "--all --queues low --older-than 7d --yes", group=dead, changes=True
)
@ids_argument
@all_option
@where_option
@older_option
@queues_option
@yes_option
def purge(
    session: Session, ids: tuple[str, ...], queues: str | None, yes: bool, **which: Any
) -> bool:
    """Delete dead messages.

    Exit code 1: there is no such dead message.
    """
    _check(ids, queues, which)
    those = f" where {' and '.join(which['conditions'])}" if which["conditions"] else ""
    of = f"all the dead of {queues or 'all queues'}{those}"
    session.confirmed(f"Delete {', '.join(ids) or of}?", yes)
    words = _each(session, ids, queues, which, "purging", _purged)
    return all(word == "purged" for word in words)


def _purged(queue: Queue, ids: list[str]) -> list[str]:
    gone = queue.admin.purge(*ids)
    return ["purged"] * gone + ["nil"] * (len(ids) - gone)


def _each(
    session: Session, ids: tuple[str, ...], queues: str | None, which: dict[str, Any], label: str,
    act: Callable[[Queue, list[str]], list[str]],
) -> list[str]:  # fmt: skip
    """Do one thing to the dead named, to all of one queue, or to those that match; the word for each."""
    _check(ids, queues, which)
    if ids:
        return [_one(session, dead_id, queues, act) for dead_id in ids]
    where, older_s = Where(which["conditions"]), which["older_than"] or 0
    names = [session.only(queues, "--all").name] if which["everything"] else queues
    return list(
        session.from_each(names, lambda queue: _all(session, queue, older_s, where, label, act))
    )


def _check(ids: tuple[str, ...], queues: str | None, which: dict[str, Any]) -> None:
    many = which["everything"] or bool(which["conditions"])
    Where(which["conditions"])
    if bool(ids) == many:
        given = "IDs and --all or --where" if ids else "neither IDs nor --all nor --where"
        raise ConfigError(f"{given} were given; give one of them")
    if which["everything"] and not queues:
        raise ConfigError("--all needs the queue; give --queues NAME")
    if which["older_than"] is not None and ids:
        raise ConfigError(
            f"--older-than {which['older_than']:g}s goes with --all or --where; leave it out"
        )


def _one(
    session: Session, dead_id: str, queues: str | None, act: Callable[[Queue, list[str]], list[str]]
) -> str:
    found = list(_found(session, dead_id, queues))
    if len(found) > 1:
        raise ConfigError(
            f"{dead_id!r} is dead in {', '.join(q.name for q, _ in found)}; choose one with --queues"
        )
    word = act(found[0][0], [found[0][1].dead_id])[0] if found else "nil"
    record = {
        "dead_id": found[0][1].dead_id if found else dead_id,
        "queue": found[0][0].name if found else None,
    }
    session.say(
        {**record, "action": word}, f"{dead_id}: {'not among the dead' if word == 'nil' else word}"
    )
    return word


def _all(
    session: Session,
    queue: Queue,
    older_s: float,
    where: Where,
    label: str,
    act: Callable[[Queue, list[str]], list[str]],
) -> list[str]:
    # Named first, then changed: a revived message that dies at once isn't met again.
    until = time.time() * 1000 - older_s * 1000
    ids = [
        message.dead_id
        for message in filter(where, _opened(session, queue))
        if message.died_at <= until or not older_s
    ]
    words: list[str] = []
    with output.progress(len(ids), label, quiet=session.as_json) as bar:
        for first in range(0, len(ids), PER_CALL):
            some = ids[first : first + PER_CALL]
            words += act(queue, some)
            bar.update(len(some))
    counted = {word: words.count(word) for word in sorted(set(words))}
    told = ", ".join(f"{number:,} {word}" for word, number in counted.items()) or "none dead"
    session.say({"queue": queue.name, **counted}, f"{queue.name}: {told}")
    return words


def _opened(session: Session, queue: Queue, offset: int = 0) -> Iterator[DeadMessage]:
    """All the dead from `offset` on, with their reasons opened where those are sealed."""
    for message in queue.admin.every_dead(offset):
        reason = session.shown("reason", queue.name, message.mid, message.reason)
        yield message._replace(reason=reason)


def _found(
    session: Session, dead_id: str, names: str | None
) -> Iterator[tuple[Queue, DeadMessage]]:
    """In each queue the dead message of this id, where there is one."""

    def one(queue: Queue) -> Iterator[tuple[Queue, DeadMessage]]:
        message = _find(queue, dead_id)
        if message:
            yield queue, message

    yield from session.from_each(names, one)


def _find(queue: Queue, dead_id: str) -> DeadMessage | None:
    newest = queue.admin.dead(mid=dead_id) or queue.admin.dead(
        mid=dead_id.rpartition("#")[0] or dead_id
    )
    if newest and dead_id in (newest[0].mid, newest[0].dead_id):
        return newest[0]
    return (
        next((m for m in queue.admin.every_dead() if m.dead_id == dead_id), None)
        if "#" in dead_id
        else None
    )


def _record(
    session: Session, queue: str, message: DeadMessage, *, content: bool = False
) -> dict[str, Any]:
    reason = session.shown("reason", queue, message.mid, message.reason)
    facts = {key: value for key, value in message._asdict().items() if key != "content"}
    facts["reason"] = reason
    record = {"queue": queue, **facts, **content_facts(message.content, content)}
    if not session.as_json:
        # The traceback below the first line is for `show`.
        record |= {"died_at": output.moment(message.died_at)} | (
            {} if content else {"reason": reason.partition("\n")[0]}
        )
    return record
