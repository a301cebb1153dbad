"""`jobq topic`: append to a replayable log, read it for a group, steer its groups and what it keeps."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import IO, Any

import click

from jobq.cli import exits, output
from jobq.cli.arguments import moment_of, pairs_of
from jobq.cli.options import group, limit_option, option, yes_option
from jobq.cli.output import Listing
from jobq.cli.session import Session, command
from jobq.client.names import is_name
from jobq.config import duration_s
from jobq.errors import ConfigError, GroupNotFoundError, JobqError
from jobq.topics import Record, RedismqTopic, Retention, Topic, TopicBatch, TopicMessage
from jobq.topics.calls import forget_topic, strange_topic_names, topic_names


class TopicPosition(click.ParamType["str | int | datetime"]):
    """earliest, latest, an index, a time, or how long ago."""

    name = "position"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | int | datetime:
        if not isinstance(value, str) or value in ("earliest", "latest"):
            return value  # type: ignore[no-any-return]
        if value.isascii() and value.isdigit():
            return int(value)
        try:
            return datetime.now(UTC) - timedelta(seconds=duration_s(value))
        except ConfigError:
            pass
        try:
            found = moment_of(value)
        except ConfigError:
            found = 0.0
        if not isinstance(found, datetime):
            self.fail(
                f"{value!r} is not a position; write earliest, latest, 42, 1h (ago) or 2026-11-21T08:00", param, ctx
            )  # fmt: skip
        return found


POSITION = TopicPosition()
name_argument = click.argument("name", metavar="TOPIC")
group_option = option("-g, --group NAME", "Group of readers.", required=True)
layout_option = option(
    "--layout jobq|redismq",
    "Layout of the keys: jobq's own, or that of redismq programs.",
    default="jobq",
)
#: Of the listings of groups, what is left out first on a narrow terminal.
GROUP_DROPS = ("skipped", "expired", "out_of_range", "handed_out", "last", "settled")
COLUMNS = {"index": "index", "at": "at", "key": "key", "content": "content"}


def topic_of(session: Session, name: str) -> Topic:
    """The topic in jobq's layout."""
    return Topic(name, session.client)


def redismq_of(session: Session, name: str) -> RedismqTopic:
    """The topic in redismq's layout."""
    return RedismqTopic(name, session.client)


@contextmanager
def tolerating(session: Session, group: str) -> Iterator[None]:
    """Make what can't be read a problem of this group alone."""
    with session.tolerating(group, "group"):
        try:
            yield
        except GroupNotFoundError as error:
            session.problem(f"group {group}", error)


def group_names(session: Session, topic: Topic) -> list[str]:
    """The groups; what is listed and can't be one is a problem."""
    for strange in topic.strange_groups():
        remedy = "can't be a group's name; jobq topic unsubscribe removes it"
        session.problem(f"{strange!r} among the groups of {topic.name}", JobqError(remedy))
    return topic.groups()


def shown(session: Session, message: TopicMessage) -> dict[str, Any]:
    """One message: as it is with --json, else with its time for people."""
    content = message.content
    facts: dict[str, Any] = {
        "index": message.index, "at": message.at, "key": message.key, "headers": message.headers,
        "content": None if content is None else content.decode("utf-8", "backslashreplace"),
    }  # fmt: skip
    if content is not None and facts["content"].encode() != content:
        facts["content_base64"] = base64.b64encode(content).decode()
    if not session.as_json:
        facts |= {"at": output.moment(message.at), "key": message.key or ""}
        facts["content"] = "(deleted)" if content is None else facts["content"]
    return facts


def print_message(session: Session, message: TopicMessage) -> None:
    """One message in a line: index, time, key, content, parted by tabs."""
    facts = shown(session, message)
    if session.as_json:
        session.say(facts, "")
    else:
        cells = (output.escaped(str(facts[field])) for field in COLUMNS.values())
        click.echo("\t".join(cells))


@group(
    "topic",
    "append orders '{\"id\": 1}' --key 1",
    "poll orders --group billing",
    "read orders --since 1h",
    "lag orders",
)
def topic() -> None:
    """Append to replayable logs and read them by group.

    Any number of groups read a topic, each at its own pace, and can read it again.
    """


