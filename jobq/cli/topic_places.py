"""What the verbs of `jobq topic` share: which topic and layout, where in it, how a message is shown."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from jobq.cli import output
from jobq.cli.arguments import moment_of
from jobq.cli.options import option
from jobq.config import duration_s
from jobq.errors import ConfigError, GroupNotFoundError, JobqError

if TYPE_CHECKING:
    from jobq.cli.session import Session
    from jobq.topics import Message, RedismqTopic, Topic


class Place(click.ParamType["str | int | datetime"]):
    """earliest, latest, an index, a moment, or how long ago."""

    name = "place"

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
                f"{value!r} is no place; write earliest, latest, 42, 1h (ago) or 2026-11-21T08:00", param, ctx
            )  # fmt: skip
        return found


PLACE = Place()
name_argument = click.argument("name", metavar="TOPIC")
group_option = option("-g", "--group", metavar="NAME", required=True, help="Whose position.")
layout_option = option(
    "--layout", type=click.Choice(["jobq", "redismq"]), default="jobq", show_default=True,
    help="redismq: as its programs keep topics.",
)  # fmt: skip
COLUMNS = {"index": "index", "at": "at", "key": "key", "content": "content"}


def topic_of(session: Session, name: str) -> Topic:
    """The topic in jobq's layout."""
    from jobq.topics import Topic

    return Topic(name, session.client)


def redismq_of(session: Session, name: str) -> RedismqTopic:
    """The topic in redismq's layout."""
    from jobq.topics import RedismqTopic

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


def shown(session: Session, message: Message) -> dict[str, Any]:
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


def print_message(session: Session, message: Message) -> None:
    """One message in a line: index, time, key, content, parted by tabs."""
    facts = shown(session, message)
    if session.as_json:
        session.say(facts, "")
    else:
        cells = (output.escaped(str(facts[field])) for field in COLUMNS.values())
        click.echo("\t".join(cells))
