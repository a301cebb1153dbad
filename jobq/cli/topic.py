"""`jobq topic`: append messages to a topic, read them for a group, and manage groups and retention."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from itertools import islice
from typing import IO, Any

import click
from msgspec import structs

from jobq.cli import exits, output
from jobq.cli.arguments import pairs_of
from jobq.cli.options import group, limit_option, option, yes_option
from jobq.cli.output import Listing
from jobq.cli.session import Session, command, opens
from jobq.client.names import is_name
from jobq.config import parse_time
from jobq.durations import counted
from jobq.errors import ConfigError, GroupNotFoundError, JobqError
from jobq.queue.audit_log import Performed
from jobq.topics import Lag, Record, RedismqTopic, Retention, Topic, TopicBatch, TopicMessage
from jobq.topics.calls import forget_topic, listed_topics, strange_topic_names
from jobq.topics.listing import description_record, group_record, lag_record, topic_record


class TopicPosition(click.ParamType["str | int | datetime"]):
    """A position in a topic: earliest, latest, an index, a time, or a duration before now."""

    name = "position"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | int | datetime:
        if not isinstance(value, str) or value in ("earliest", "latest"):
            return value  # type: ignore[no-any-return]
        if value.isascii() and value.isdigit():
            return int(value)
        try:
            return parse_time(value, now=datetime.now(UTC), zone="local")
        except ConfigError:
            remedy = "write earliest, latest, 42, 1h (ago) or 2026-11-21T08:00"
            self.fail(f"{value!r} is not a position; {remedy}", param, ctx)


POSITION = TopicPosition()
name_argument = click.argument("name", metavar="TOPIC")
group_option = option("-g, --group NAME", "Group of readers.", required=True)
layout_option = option(
    "--layout jobq|redismq", "Layout of the keys: jobq's or redismq's.", default="jobq"
)  # fmt: skip
start_option = option(
    "--start", "Start of a new group: earliest, latest, an index, 1h (ago) or a time.",
    type=POSITION, default="earliest"
)  # fmt: skip
#: Columns of group listings to leave out on a narrow terminal, in order.
GROUP_DROPS = ("skipped", "expired", "out_of_range", "handed_out", "last", "settled")


def _laid_out(session: Session, name: str, layout: str) -> Topic | RedismqTopic:
    return (RedismqTopic if layout == "redismq" else Topic)(name, session.client)


#: Opens the topic that a command names; in either layout.
on_topic = opens("topic", lambda session, name: Topic(name, session.client), name_argument)
on_any_topic = opens("topic", _laid_out, name_argument, layout_option)


def group_names(session: Session, topic: Topic) -> list[str]:
    """Return the names of the topic's groups. Report each invalid name as a problem."""
    for strange in topic.strange_groups():
        remedy = "can't be a group's name; jobq topic unsubscribe removes it"
        session.problem(f"{strange!r} among the groups of {topic.name}", JobqError(remedy))
    return topic.groups()


def shown(session: Session, message: TopicMessage) -> dict[str, Any]:
    """Return a message's record. Without --json, format its time for people."""
    content = message.content
    facts: dict[str, Any] = {
        "index": message.index, "at": message.at, "key": message.key, "headers": message.headers,
        **({"content": None} if content is None else output.content_facts(content)),
    }  # fmt: skip
    if not session.as_json:
        facts |= {"at": output.moment(message.at), "key": message.key or ""}
        facts["content"] = "(deleted)" if content is None else facts["content"]
    return facts


def print_messages(session: Session, messages: Iterable[TopicMessage]) -> int:
    """Print each message's index, time, key and content, separated by tabs. Return the number of messages."""
    seen = 0
    for message in messages:
        facts = shown(session, message)
        cells = (output.escaped(str(facts[field])) for field in ("index", "at", "key", "content"))
        click.echo(output.json_line(facts) if session.as_json else "\t".join(cells))
        seen += 1
    return seen


@group(
    "topic",
    "append orders '{\"id\": 1}' --key 1",
    "poll orders --group billing",
    "read orders --since 1h",
    "lag orders",
)
def topic() -> None:
    """Append to topics, and read them in groups.

    Each group reads a topic at its own pace, and can read it again from any position.
    """