@command(
    "append",
    "orders '{\"id\": 1}'",
    "orders '{\"id\": 1}' --key 1 --header trace=abc",
    "orders --key 1 --tombstone",
    "orders --file - < lines.txt",
    "orders hello --layout redismq --ttl 1h",
    group=topic,
)
@name_argument
@click.argument("contents", metavar="[CONTENT]...", nargs=-1)
@option("--file FILE", "Append each line of FILE; - is stdin.", type=click.File("rb"))
@option("-k, --key TEXT", "Key; compaction keeps the newest message of each.")
@option("--header NAME=TEXT", "headers", "Header of the messages; repeatable.", multiple=True)
@option("--tombstone", "Append a message without content, which deletes --key.")
@option("--ttl DURATION", "With --layout redismq: lifetime of the messages.  [default: for ever]")
@layout_option
def append(
    session: Session, name: str, contents: tuple[str, ...], file: IO[bytes] | None, layout: str,
    ttl: float | None, **given: Any,
) -> None:  # fmt: skip
    """Append messages to a topic, and print their indexes.

    The server appends all messages of a call or none; of a file, all of each 1,000 lines or none.
    """
    if (bool(contents) + (file is not None) + given["tombstone"]) != 1:
        raise ConfigError("give messages in one way: CONTENT..., --file or --tombstone")
    plain = (line.rstrip(b"\n") for line in file) if file else (text.encode() for text in contents)
    indexes: list[int] = []
    if layout == "redismq":
        if given["key"] is not None or given["headers"] or given["tombstone"]:
            raise ConfigError("redismq's layout has no keys, headers or tombstones; leave them out")

        indexes = RedismqTopic(name, session.client, ttl=ttl).append_many(plain)
    elif ttl is not None:
        raise ConfigError("--ttl is for redismq's layout; see jobq topic retention")
    else:
        indexes = topic_of(session, name).append_many(_records(plain, **given))
    ends = {"first": indexes[0], "last": indexes[-1]} if indexes else {}
    record = {"topic": name, "appended": len(indexes), **ends}
    session.say(record, f"{name}: {_described(indexes)}")


def _records(
    plain: Iterator[bytes], key: str | None, headers: tuple[str, ...], tombstone: bool
) -> Iterator[Record]:

    found = pairs_of("--header", headers) or None
    for content in [None] if tombstone else plain:
        yield Record(content, key, found)


def _described(indexes: list[int]) -> str:
    if len(indexes) < 2:
        return f"index {indexes[0]}" if indexes else "nothing to append"
    return f"{len(indexes):,} messages, index {indexes[0]} to {indexes[-1]}"


@command(
    "poll",
    "orders --group billing",
    "orders --group billing --limit 1 --block 30s --json",
    "orders --group audit --start latest --follow",
    "orders --group billing --keep",
    group=topic,
)
@name_argument
@group_option
@limit_option(100, 1000)
@option("--block DURATION", "Wait this long for the first message.", default="0s")
@option(
    "--start",
    "Where a new group begins: earliest, latest, an index, 1h (ago) or a time.",
    type=POSITION,
    default="earliest",
)
@option("--follow", "Print new messages until Ctrl-C.")
@option("--keep", "Don't commit: the group gets the messages again.")
@layout_option
def poll(
    session: Session, name: str, group: str, limit: int, block: float, start: Any, follow: bool, keep: bool,
    layout: str,
) -> int:  # fmt: skip
    """Print the next messages for a group, and commit them once they are printed.

    A line has index, time, key and content, separated by tabs. Exit code 1: there is no new message.
    """
    if follow and keep:
        raise ConfigError("--keep hands out the same messages again, so --follow would not advance; "
                          "leave one out, or use jobq topic read")  # fmt: skip
    if layout == "redismq":
        if keep or start != "earliest":
            raise ConfigError("redismq's layout keeps no leases and begins at the first message; "
                              "leave out --keep and --start")  # fmt: skip
        simple = redismq_of(session, name).reader(group)
        return _print_batches(
            session, lambda: simple.poll(limit, 3600 if follow else block), follow
        )
    with topic_of(session, name).reader(group, start=start) as reader:
        settle: Callable[[], object] = reader.release if keep else reader.commit
        return _print_batches(
            session, lambda: reader.poll(limit, 3600 if follow else block), follow, settle
        )


def _print_batches(
    session: Session, poll: Callable[[], TopicBatch], follow: bool, settle: Callable[[], object] | None = None
) -> int:  # fmt: skip
    try:
        seen = _print_batch(session, poll(), settle)
        while follow:
            seen += _print_batch(session, poll(), settle)
    except KeyboardInterrupt:
        # How --follow ends; what is held is given back by its reader.
        return exits.INTERRUPTED
    if not seen:
        session.note("no new message for the group")
    return exits.OK if seen else exits.NO


