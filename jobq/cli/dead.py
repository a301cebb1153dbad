"""`jobq dead`: list, show, revive and purge dead messages."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, ClassVar

import click

from jobq.cli import output
from jobq.cli.messages import content_facts
from jobq.cli.options import (
    group,
    limit_option,
    offset_option,
    option,
    queues_arguments,
    queues_option,
    yes_option,
)
from jobq.cli.output import Listing
from jobq.cli.session import Session, command, opens
from jobq.client.names import base_of
from jobq.errors import ConfigError
from jobq.observe.facts import job_name
from jobq.queue.audit_log import Performed
from jobq.queue.queue import Queue
from jobq.queue.types import DeadMessage

PER_CALL = 500
#: The reply for an id that isn't a dead message.
NOT_FOUND = "not found"
#: Changes dead messages of a queue; a word for each.
Action = Callable[[Queue, list[str]], list[str]]
DEAD = Listing(
    ("queue", "dead id:dead_id", "job", "died at:died_at", "attempts", "ncrashes", "reason"),
    ("ncrashes", "attempts", "died at", "job"),
    "no dead messages: messages land here after their last failed attempt",
    whole=("dead id",),
)
GROUPS = Listing(("dead", "queue", "job", "error", "newest"), ("newest",), whole=("job",))
#: Maximum number of dead messages per queue to group by error, latest first.
MAX_GROUPED = 10_000

older_option = option(
    "--older-than DURATION",
    "With --all or --where: only messages dead for at least this long.",
)


class Conditions(click.types.StringParamType):
    """Converts --where to conditions. In the option's environment variable, each line is a condition."""

    def split_envvar_value(self, rv: str) -> list[str]:
        return rv.splitlines()


where_option = option(
    "--where FIELD=PATTERN", "conditions", "Only messages whose reason, job or mid matches; * stands for any text, and "
    "a reason is matched by its first line. Repeatable: all must match.", type=Conditions(), multiple=True
)  # fmt: skip
ids_argument = click.argument("ids", metavar="[ID...]", nargs=-1)
all_option = option("--all", "everything", "All dead messages of the queue given with --queues.")


class Where:
    """The conditions of --where: a pattern for each field, which must match the field's whole text."""

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
            raise ConfigError(f"unknown condition --where {condition!r}; use {known}")
        parts = (re.escape(part) for part in re.split(r"\*+", pattern))
        return self.FIELDS[field], re.compile(".*".join(parts), re.DOTALL)

    def __bool__(self) -> bool:
        return bool(self._asked)

    def __call__(self, message: DeadMessage) -> bool:
        return all(pattern.fullmatch(field(message)) for field, pattern in self._asked)


@group("dead", "list", "show resize:a.jpg", "revive --all --queues low", "retention --max 1000")
def dead() -> None:
    """List, revive and purge dead messages.

    ID is mid#generation, or a message id (mid), which selects the latest dead message with that id.
    """


@command("list", "", "low --all --json", group=dead)
@queues_arguments
@offset_option
@limit_option(100, 1000)
@option("--all", "everything", "Show all, starting at --offset.")
@where_option
def list_(
    session: Session, queues: str | None, offset: int, limit: int, everything: bool,
    conditions: tuple[str, ...],
) -> None:  # fmt: skip
    """List dead messages, newest first, with each message's reason for failure.

    The list begins with a table that counts the newest 10,000 dead messages of each queue by error. --json prints
    only the messages.
    """
    where = Where(conditions)
    left: list[str] = []

    def page(queue: Queue) -> Iterator[dict[str, Any]]:
        matching = filter(where, _opened(session, queue, offset))
        for message in islice(matching, None if everything else limit):
            yield _record(session, queue.name, message)
        if next(matching, None) is not None:
            number = (
                "more" if where else f"{max(1, queue.admin.counts().dead - offset - limit):,} more"
            )
            left.append(f"{queue.name}: {number} not shown; add --all, --limit or --offset")

    if not session.as_json:
        _say_groups(session, queues, where)
    records = session.from_each(queues, page)
    session.say_all(records, DEAD)
    for line in left:
        session.note(line)