@command(
    "append",
    "orders '{\"id\": 1}'",
    "orders '{\"id\": 1}' --key 1 --header trace=abc",
    "orders --key 1 --tombstone",
    "orders --file - < lines.txt",
    "orders hello --layout redismq --ttl 1h",
    group=topic,
    server="starts",
)
@on_any_topic
@click.argument("contents", metavar="[CONTENT]...", nargs=-1)
@option("--file FILE", "Append each line of FILE; - is stdin.", type=click.File("rb"))
@option("-k, --key TEXT", "Key; compaction keeps the latest message per key.")
@option("--header NAME=TEXT", "headers", "Header of the messages; repeatable.", multiple=True)
@option("--tombstone", "Append a message without content, which deletes --key.")
@option("--ttl DURATION", "With --layout redismq: lifetime of the messages.  [default: unlimited]")
def append(
    session: Session, topic: Topic | RedismqTopic, contents: tuple[str, ...], file: IO[bytes] | None,
    ttl: float | None, **given: Any,
) -> None:  # fmt: skip
    """Append messages to a topic, and print their indexes.

    The server appends either all messages of a call or none. With --file, each call appends up to 1,000 lines.
    """
    if (bool(contents) + (file is not None) + given["tombstone"]) != 1:
        raise ConfigError("use exactly one of CONTENT..., --file and --tombstone")
    plain = (line.rstrip(b"\n") for line in file) if file else (text.encode() for text in contents)
    if isinstance(topic, RedismqTopic):
        if given["key"] is not None or given["headers"] or given["tombstone"]:
            raise ConfigError("redismq's layout has no keys, headers or tombstones; leave them out")
        indexes = RedismqTopic(topic.name, session.client, ttl=ttl).append_many(plain)
    elif ttl is not None:
        raise ConfigError("--ttl works only with redismq's layout; see jobq topic retention")
    else:
        indexes = topic.append_many(_records(plain, **given))
    ends = {"first": indexes[0], "last": indexes[-1]} if indexes else {}
    record = {"topic": topic.name, "appended": len(indexes), **ends}
    session.say(record, f"{topic.name}: {_described(indexes)}")


def _records(
    plain: Iterator[bytes], key: str | None, headers: tuple[str, ...], tombstone: bool
) -> Iterator[Record]:
    pairs = pairs_of("--header", headers) or None
    for content in [None] if tombstone else plain:
        yield Record(content, key, pairs)


def _described(indexes: list[int]) -> str:
    if len(indexes) < 2:
        return f"index {indexes[0]}" if indexes else "nothing to append"
    return f"{counted(len(indexes), 'message')}, index {indexes[0]} to {indexes[-1]}"


@command(
    "poll",
    "orders --group billing",
    "orders --group billing --limit 1 --block 30s --json",
    "orders --group audit --start latest --follow",
    "orders --group billing --keep",
    group=topic,
    server="starts",
)
@on_any_topic
@group_option
@limit_option(100, 1000)
@option("--block DURATION", "How long to wait for the first message.", default="0s")
@start_option
@option("--follow", "Print new messages until Ctrl-C.")
@option("--keep", "Don't commit, so the group gets the messages again.")
def poll(
    session: Session, topic: Topic | RedismqTopic, group: str, limit: int, block: float, start: Any, **how: bool
) -> int:  # fmt: skip
    """Print the next messages for a group, and commit them once they are printed.

    A line has a message's index, time, key and content, separated by tabs. Exit code 1: there is no new message.
    """
    follow, keep = how["follow"], how["keep"]
    if follow and keep:
        raise ConfigError("--follow with --keep would print the same messages again; use only one")  # fmt: skip
    block = 3600 if follow else block
    if isinstance(topic, RedismqTopic):
        if keep or start != "earliest":
            raise ConfigError("--keep and --start don't work with --layout redismq; leave them out")
        simple = topic.reader(group)
        return _print_batches(session, lambda: simple.poll(limit, block), follow, lambda: None)
    with topic.reader(group, start=start) as reader:
        settle: Callable[[], object] = reader.release if keep else reader.commit
        return _print_batches(session, lambda: reader.poll(limit, block), follow, settle)


def _print_batches(
    session: Session, poll: Callable[[], TopicBatch], follow: bool, settle: Callable[[], object]
) -> int:
    seen = 0
    try:
        while True:
            batch = poll()
            if batch.skipped:
                session.note(
                    f"{counted(batch.skipped, 'message')} dropped before they could be read"
                )
            seen += print_messages(session, batch.messages)
            if batch.messages:
                settle()
            if not follow:
                break
    except KeyboardInterrupt:
        # How --follow ends; what is held is given back by its reader.
        return exits.INTERRUPTED
    if not seen:
        session.note("no new messages for the group")
    return exits.OK if seen else exits.NO