def _print_batch(session: Session, batch: TopicBatch, settle: Callable[[], object] | None) -> int:
    if batch.skipped:
        session.note(f"{batch.skipped:,} messages were dropped before they could be read")
    for message in batch.messages:
        print_message(session, message)
    if batch.messages and settle:
        settle()
    return len(batch.messages)


@command(
    "read",
    "orders",
    "orders --since 100 --until 199 --json",
    "orders --since 1h --until 30m",
    "orders --since 2026-11-21T08:00 --limit 10",
    group=topic,
)
@name_argument
@option(
    "--since",
    "start",
    "First message: an index, 1h (ago) or a time.",
    type=POSITION,
    default="earliest",
)
@option(
    "--until",
    "end",
    "Last message: an index, or a time that it is before.  [default: latest]",
    type=POSITION,
)
@limit_option(None)
@layout_option
def read(session: Session, name: str, start: Any, end: Any, limit: int | None, layout: str) -> int:
    """Print a range of a topic without moving any group.

    Exit code 1: the range has no message, or they were dropped.
    """
    if layout == "redismq":
        if isinstance(start, datetime) or isinstance(end, datetime) or start == "latest":
            raise ConfigError("redismq's layout stores no times; give indexes")
        first = 1 if start == "earliest" else start
        found = redismq_of(session, name).read(first, None if end == "latest" else end)
    else:
        found = topic_of(session, name).read(start, end)
    seen = 0
    for message in islice(found, limit):
        print_message(session, message)
        seen += 1
    if not seen:
        session.note(f"{name} has no message in this range")
    return exits.OK if seen else exits.NO


TOPICS = Listing(
    {name: name for name in ("topic", "messages", "first", "last", "bytes", "groups")},
    drops=("bytes", "first", "last"),
    empty="no topic was ever used here; run 'jobq topic append', or check --url and --namespace",
)


@command("list", "", "--json", group=topic)
def list_(session: Session) -> None:
    """List topics in jobq's layout."""
    names = topic_names(session.client)
    session.strange("topic", strange_topic_names(session.client))
    rows = []
    for name in names:
        with session.tolerating(name, "topic"):
            facts = topic_of(session, name).describe()
            rows.append({"topic": name, "messages": facts.messages, "first": facts.first, "last": facts.last,
                         "bytes": facts.nbytes, "groups": len(facts.groups)})  # fmt: skip
    session.say_all(rows, TOPICS)


@command("groups", "orders", "orders --json", group=topic)
@name_argument
def groups(session: Session, name: str) -> None:
    """List the groups of a topic: position, leased messages, whether it is paused."""
    topic = topic_of(session, name)
    rows = []
    for one in group_names(session, topic):
        with tolerating(session, one):
            lag = topic.group(one).lag()
            paused: Any = lag.paused if session.as_json else "paused" * lag.paused
            rows.append({"group": one, "settled": lag.settled, "handed_out": lag.handed_out, "held": lag.held,
                         "lag": lag.messages, "out_of_range": lag.out_of_range, "paused": paused})  # fmt: skip
    columns = ("group", "settled", "handed_out", "held", "lag", "out_of_range", "paused")
    empty = f"{name} has no group; its first poll or 'jobq topic subscribe' makes one"
    session.say_all(rows, Listing({one: one for one in columns}, GROUP_DROPS, empty))


@command(
    "subscribe",
    "orders --group billing",
    "orders --group billing --start 1h --out-of-range error",
    group=topic,
)
@name_argument
@group_option
@option(
    "--start", "earliest, latest, an index, 1h (ago) or a time.", type=POSITION, default="earliest"
)
@option(
    "--out-of-range earliest|latest|error",
    "Where to continue if the next message was dropped.",
    default="earliest",
)
def subscribe(session: Session, name: str, group: str, start: Any, out_of_range: str) -> int:
    """Make a group.

    Exit code 1: the group exists already; its position is unchanged.
    """
    made = topic_of(session, name).group(group).subscribe(start, out_of_range=out_of_range)
    session.say(
        {"topic": name, "group": group, "made": made},
        f"{group}: {'made' if made else 'exists already'}",
    )
    return exits.OK if made else exits.NO