def _say_groups(session: Session, queues: str | None, where: Where) -> None:
    """Print the number of dead messages by queue, job and error class, if there are several such groups."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for queue in session.readable(queues):
        with session.tolerating(queue.name):
            for message in islice(filter(where, _opened(session, queue)), MAX_GROUPED):
                error = message.reason.partition("\n")[0].partition(":")[0]
                died = groups.setdefault(
                    (base_of(queue.name), job_name(message.content), error), []
                )
                died.append(message.died_at)
    if sum(map(len, groups.values())) <= max(1, len(groups)):
        return
    rows: list[dict[str, Any]] = [
        {"dead": len(died), "queue": queue, "job": job, "error": error, "newest": output.moment(max(died))}
        for (queue, job, error), died in groups.items()
    ]  # fmt: skip
    rows.sort(key=lambda row: -row["dead"])
    for line in session.lines(rows, GROUPS):
        click.echo(line)
    click.echo()


@command("show", "resize:a.jpg", "resize:a.jpg --json | jq -r .content", group=dead)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@queues_option
def show(session: Session, ids: tuple[str, ...], queues: str | None) -> bool:
    """Show dead messages with their contents.

    Exit code 1: an ID is not the id of a dead message.
    """
    shown = [_show(session, dead_id, queues) for dead_id in ids]
    return all(shown)


def _show(session: Session, dead_id: str, queues: str | None) -> bool:
    for queue, message in _dead_with_id(session, dead_id, queues):
        record = _record(session, queue.name, message, content=True)
        text = [f"{key}: {output.indented(str(value))}" for key, value in record.items()]
        click.echo(output.json_line(record) if session.as_json else "\n".join(text))
        return True
    # A queue that can't be read may have it.
    if not session.problems:
        session.say({"dead_id": dead_id, "known": False}, f"{dead_id}: not a dead message")
    return False


class Chosen:
    """The dead messages to revive or purge: the given ids, a whole queue, or all messages that match --where."""

    def __init__(
        self, session: Session, ids: tuple[str, ...], everything: bool, conditions: tuple[str, ...],
        older_than: float | None, queues: str | None,
    ) -> None:  # fmt: skip
        self._session, self._ids, self._everything, self._queues = session, ids, everything, queues
        self._where, self._older_s = Where(conditions), older_than or 0
        if ids and (everything or conditions):
            raise ConfigError("IDs can't be combined with --all or --where; leave one of them out")
        if not (ids or everything or conditions):
            raise ConfigError("choose dead messages with IDs, --all or --where")
        if everything and not queues:
            raise ConfigError("--all needs a queue; use --queues NAME")
        if older_than is not None and ids:
            raise ConfigError(
                f"--older-than {older_than:g}s works only with --all or --where; leave it out"
            )
        those = f" where {' and '.join(conditions)}" if conditions else ""
        self.text = ", ".join(ids) or f"all dead messages of {queues or 'all queues'}{those}"
        self._filter = " ".join(
            [f"dead:{id_}" for id_ in ids]
            or [condition.replace("=", ":", 1) for condition in conditions]
            or ["place:dead"]
        ) + (f" age:>{older_than:g}s" if older_than else "")  # fmt: skip

    def operation(self) -> AbstractContextManager[Performed]:
        """Record the operation in the audit log."""
        return self._session.operation(self._queues, self._filter)

    def each(self, label: str, act: Action) -> list[str]:
        """Call `act` for each chosen message, and return the replies."""
        if self._ids:
            return [self._by_id(dead_id, act) for dead_id in self._ids]
        session, names = self._session, self._queues
        names = session.only(names, "--all") if self._everything else names
        return list(session.from_each(names, lambda queue: self._all(queue, label, act)))

    def _by_id(self, dead_id: str, act: Action) -> str:
        matches = list(_dead_with_id(self._session, dead_id, self._queues))
        if len(matches) > 1:
            places = ", ".join(queue.name for queue, _ in matches)
            raise ConfigError(
                f"queues {places} each have a dead message {dead_id!r}; choose a queue with --queues"
            )
        word = NOT_FOUND
        record: dict[str, Any] = {"dead_id": dead_id, "queue": None}
        for queue, message in matches:
            [word] = act(queue, [message.dead_id])
            word = NOT_FOUND if word == "nil" else word
            record = {"dead_id": message.dead_id, "queue": queue.name}
        text = "not a dead message" if word == NOT_FOUND else word
        self._session.say({**record, "action": word}, f"{dead_id}: {text}")
        return word

    def _all(self, queue: Queue, label: str, act: Action) -> list[str]:
        # List ids first, then change them, so that a revived message that fails immediately isn't met again.
        until = (time.time() - self._older_s) * 1000
        ids = [
            message.dead_id
            for message in filter(self._where, _opened(self._session, queue))
            if message.died_at <= until or not self._older_s
        ]
        words: list[str] = []
        with output.progress(len(ids), label, quiet=self._session.as_json) as bar:
            for first in range(0, len(ids), PER_CALL):
                some = ids[first : first + PER_CALL]
                words += act(queue, some)
                bar.update(len(some))
        words = [NOT_FOUND if word == "nil" else word for word in words]
        counted = {word: words.count(word) for word in sorted(set(words))}
        told = ", ".join(f"{number:,} {word}" for word, number in counted.items()) or "none dead"
        self._session.say({"queue": queue.name, **counted}, f"{queue.name}: {told}")
        return words


on_chosen = opens(
    "chosen", Chosen, ids_argument, all_option, where_option, older_option, queues_option
)


@command(
    "revive",
    "resize:a.jpg",
    "--all --queues low",
    "--where 'reason=no job *' --where 'job=app.mail.*'",
    group=dead,
    changes=True,
    operation="revive",
    server="joins",
)
@on_chosen
def revive(session: Session, chosen: Chosen) -> bool:
    """Enqueue dead messages again, and reset their attempts.

    The command doesn't ask for confirmation. `jobq cancel` cancels a revived message.

    Exit code 1: there is no such dead message, or a newer message has its id.
    """
    with chosen.operation() as performed:
        words = chosen.each("reviving", lambda queue, ids: queue.admin.revive(*ids))
        performed.set(number=words.count("revived"))
    return all(word == "revived" for word in words)


@command(
    "purge",
    "resize:a.jpg",
    "--all --queues low --older-than 7d --yes",
    group=dead,
    changes=True,
    operation="purge",
    server="joins",
)
@on_chosen
@yes_option
def purge(session: Session, chosen: Chosen, yes: bool) -> bool:
    """Delete dead messages.

    Exit code 1: there is no such dead message.
    """
    session.confirmed(f"Delete {chosen.text}?", yes)
    with chosen.operation() as performed:
        words = chosen.each("purging", _purged)
        performed.set(number=words.count("purged"))
    return all(word == "purged" for word in words)


@command("retention", "", "low --max 1000 --for 30d", group=dead, operation="dead-retention")
@option(
    "--max N",
    "most",
    "Number of dead messages to keep.",
    type=click.IntRange(1, 1_000_000_000),
)
@option("--for DURATION", "age", "How long to keep each dead message.")
@queues_arguments
def retention(session: Session, most: int | None, age: float | None, queues: str | None) -> None:
    """Show or set how many dead messages each queue keeps, and for how long.

    The default is 10,000 messages for 180 days. Workers delete the oldest messages that exceed either limit, a few at a
    time.
    """
    # Change all queues before printing, so that a closed pipe can't interrupt the changes.
    limits = f"max:{most or 'as-before'} age:{'as-before' if age is None else f'{age:g}s'}"
    with session.operation(queues, limits, when=most is not None or age is not None):
        rows = list(session.from_each(queues, lambda q: [(q.name, q.admin.retention(most, age))]))
    for name, kept in rows:
        days = f"{kept.age_s / 86400:,.10g} days" if kept.age_s >= 86400 else f"{kept.age_s:g} s"
        session.say(
            {"queue": name, **kept._asdict()},
            f"{name}: {kept.most:,} dead messages, for {days}; {kept.evicted:,} deleted so far",
        )


def _purged(queue: Queue, ids: list[str]) -> list[str]:
    gone = queue.admin.purge(*ids)
    return ["purged"] * gone + ["nil"] * (len(ids) - gone)


def _opened(session: Session, queue: Queue, offset: int = 0) -> Iterator[DeadMessage]:
    for message in queue.admin.iter_dead(offset):
        reason = session.shown("reason", queue.name, message.mid, message.reason)
        yield message._replace(reason=reason)


def _dead_with_id(
    session: Session, dead_id: str, names: str | None
) -> Iterator[tuple[Queue, DeadMessage]]:
    def matches(queue: Queue) -> Iterator[tuple[Queue, DeadMessage]]:
        message = _find(queue, dead_id)
        if message:
            yield queue, message

    yield from session.from_each(names, matches)


def _find(queue: Queue, dead_id: str) -> DeadMessage | None:
    mid, hash_, _ = dead_id.rpartition("#")
    newest = queue.admin.dead(mid=dead_id) or (hash_ and queue.admin.dead(mid=mid or dead_id))
    if newest and dead_id in (newest[0].mid, newest[0].dead_id):
        return newest[0]
    every = queue.admin.iter_dead() if hash_ else ()
    return next((message for message in every if message.dead_id == dead_id), None)


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