@command(
    "read",
    "orders",
    "orders --since 100 --until 199 --json",
    "orders --since 1h --until 30m",
    "orders --since 2026-11-21T08:00 --limit 10",
    group=topic,
)
@on_any_topic
@option(
    "--since", "start", "First message: an index, 1h (ago) or a time.", type=POSITION, default="earliest"
)  # fmt: skip
@option(
    "--until", "end", "Last message: an index, or a time (exclusive).  [default: latest]", type=POSITION
)  # fmt: skip
@limit_option(None)
def read(
    session: Session, topic: Topic | RedismqTopic, start: Any, end: Any, limit: int | None
) -> bool:
    """Print a range of a topic. The positions of groups don't change.

    Exit code 1: the range has no message, or its messages were dropped.
    """
    if isinstance(topic, RedismqTopic):
        if isinstance(start, datetime) or isinstance(end, datetime) or start == "latest":
            raise ConfigError("redismq's layout doesn't store timestamps; use indexes")
        first = 1 if start == "earliest" else start
        messages = topic.read(first, None if end == "latest" else end)
    else:
        messages = topic.read(start, end)
    seen = print_messages(session, islice(messages, limit))
    if not seen:
        session.note(f"{topic.name} has no message in this range")
    return bool(seen)


@command("list", "", "--json", group=topic)
def list_(session: Session) -> None:
    """List jobq's topics, but not redismq's."""
    listed = listed_topics(session.client)
    session.strange("topic", listed.strange)
    if listed.left_out:
        session.remark(
            f"{listed.left_out:,} other topics are listed; only {len(listed.names):,} are checked"
        )
    rows = []
    for name in listed.names:
        with session.tolerating(name, "topic"):
            rows.append(topic_record(name, Topic(name, session.client).describe()))
    empty = "no topics here yet; run 'jobq topic append', or check --url and --namespace"
    columns = ("topic", "messages", "first", "last", "bytes", "groups")
    session.say_all(rows, Listing(columns, ("bytes", "first", "last"), empty))


@command("groups", "orders", "orders --json", group=topic)
@on_topic
def groups(session: Session, topic: Topic) -> None:
    """List a topic's groups with their positions and leased messages. Paused groups are marked."""
    rows = []
    for name, lag in _lags(session, topic, group_names(session, topic)):
        record = group_record(name, lag)
        rows.append(record if session.as_json else record | {"paused": "paused" * lag.paused})
    columns = ("group", "settled", "handed_out", "held", "lag", "out_of_range", "paused")
    empty = f"{topic.name} has no groups; a first poll or 'jobq topic subscribe' creates a group"
    session.say_all(rows, Listing(columns, GROUP_DROPS, empty))


def _lags(session: Session, topic: Topic, names: Iterable[str]) -> Iterator[tuple[str, Lag]]:
    for name in names:
        with session.tolerating(name, "group"):
            try:
                yield name, topic.group(name).lag()
            except GroupNotFoundError as error:
                session.problem(f"group {name}", error)


@command(
    "subscribe",
    "orders --group billing",
    "orders --group billing --start 1h --out-of-range error",
    group=topic,
    operation="topic-subscribe",
)
@on_topic
@group_option
@start_option
@option(
    "--out-of-range earliest|latest|error", "How to continue if the next message was dropped.", default="earliest"
)  # fmt: skip
def subscribe(session: Session, topic: Topic, group: str, start: Any, out_of_range: str) -> bool:
    """Create a group.

    Exit code 1: the group already exists, and its position stays the same.
    """
    with _operation(session, topic, group):
        made = topic.group(group).subscribe(start, out_of_range=out_of_range)
    record = {"topic": topic.name, "group": group, "made": made}
    session.say(record, f"{group}: {'created' if made else 'already exists'}")
    return made


@command("unsubscribe", "orders --group billing", group=topic, operation="topic-unsubscribe")
@on_any_topic
@group_option
def unsubscribe(session: Session, topic: Topic | RedismqTopic, group: str) -> bool:
    """Delete a group. A new group of the same name reads the topic from its start.

    Exit code 1: there is no such group.
    """
    gone = True
    with _operation(session, topic, group):
        if isinstance(topic, RedismqTopic):
            topic.reader(group).unsubscribe()
        elif is_name("group", os.fsencode(group)):
            gone = topic.group(group).unsubscribe()
        else:
            gone = topic.forget_group(os.fsencode(group))
    record = {"topic": topic.name, "group": group, "forgotten": gone}
    session.say(record, f"{group}: {'deleted' if gone else 'no such group'}")
    return gone