@command("unsubscribe", "orders --group billing", group=topic)
@name_argument
@group_option
@layout_option
def unsubscribe(session: Session, name: str, group: str, layout: str) -> int:
    """Delete a group. A new group of the same name reads the topic from its start.

    Exit code 1: there is no such group.
    """
    if layout == "redismq":
        redismq_of(session, name).reader(group).unsubscribe()
        gone = True
    elif is_name("group", os.fsencode(group)):
        gone = topic_of(session, name).group(group).unsubscribe()
    else:
        gone = topic_of(session, name).forget_group(os.fsencode(group))
    session.say(
        {"topic": name, "group": group, "forgotten": gone},
        f"{group}: {'deleted' if gone else 'no such group'}",
    )
    return exits.OK if gone else exits.NO


@command(
    "seek",
    "orders --group billing --to earliest",
    "orders --group billing --to 1000",
    "orders --group billing --to 2026-11-21T08:00",
    group=topic,
)
@name_argument
@group_option
@option(
    "--to", "place", "earliest, latest, an index, 1h (ago) or a time.", type=POSITION, required=True
)
@layout_option
def seek(session: Session, name: str, group: str, place: Any, layout: str) -> None:
    """Move a group to another position.

    Its readers can no longer commit the messages that they have leased.
    """
    if layout == "redismq":
        if isinstance(place, datetime):
            raise ConfigError("redismq's layout stores no times; give earliest, latest or an index")
        following = redismq_of(session, name).reader(group).seek(place)
    else:
        following = topic_of(session, name).group(group).seek(place)
    session.say({"topic": name, "group": group, "next": following}, f"{group}: next is {following}")


@command("peek", "orders --group billing", "orders --group billing -n 1 --json", group=topic)
@name_argument
@group_option
@limit_option(10, 1000)
@layout_option
def peek(session: Session, name: str, group: str, limit: int, layout: str) -> int:
    """Print the next messages of a group without moving it.

    Exit code 1: there is no new message.
    """
    if layout == "redismq":
        topic = redismq_of(session, name)
        found = list(islice(topic.read(topic.reader(group).lag().settled + 1), limit))
    else:
        found = topic_of(session, name).group(group).peek(limit)
    for message in found:
        print_message(session, message)
    if not found:
        session.note(f"{name} has no new message for the group {group}")
    return exits.OK if found else exits.NO


@command("pause", "orders --group billing", group=topic)
@name_argument
@group_option
def pause(session: Session, name: str, group: str) -> None:
    """Hand a group no message until it is resumed. It can still commit what it has leased."""
    topic_of(session, name).group(group).pause()
    session.say({"topic": name, "group": group, "paused": True}, f"{group}: paused")


@command("resume", "orders --group billing", group=topic)
@name_argument
@group_option
def resume(session: Session, name: str, group: str) -> None:
    """End a pause of a group."""
    topic_of(session, name).group(group).resume()
    session.say({"topic": name, "group": group, "paused": False}, f"{group}: resumed")


@command("describe", "orders", "orders --json", group=topic)
@name_argument
def describe(session: Session, name: str) -> None:
    """Show what a topic holds, what it keeps, and its groups."""
    topic = topic_of(session, name)
    group_names(session, topic)
    facts = topic.describe()
    record = {"topic": name, **facts._asdict(), "limits": facts.limits._asdict()}
    lines = [
        f"{name}: {facts.messages:,} messages, index {facts.first} to {facts.last}, about {facts.nbytes:,} bytes",
        f"  appended  {output.moment(facts.oldest_at) or '-'} to {output.moment(facts.newest_at) or '-'}",
        f"  keeps     {_kept(facts.limits)}",
        f"  groups    {', '.join(facts.groups) or '-'}",
    ]
    if facts.compacted_to or facts.compacting:
        lines.append(
            f"  compacted up to {facts.compacted_to}" + ", more under way" * facts.compacting
        )
    if session.as_json:
        session.say(record, "")
    else:
        for line in lines:
            click.echo(output.escaped(line))


