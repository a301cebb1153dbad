"""`jobq topic`: append to a replayable log, read it for a group or for nobody in particular."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import click

from jobq.cli import exits
from jobq.cli.options import DURATION, Group, command, option
from jobq.cli.session import Session
from jobq.cli.topic_groups import groups, pause, peek, resume, seek, subscribe, unsubscribe
from jobq.cli.topic_limits import compaction, delete, describe, lag, retention
from jobq.cli.topic_places import (
    PLACE,
    group_option,
    layout_option,
    name_argument,
    print_message,
    redismq_of,
    topic_of,
)
from jobq.errors import ConfigError

if TYPE_CHECKING:
    from jobq.topics import Batch, Record


@click.group("topic", cls=Group)
def topic() -> None:
    """Append-only logs that any number of groups read, each at its own pace, and read again."""


topic.examples = """
    jobq topic append orders '{"id": 1}' --key 1
    jobq topic poll orders --group billing
    jobq topic read orders --from 1h
    jobq topic lag orders
"""


@command(
    "append",
    examples="""
        jobq topic append orders '{"id": 1}'
        jobq topic append orders '{"id": 1}' --key 1 --header trace=abc
        jobq topic append orders --key 1 --tombstone
        jobq topic append orders --file - < lines.txt
        jobq topic append orders hello --layout redismq --ttl 1h
    """,
)
@name_argument
@click.argument("contents", metavar="[CONTENT]...", nargs=-1)
@option("--file", type=click.File("rb"), help="A message a line; - is stdin.")
@option("-k", "--key", help="What compaction keeps the newest message of.")
@option("--header", "headers", multiple=True, metavar="NAME=TEXT", help="Repeat for more.")
@option("--tombstone", is_flag=True, help="Delete --key: a message without content.")
@option(
    "--ttl", type=DURATION, help="With redismq: how long the messages live.  [default: for ever]"
)
@layout_option
def append(
    session: Session, name: str, contents: tuple[str, ...], file: IO[bytes] | None, layout: str,
    ttl: float | None, **given: Any,
) -> None:  # fmt: skip
    """Add messages to TOPIC; prints their indexes. All of one call, or of each 1,000 lines, or none."""
    if (bool(contents) + (file is not None) + given["tombstone"]) != 1:
        raise ConfigError(
            "give messages as CONTENT..., by --file or as --tombstone, one of the three"
        )
    plain = (line.rstrip(b"\n") for line in file) if file else (text.encode() for text in contents)
    indexes: list[int] = []
    if layout == "redismq":
        if given["key"] is not None or given["headers"] or given["tombstone"]:
            raise ConfigError("redismq's layout has neither keys nor headers; leave them out")
        from jobq.topics import RedismqTopic

        indexes = RedismqTopic(name, session.client, ttl=ttl).append_many(plain)
    elif ttl is not None:
        raise ConfigError("--ttl is for redismq's layout; see jobq topic retention")
    else:
        indexes = topic_of(session, name).append_many(_records(plain, **given))
    ends = {"first": indexes[0], "last": indexes[-1]} if indexes else {}
    record = {"topic": name, "appended": len(indexes), **ends}
    session.say(record, f"{name}: {_told(indexes)}")


def _records(
    plain: Iterator[bytes], key: str | None, headers: tuple[str, ...], tombstone: bool
) -> Iterator[Record]:
    from jobq.topics import Record

    pairs = [header.partition("=") for header in headers]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise ConfigError(f"--header {name!r} has no value; write --header NAME=TEXT")
    found = {name: value for name, _, value in pairs} or None
    for content in [None] if tombstone else plain:
        yield Record(content, key, found)


def _told(indexes: list[int]) -> str:
    if len(indexes) < 2:
        return f"index {indexes[0]}" if indexes else "nothing to append"
    return f"{len(indexes):,} messages, index {indexes[0]} to {indexes[-1]}"


@command(
    "poll",
    examples="""
        jobq topic poll orders --group billing
        jobq topic poll orders --group billing --count 1 --block 30s --json
        jobq topic poll orders --group audit --start latest --follow
        jobq topic poll orders --group billing --keep
    """,
)
@name_argument
@group_option
@option(
    "-n", "--count", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most."
)
@option(
    "--block", type=DURATION, default="0s", show_default=True, help="Wait so long for the first."
)
@option(
    "--start", type=PLACE, default="earliest", show_default=True, help="Where a new group begins."
)
@option("--follow", is_flag=True, help="Go on until Ctrl-C.")
@option("--keep", is_flag=True, help="Commit nothing: they come again.")
@layout_option
def poll(
    session: Session, name: str, group: str, count: int, block: float, start: Any, follow: bool, keep: bool,
    layout: str,
) -> int:  # fmt: skip
    """Print the next messages of TOPIC for a group, and commit them once they are printed.

    Index, time, key and content, parted by tabs. Exit code 1: there were none.
    """
    if follow and keep:
        raise ConfigError("--keep hands the same messages out again, so --follow would never get on; "
                          "leave one out, or look with jobq topic read")  # fmt: skip
    if layout == "redismq":
        if keep or start != "earliest":
            raise ConfigError("redismq's layout keeps no leases and begins at the first message; "
                              "leave out --keep and --start")  # fmt: skip
        simple = redismq_of(session, name).reader(group)
        return _print_batches(
            session, lambda: simple.poll(count, 3600 if follow else block), follow
        )
    with topic_of(session, name).reader(group, start=start) as reader:
        settle: Callable[[], object] = reader.release if keep else reader.commit
        return _print_batches(
            session, lambda: reader.poll(count, 3600 if follow else block), follow, settle
        )


def _print_batches(
    session: Session, poll: Callable[[], Batch], follow: bool, settle: Callable[[], object] | None = None
) -> int:  # fmt: skip
    try:
        seen = _print_batch(session, poll(), settle)
        while follow:
            seen += _print_batch(session, poll(), settle)
    except KeyboardInterrupt:
        # How --follow ends; what is held is given back by its reader.
        return exits.INTERRUPTED
    return exits.OK if seen else exits.NO


def _print_batch(session: Session, batch: Batch, settle: Callable[[], object] | None) -> int:
    if batch.skipped:
        session.note(f"{batch.skipped:,} messages were dropped before they could be read")
    for message in batch.messages:
        print_message(session, message)
    if batch.messages and settle:
        settle()
    return len(batch.messages)


@command(
    "read",
    examples="""
        jobq topic read orders
        jobq topic read orders --from 100 --to 199 --json
        jobq topic read orders --from 1h --to 30m
        jobq topic read orders --from 2026-11-21T08:00 --count 10
    """,
)
@name_argument
@option(
    "--from",
    "start",
    type=PLACE,
    default="earliest",
    show_default=True,
    help="An index, 1h (ago), a moment.",
)
@option(
    "--to",
    "end",
    type=PLACE,
    help="The last index; or a time, which is left out.  [default: latest]",
)
@option("-n", "--count", type=click.IntRange(1), help="At most.  [default: all]")
@layout_option
def read(session: Session, name: str, start: Any, end: Any, count: int | None, layout: str) -> int:
    """Print a stretch of TOPIC; nobody's position moves. Exit code 1: there is nothing, or it was dropped."""
    if layout == "redismq":
        if isinstance(start, datetime) or isinstance(end, datetime) or start == "latest":
            raise ConfigError("redismq's layout keeps no times; give indexes")
        first = 1 if start == "earliest" else start
        found = redismq_of(session, name).read(first, None if end == "latest" else end)
    else:
        found = topic_of(session, name).read(start, end)
    seen = 0
    for message in islice(found, count):
        print_message(session, message)
        seen += 1
    return exits.OK if seen else exits.NO


TOPIC_COLUMNS = ("topic", "messages", "first", "last", "bytes", "groups")


@command("list", examples="jobq topic list\njobq topic list --json")
def list_(session: Session) -> None:
    """Show the topics there are, in jobq's layout."""
    from jobq.topics.binding import strange_topic_names, topic_names

    names = topic_names(session.client)
    session.strange("topic", strange_topic_names(session.client))
    if not names:
        session.note(
            "no topic was ever used here; append something, or check --url and --namespace"
        )
        return
    rows = []
    for name in names:
        with session.tolerating(name, "topic"):
            facts = topic_of(session, name).describe()
            rows.append({"topic": name, "messages": facts.messages, "first": facts.first, "last": facts.last,
                         "bytes": facts.nbytes, "groups": len(facts.groups)})  # fmt: skip
    session.say_all(rows, {column: column for column in TOPIC_COLUMNS})


for verb in (list_, append, poll, read, describe, lag, groups, subscribe, unsubscribe, peek, seek, pause, resume,
             retention, compaction, delete):  # fmt: skip
    topic.add_command(verb)
