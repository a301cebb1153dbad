"""Verbs that steer the groups of a topic."""

from __future__ import annotations

import os
from datetime import datetime
from itertools import islice
from typing import Any

import click

from jobq.cli import exits
from jobq.cli.options import command, option
from jobq.cli.session import Session
from jobq.cli.topic_places import (
    PLACE,
    group_names,
    group_option,
    layout_option,
    name_argument,
    print_message,
    redismq_of,
    tolerating,
    topic_of,
)
from jobq.errors import ConfigError
from jobq.queue.keys import is_name

POLICIES = ("earliest", "latest", "error")


@command("groups", examples="jobq topic groups orders\njobq topic groups orders --json")
@name_argument
def groups(session: Session, name: str) -> None:
    """Show the groups of TOPIC: where each is, what it holds, whether it is paused."""
    topic = topic_of(session, name)
    rows = []
    for group in group_names(session, topic):
        with tolerating(session, group):
            lag = topic.group(group).lag()
            paused: Any = lag.paused if session.as_json else "paused" * lag.paused
            rows.append({"group": group, "settled": lag.settled, "handed_out": lag.handed_out, "held": lag.held,
                         "lag": lag.messages, "out_of_range": lag.out_of_range, "paused": paused})  # fmt: skip
    if not rows:
        session.note(
            f"{name} has no group; one is made by its first poll, or by jobq topic subscribe"
        )
        return
    session.say_all(rows, {column: column for column in rows[0]})


@command(
    "subscribe",
    examples="""
        jobq topic subscribe orders --group billing
        jobq topic subscribe orders --group billing --start 1h --out-of-range error
    """,
)
@name_argument
@group_option
@option(
    "--start",
    type=PLACE,
    default="earliest",
    show_default=True,
    help="earliest, latest, an index, 1h (ago), a moment.",
)
@option("--out-of-range", type=click.Choice(POLICIES), default="earliest", show_default=True,
        help="Where to go on when the next message was dropped.")  # fmt: skip
def subscribe(session: Session, name: str, group: str, start: Any, out_of_range: str) -> int:
    """Make a group of TOPIC. Exit code 1: it is there already, and stays where it is."""
    made = topic_of(session, name).group(group).subscribe(start, out_of_range=out_of_range)
    session.say(
        {"topic": name, "group": group, "made": made},
        f"{group}: {'made' if made else 'is there already'}",
    )
    return exits.OK if made else exits.NO


@command("unsubscribe", examples="jobq topic unsubscribe orders --group billing")
@name_argument
@group_option
@layout_option
def unsubscribe(session: Session, name: str, group: str, layout: str) -> int:
    """Forget a group of TOPIC: reading for it again replays what is there. Exit code 1: there was none."""
    if layout == "redismq":
        redismq_of(session, name).reader(group).unsubscribe()
        gone = True
    elif is_name("group", os.fsencode(group)):
        gone = topic_of(session, name).group(group).unsubscribe()
    else:
        gone = topic_of(session, name).forget_group(os.fsencode(group))
    session.say(
        {"topic": name, "group": group, "forgotten": gone},
        f"{group}: {'forgotten' if gone else 'no such group'}",
    )
    return exits.OK if gone else exits.NO


@command(
    "seek",
    examples="""
        jobq topic seek orders --group billing --to earliest
        jobq topic seek orders --group billing --to 1000
        jobq topic seek orders --group billing --to 2026-11-21T08:00
    """,
)
@name_argument
@group_option
@option(
    "--to",
    "place",
    type=PLACE,
    required=True,
    help="earliest, latest, an index, 1h (ago), a moment.",
)
@layout_option
def seek(session: Session, name: str, group: str, place: Any, layout: str) -> None:
    """Move a group of TOPIC. What its readers hold they can't commit any more."""
    if layout == "redismq":
        if isinstance(place, datetime):
            raise ConfigError("redismq's layout keeps no times; give earliest, latest or an index")
        following = redismq_of(session, name).reader(group).seek(place)
    else:
        following = topic_of(session, name).group(group).seek(place)
    session.say({"topic": name, "group": group, "next": following}, f"{group}: next is {following}")


@command(
    "peek",
    examples="jobq topic peek orders --group billing\njobq topic peek orders --group billing -n 1 --json",
)
@name_argument
@group_option
@option(
    "-n", "--count", type=click.IntRange(1, 1000), default=10, show_default=True, help="At most."
)
@layout_option
def peek(session: Session, name: str, group: str, count: int, layout: str) -> int:
    """Look at what a group of TOPIC gets next; nothing moves. Exit code 1: there is nothing new."""
    if layout == "redismq":
        topic = redismq_of(session, name)
        found = list(islice(topic.read(topic.reader(group).lag().settled + 1), count))
    else:
        found = topic_of(session, name).group(group).peek(count)
    for message in found:
        print_message(session, message)
    return exits.OK if found else exits.NO


@command("pause", examples="jobq topic pause orders --group billing")
@name_argument
@group_option
def pause(session: Session, name: str, group: str) -> None:
    """Hand a group of TOPIC nothing until resume. It still commits what it holds."""
    topic_of(session, name).group(group).pause()
    session.say({"topic": name, "group": group, "paused": True}, f"{group}: paused")


@command("resume", examples="jobq topic resume orders --group billing")
@name_argument
@group_option
def resume(session: Session, name: str, group: str) -> None:
    """End a pause of a group of TOPIC."""
    topic_of(session, name).group(group).resume()
    session.say({"topic": name, "group": group, "paused": False}, f"{group}: resumed")