@command(
    "lag",
    "orders",
    "orders --group billing --json",
    "orders --group billing --layout redismq",
    group=topic,
)
@name_argument
@option("-g, --group NAME", "Show one group.  [default: all]")
@layout_option
def lag(session: Session, name: str, group: str | None, layout: str) -> None:
    """Show how far behind groups are: messages not committed, and the age of the oldest.

    After compaction, or when messages of redismq expired, the number is an upper bound.
    """
    if layout == "redismq":
        found = [(group, redismq_of(session, name).reader(group).lag())] if group else []
    else:
        topic = topic_of(session, name)
        found = []
        for one in [group] if group else group_names(session, topic):
            with tolerating(session, one):
                found.append((one, topic.group(one).lag()))
    rows = [
        {"group": one, "lag": lag.messages, "age_ms": lag.age_ms, "settled": lag.settled, "last": lag.last,
         "held": lag.held, "expired": lag.expired, "skipped": lag.skipped}
        for one, lag in found
    ]  # fmt: skip
    columns = ("group", "lag", "age_ms", "settled", "last", "held", "expired", "skipped")
    empty = f"{name} has no group that can be listed; name one with --group"
    session.say_all(rows, Listing({one: one for one in columns}, GROUP_DROPS, empty))


@command(
    "retention",
    "orders",
    "orders --max-age 7d --max-count 1000000",
    "orders --max-bytes 0 --apply",
    "orders --before 1000",
    group=topic,
)
@name_argument
@option("--max-age DURATION", "Keep messages this long; 0 for ever.")
@option("--max-count", "Keep this many messages; 0 all.", type=click.IntRange(0))
@option("--max-bytes", "Keep about this many bytes; 0 all.", type=click.IntRange(0))
@option("--apply", "Drop messages over the limits now, not at the next appends.")
@option("--before", "Drop all messages below this index now.", type=click.IntRange(1))
def retention(session: Session, name: str, apply: bool, before: int | None, **limits: Any) -> None:
    """Show or set what a topic keeps. Limits that are not given stay the same."""
    topic = topic_of(session, name)
    changes = any(value is not None for value in limits.values())
    now = topic.set_limits(**limits) if changes else topic.limits()
    record = {"topic": name, **now._asdict()}
    text = f"{name}: keeps {_kept(now)}"
    if apply or before is not None:
        record["first"] = topic.trim(before)
        text += f"; begins at {record['first']}"
    session.say(record, text)


@command(
    "compaction", "prices", "prices on --tombstones 1d", "prices --run", "prices off", group=topic
)
@name_argument
@click.argument("switch", type=click.Choice(["on", "off"]), required=False)
@option("--tombstones DURATION", "How long tombstones are kept.  [default: 1d]")
@option("--run", "Compact now, not at the next appends.")
def compaction(
    session: Session, name: str, switch: str | None, tombstones: float | None, run: bool
) -> None:
    """Show or set whether a topic keeps only the newest message of each key.

    Messages without a key are all kept.
    """
    topic = topic_of(session, name)
    if switch or tombstones is not None:
        topic.set_limits(compact=switch == "on" if switch else None, tombstones=tombstones)
    if run:
        topic.compact()
    facts = topic.describe()
    record = {
        "topic": name, "compact": facts.limits.compact, "tombstone_ms": facts.limits.tombstone_ms,
        "compacted_to": facts.compacted_to, "messages": facts.messages,
    }  # fmt: skip
    word = "on" if facts.limits.compact else "off"
    session.say(
        record,
        f"{name}: compaction {word}, compacted up to {facts.compacted_to}, {facts.messages:,} messages",
    )


@command("delete", "orders", "orders --yes", group=topic)
@name_argument
@yes_option
@layout_option
def delete(session: Session, name: str, yes: bool, layout: str) -> int:
    """Delete a topic with its groups. With redismq's layout, groups keep their positions."""
    written = os.fsencode(name)
    if layout == "jobq" and not is_name("topic", written):
        session.confirmed(f"Remove {name} from the list of topics?", yes)

        listed = written in strange_topic_names(session.client)
        forget_topic(session.client, written)
        if not listed:
            session.say({"topic": name, "deleted": False}, f"{name}: no such topic")
            return exits.NO
    else:
        topic = redismq_of(session, name) if layout == "redismq" else topic_of(session, name)
        session.confirmed(f"Delete topic {name} with all its messages?", yes)
        topic.delete()
    session.say({"topic": name, "deleted": True}, f"{name}: deleted")
    return exits.OK


def _kept(limits: Retention) -> str:
    told = [
        f"messages for {limits.max_age_ms / 1000:,g} s" * (limits.max_age_ms > 0),
        f"{limits.max_count:,} messages" * (limits.max_count > 0),
        f"about {limits.max_bytes:,} bytes" * (limits.max_bytes > 0),
        "the newest of each key" * limits.compact,
    ]
    return ", ".join(filter(None, told)) or "everything"
