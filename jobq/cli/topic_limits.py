"""Verbs that look at a whole topic, or say what it keeps."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from jobq.cli import exits, output
from jobq.cli.options import DURATION, command, option, yes_option
from jobq.cli.session import Session
from jobq.cli.topic_places import (
    group_names,
    layout_option,
    name_argument,
    redismq_of,
    tolerating,
    topic_of,
)
from jobq.queue.keys import is_name

if TYPE_CHECKING:
    from jobq.topics import Limits


@command("describe", examples="jobq topic describe orders\njobq topic describe orders --json")
@name_argument
def describe(session: Session, name: str) -> None:
    """Show what TOPIC holds, what it keeps, and who reads it."""
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
    examples="""
        jobq topic lag orders
        jobq topic lag orders --group billing --json
        jobq topic lag orders --group billing --layout redismq
    """,
)
@name_argument
@option("-g", "--group", metavar="NAME", help="Of one group only.  [default: all there are]")
@layout_option
def lag(session: Session, name: str, group: str | None, layout: str) -> None:
    """Show how far behind the groups of TOPIC are: messages not settled, and the age of the oldest.

    Where compaction left holes, or messages of redismq expired, the number is an upper bound.
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
    if not rows and session.problems:
        return
    if not rows:
        session.note(f"{name} has no group that can be listed; name one by --group")
        return
    session.say_all(rows, {column: column for column in rows[0]})


@command(
    "retention",
    examples="""
        jobq topic retention orders
        jobq topic retention orders --max-age 7d --max-count 1000000
        jobq topic retention orders --max-bytes 0 --apply
        jobq topic retention orders --before 1000
    """,
)
@name_argument
@option("--max-age", type=DURATION, help="Keep messages so long; 0 for ever.")
@option("--max-count", type=click.IntRange(0), help="Keep so many; 0 all.")
@option("--max-bytes", type=click.IntRange(0), help="Keep about so many bytes; 0 all.")
@option("--apply", is_flag=True, help="Drop now what is over: else that comes with the appends.")
@option("--before", type=click.IntRange(1), help="Drop all below this index now.")
def retention(session: Session, name: str, apply: bool, before: int | None, **limits: Any) -> None:
    """Show or set what TOPIC keeps. What isn't given stays as it is."""
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
    "compaction",
    examples="""
        jobq topic compaction prices
        jobq topic compaction prices on --tombstones 1d
        jobq topic compaction prices --run
        jobq topic compaction prices off
    """,
)
@name_argument
@click.argument("switch", type=click.Choice(["on", "off"]), required=False)
@option(
    "--tombstones", type=DURATION, help="How long the deletion of a key is kept.  [default: 1d]"
)
@option("--run", is_flag=True, help="Compact now: else that comes with the appends.")
def compaction(
    session: Session, name: str, switch: str | None, tombstones: float | None, run: bool
) -> None:
    """Show or set whether TOPIC keeps only the newest message of each key. Messages without a key all stay."""
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


@command("delete", examples="jobq topic delete orders\njobq topic delete orders --yes")
@name_argument
@yes_option
@layout_option
def delete(session: Session, name: str, yes: bool, layout: str) -> int:
    """Drop TOPIC for good, with its groups. With redismq's layout, groups keep their positions."""
    written = os.fsencode(name)
    if layout == "jobq" and not is_name("topic", written):
        session.confirmed(f"Take {name} off the list of topics?", yes)
        from jobq.topics.binding import forget_topic, strange_topic_names

        listed = written in strange_topic_names(session.client)
        forget_topic(session.client, written)
        if not listed:
            session.say({"topic": name, "deleted": False}, f"{name}: no such topic")
            return exits.NO
    else:
        topic = redismq_of(session, name) if layout == "redismq" else topic_of(session, name)
        session.confirmed(f"Drop topic {name} with all its messages?", yes)
        topic.delete()
    session.say({"topic": name, "deleted": True}, f"{name}: deleted")
    return exits.OK


def _kept(limits: Limits) -> str:
    told = [
        f"messages for {limits.max_age_ms / 1000:,g} s" * (limits.max_age_ms > 0),
        f"{limits.max_count:,} messages" * (limits.max_count > 0),
        f"about {limits.max_bytes:,} bytes" * (limits.max_bytes > 0),
        "the newest of each key" * limits.compact,
    ]
    return ", ".join(filter(None, told)) or "everything"