@command(
    "seek",
    "orders --group billing --to earliest",
    "orders --group billing --to 1000",
    "orders --group billing --to 2026-11-21T08:00",
    group=topic,
    operation="topic-seek",
)
@on_any_topic
@group_option
@option(
    "--to", "place", "earliest, latest, an index, 1h (ago) or a time.", type=POSITION, required=True
)
def seek(session: Session, topic: Topic | RedismqTopic, group: str, place: Any) -> None:
    """Move a group to another position.

    The group's readers can no longer commit messages that they have leased.
    """
    with _operation(session, topic, group, f" to:{place}"):
        if isinstance(topic, RedismqTopic):
            if isinstance(place, datetime):
                raise ConfigError(
                    "redismq's layout doesn't store timestamps; use earliest, latest or an index"
                )
            following = topic.reader(group).seek(place)
        else:
            following = topic.group(group).seek(place)
    record = {"topic": topic.name, "group": group, "next": following}
    session.say(record, f"{group}: next message is {following}")


@command("peek", "orders --group billing", "orders --group billing -n 1 --json", group=topic)
@on_any_topic
@group_option
@limit_option(10, 1000)
def peek(session: Session, topic: Topic | RedismqTopic, group: str, limit: int) -> bool:
    """Print the next messages of a group. The group's position doesn't change.

    Exit code 1: there is no new message.
    """
    if isinstance(topic, RedismqTopic):
        seen = print_messages(
            session, islice(topic.read(topic.reader(group).lag().settled + 1), limit)
        )
    else:
        seen = print_messages(session, topic.group(group).peek(limit))
    if not seen:
        session.note(f"{topic.name} has no new messages for the group {group}")
    return bool(seen)


@command("pause", "orders --group billing", group=topic, operation="topic-pause")
@on_topic
@group_option
def pause(session: Session, topic: Topic, group: str) -> None:
    """Stop delivering messages to a group until it is resumed. The group can still commit leased messages."""
    with _operation(session, topic, group):
        topic.group(group).pause()
    session.say({"topic": topic.name, "group": group, "paused": True}, f"{group}: paused")


@command("resume", "orders --group billing", group=topic, operation="topic-resume")
@on_topic
@group_option
def resume(session: Session, topic: Topic, group: str) -> None:
    """Resume delivery to a paused group."""
    with _operation(session, topic, group):
        topic.group(group).resume()
    session.say({"topic": topic.name, "group": group, "paused": False}, f"{group}: resumed")


@command("describe", "orders", "orders --json", group=topic)
@on_topic
def describe(session: Session, topic: Topic) -> None:
    """Show a topic's size, retention and groups."""
    group_names(session, topic)
    facts = topic.describe()
    lines = [
        f"{topic.name}: {counted(facts.messages, 'message')}, index {facts.first} to {facts.last}, "
        f"about {counted(facts.nbytes, 'byte')}",
        f"  appended  {output.moment(facts.oldest_at) or '-'} to {output.moment(facts.newest_at) or '-'}",
        f"  keeps     {_kept(facts.limits)}",
        f"  groups    {', '.join(facts.groups) or '-'}",
    ]
    if facts.compacted_to or facts.compacting:
        lines.append(
            f"  compacted up to {facts.compacted_to}" + ", more pending" * facts.compacting
        )
    session.say(description_record(topic.name, facts), *lines)


@command(
    "lag",
    "orders",
    "orders --group billing --json",
    "orders --group billing --layout redismq",
    group=topic,
)
@on_any_topic
@option("-g, --group NAME", "Show one group.  [default: all]")
def lag(session: Session, topic: Topic | RedismqTopic, group: str | None) -> None:
    """Show how far behind groups are: the number of uncommitted messages, and the age of the oldest.

    After compaction, or if redismq messages have expired, the number is an upper bound.
    """
    if isinstance(topic, RedismqTopic):
        lags = [(group, topic.reader(group).lag())] if group else []
    else:
        lags = list(_lags(session, topic, [group] if group else group_names(session, topic)))
    rows = [lag_record(name, lag) for name, lag in lags]
    columns = ("group", "lag", "age_ms", "settled", "last", "held", "expired", "skipped")
    empty = f"{topic.name} has no listable groups; name a group with --group"
    session.say_all(rows, Listing(columns, GROUP_DROPS, empty))


