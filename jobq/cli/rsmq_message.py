"""`jobq rsmq message`: send, receive, look, delete."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from jobq.cli import output
from jobq.cli.options import DURATION, Group, command, option
from jobq.cli.rsmq_session import (
    fail,
    id_option,
    name_option,
    ns_option,
    opened,
    realtime_option,
    telling,
)
from jobq.cli.session import Session
from jobq.errors import ConfigError

if TYPE_CHECKING:
    from jobq.protocols.rsmq import Message


@click.group("message", cls=Group)
def message() -> None:
    """Messages of a queue."""


message.examples = """
    jobq rsmq message send -n mails -m "Hello, World"
    jobq rsmq message receive -n mails -t 60
"""


@command(
    "send",
    examples="""
        jobq rsmq message send -n mails -m 'Hello, World' -d 60
        jobq rsmq message send -n mails --stdin < calls.jsonl
    """,
)
@name_option
@option("-m", "--message", "text", metavar="TEXT", help="The message.")
@option("--stdin", is_flag=True, help="Send each line of stdin as a message.")
@option(
    "-d",
    "--delay",
    type=int,
    metavar="SECONDS",
    help="How long it is hidden.  [default: the queue's]",
)
@realtime_option
@ns_option
def send(
    session: Session, name: str, text: str | None, stdin: bool, delay: int | None, **how: Any
) -> None:
    """Send a message; prints its id."""
    if (text is None) is not stdin:
        raise ConfigError("a message comes from -m or from --stdin; give one of them")
    rsmq = opened(session, how["ns"], how["realtime"])
    with telling(f"Failed to send message: {'from stdin' if text is None else text}"):
        if text is None:
            lines = [line.rstrip(b"\r\n") for line in sys.stdin.buffer]
            ids = rsmq.send_messages(name, lines, delay)
        else:
            ids = [rsmq.send_message(name, text, delay)]
    for id_ in ids:
        session.say({"queue": name, "id": id_}, id_)


@command(
    "receive",
    examples="jobq rsmq message receive -n mails\njobq rsmq message receive -n mails -t 0 --wait 20s",
)
@name_option
@option(
    "-t",
    "--visibility-timeout",
    "vt",
    key="vt",
    type=int,
    metavar="SECONDS",
    help="How long it is hidden, 0 too.  [default: the queue's]",
)
@option("--wait", type=DURATION, default=0, metavar="DURATION", help="Wait for one so long.")
@ns_option
def receive(session: Session, name: str, vt: int | None, wait: float, ns: str) -> None:
    """Receive the first visible message, as JSON; `ts` is when it was first received, ms."""
    with telling(f"Failed to receive from queue: {name}"):
        _show(session, name, opened(session, ns).receive_message(name, vt, wait=wait))


@command("pop", examples="jobq rsmq message pop -n mails")
@name_option
@ns_option
def pop(session: Session, name: str, ns: str) -> None:
    """Receive the first visible message and delete it at once."""
    with telling(f"Failed to pop from queue: {name}"):
        _show(session, name, opened(session, ns).pop_message(name))


@command("delete", examples="jobq rsmq message delete -n mails -i hochb5vvsh0123456789abcdefghijkl")
@name_option
@id_option
@ns_option
def delete(session: Session, name: str, message_id: str, ns: str) -> None:
    """Delete a message. Exit code 1: there is none of this id."""
    failed = f"Failed to delete message ID: {message_id}"
    with telling(failed):
        if not opened(session, ns).delete_message(name, message_id):
            fail(failed)
    if session.as_json:
        session.say({"queue": name, "id": message_id, "action": "deleted"}, "")


@command(
    "visibility",
    examples="jobq rsmq message visibility -n mails -i hochb5vvsh0123456789abcdefghijkl -t 600",
)
@name_option
@id_option
@option(
    "-t",
    "--visibility-timeout",
    "vt",
    key="vt",
    type=int,
    required=True,
    metavar="SECONDS",
    help="Visible in so many seconds.",
)
@ns_option
def visibility(session: Session, name: str, message_id: str, vt: int, ns: str) -> None:
    """Say when a message becomes visible again."""
    failed = f"Failed to change visibility timeout for message ID: {message_id}"
    with telling(failed):
        if not opened(session, ns).change_message_visibility(name, message_id, vt):
            fail(failed)
    told = f"Message ID: {message_id} visibility timeout set to {vt}s"
    session.say({"queue": name, "id": message_id, "vt": vt}, told)


@command(
    "peek",
    examples="jobq rsmq message peek -n mails\njobq rsmq message peek -n mails --place all --limit 1000",
)
@name_option
@option(
    "--place",
    type=click.Choice(["visible", "hidden", "all"]),
    default="visible",
    show_default=True,
    help="Which.",
)
@option("--offset", type=click.IntRange(0), default=0, show_default=True, help="Skip so many.")
@option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Show so many."
)
@ns_option
def peek(session: Session, name: str, place: str, offset: int, limit: int, ns: str) -> None:
    """Look at messages without receiving them: a JSON object a line, the next first."""
    with telling(f"Failed to peek into queue: {name}"):
        found = opened(session, ns).peek(name, place, offset, limit)
    for one in found:
        click.echo(output.json_line({**_record(session, one), "visible_at": one.visible_at}))


def _show(session: Session, name: str, found: Message | None) -> None:
    if found:
        click.echo(output.json_line(_record(session, found)))
    else:
        session.say({}, f"No messages on queue: {name}")


def _record(session: Session, one: Message) -> dict[str, Any]:
    """As rsmqctl prints it; with --json as RSMQ's Node client gives it."""
    if session.as_json:
        return {**one.as_dict(), "receipt": one.receipt}
    return {"id": one.id, "message": one.message, "rc": one.rc, "ts": one.fr}


for verb in (send, receive, pop, delete, visibility, peek):
    message.add_command(verb)