@command(
    "retention",
    "orders",
    "orders --max-age 7d --max-count 1000000",
    "orders --max-bytes 0 --apply",
    "orders --before 1000",
    group=topic,
    operation="topic-retention",
)
@on_topic
@option("--max-age DURATION", "Keep messages this long; 0 for no limit.")
@option("--max-count", "Maximum number of messages; 0: unlimited.", type=click.IntRange(0))
@option("--max-bytes", "Approximate number of bytes; 0: unlimited.", type=click.IntRange(0))
@option("--apply", "Drop messages over the limits now instead of at the next appends.")
@option("--before", "Drop all messages before this index now.", type=click.IntRange(1))
def retention(
    session: Session, topic: Topic, apply: bool, before: int | None, **limits: Any
) -> None:
    """Show or set how many messages a topic keeps, and for how long. Limits that are not given stay the same."""
    asked = {name: value for name, value in limits.items() if value is not None}
    trims = apply or before is not None
    said = "".join(f" {name.replace('_', '-')}:{value:g}" for name, value in asked.items())
    said += " apply:yes" * apply + (f" before:{before}" if before is not None else "")
    first: int | None = None
    with _operation(session, topic, "", said, when=bool(asked) or trims):
        now = topic.set_limits(**limits) if asked else topic.limits()
        if trims:
            first = topic.trim(before)
    record = {"topic": topic.name, **structs.asdict(now)}
    text = f"{topic.name}: keeps {_kept(now)}"
    if first is not None:
        record["first"] = first
        text += f"; starts at {first}"
    session.say(record, text)


@command(
    "compaction",
    "prices",
    "prices on --tombstones 1d",
    "prices --run",
    "prices off",
    group=topic,
    operation="topic-compaction",
)
@on_topic
@click.argument("switch", type=click.Choice(["on", "off"]), required=False)
@option("--tombstones DURATION", "How long to keep tombstones.  [default: 1d]")
@option("--run", "Compact now instead of at the next appends.")
def compaction(
    session: Session, topic: Topic, switch: str | None, tombstones: float | None, run: bool
) -> None:
    """Show or set whether a topic keeps only the newest message of each key.

    Messages without a key are kept.
    """
    sets = bool(switch) or tombstones is not None
    said = f" switch:{switch}" * bool(switch) + " run:yes" * run
    with _operation(session, topic, "", said, when=sets or run):
        if sets:
            topic.set_limits(compact=switch == "on" if switch else None, tombstones=tombstones)
        if run:
            topic.compact()
    facts = topic.describe()
    record = {
        "topic": topic.name, "compact": facts.limits.compact, "tombstone_ms": facts.limits.tombstone_ms,
        "compacted_to": facts.compacted_to, "messages": facts.messages,
    }  # fmt: skip
    word = "on" if facts.limits.compact else "off"
    upto = f"compacted up to {facts.compacted_to}, {counted(facts.messages, 'message')}"
    session.say(record, f"{topic.name}: compaction {word}, {upto}")


@command("delete", "orders", "orders --yes", group=topic, operation="topic-delete")
@name_argument
@yes_option
@layout_option
def delete(session: Session, name: str, yes: bool, layout: str) -> bool:
    """Delete a topic and its groups. In redismq's layout, the groups and their positions stay."""
    written = os.fsencode(name)
    if layout == "jobq" and not is_name("topic", written):
        session.confirmed(f"Remove {name} from the list of topics?", yes)
        listed = written in strange_topic_names(session.client)
        with session.operation("", f"topic:{name}"):
            forget_topic(session.client, written)
    else:
        topic, listed = _laid_out(session, name, layout), True
        session.confirmed(f"Delete topic {name} with all its messages?", yes)
        with _operation(session, topic):
            topic.delete()
    session.say(
        {"topic": name, "deleted": listed}, f"{name}: {'deleted' if listed else 'no such topic'}"
    )
    return listed


def _operation(
    session: Session, topic: Topic | RedismqTopic, group: str = "", more: str = "", *, when: bool = True
) -> AbstractContextManager[Performed]:  # fmt: skip
    of_group = f" group:{group}" if group else ""
    return session.operation("", f"topic:{topic.name}{of_group}{more}", when=when)


def _kept(limits: Retention) -> str:
    told = [
        f"messages for {limits.max_age_ms / 1000:,g} s" * (limits.max_age_ms > 0),
        f"{counted(limits.max_count, 'message')}" * (limits.max_count > 0),
        f"about {counted(limits.max_bytes, 'byte')}" * (limits.max_bytes > 0),
        "the latest message per key" * limits.compact,
    ]
    return ", ".join(filter(None, told)) or "everything"
