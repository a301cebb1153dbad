"""`jobq rsmq`: the commands of rsmqctl for RSMQ's queues, and more."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from jobq.cli import exits, output
from jobq.cli.options import (
    Option,
    group,
    limit_option,
    offset_option,
    option,
    yes_option,
)
from jobq.cli.session import Session, command
from jobq.errors import ConfigError
from jobq.protocols.rsmq import Rsmq, RsmqMessage
from jobq.protocols.rsmq.bridge import Bridge
from jobq.protocols.rsmq.checks import can_name
from jobq.protocols.rsmq.errors import QueueExistsError, QueueNotFoundError, RsmqError

REDIS_URL, VERBOSE = "jobq.rsmq.redis_url", "jobq.rsmq.verbose"

ns_option = option(
    "--ns TEXT",
    "First part of RSMQ's keys; on a Cluster '{rsmq}'.",
    default="rsmq",
    shared=("JOBQ_RSMQ_NS",),
)
realtime_option = option("--realtime", "Publish after every send.", shared=("JOBQ_RSMQ_REALTIME",))
name_option = option("-n, --name QUEUE", "Name of the queue.", required=True)
id_option = option("-i, --message-id ID", "Id of the message.", required=True)


def opened(session: Session, ns: str, realtime: bool = False) -> Rsmq:
    """Return RSMQ on the server that --url, -r or the environment names, in this order."""
    ctx = click.get_current_context()
    given = ctx.meta.get(REDIS_URL)
    if given and ctx.get_parameter_source("url") is not ParameterSource.COMMANDLINE:
        session = replace(session, url=given)
    return Rsmq(session.client, ns, realtime)


@contextmanager
def reported(failed: str) -> Iterator[None]:
    """End the command with code 1 on an error of RSMQ; `failed` says what failed."""
    try:
        yield
    except RsmqError as error:
        name = click.get_current_context().params.get("name")
        text = f"{failed} ({error})"
        if isinstance(error, QueueNotFoundError):
            text = f"No such queue: {name}"
        elif isinstance(error, QueueExistsError):
            text = f"Queue already exists: {name}"
        fail(text, error)


def fail(text: str, error: RsmqError | None = None) -> None:
    """End the command with code 1."""
    ctx = click.get_current_context()
    if error and ctx.meta.get(VERBOSE):
        text = f"{text} [{error.name}: {error}]"
    click.echo(output.escaped(text), err=True)
    ctx.exit(exits.NO)


@group(
    "rsmq",
    "queue create -n mails",
    'message send -n mails -m "Hello, World"',
    "message receive -n mails",
)
@click.option(
    "-r",
    "--redis-url",
    cls=Option,
    metavar="URL",
    help="URL of the server, like --url of each command.",
)
@click.option(
    "-v", "--verbose", cls=Option, is_flag=True, help="Print RSMQ's name of an error, too."
)
@click.pass_context
def rsmq(ctx: click.Context, redis_url: str | None, verbose: bool) -> None:
    """Use RSMQ queues, as rsmqctl does.

    RSMQ's clients in other languages can use the same queues. Each message is delivered at least once.
    Commands, flags and output are those of rsmqctl, so -n is the queue's name here. Exit code 1: the command
    failed, and the reason is on stderr.
    """
    ctx.meta[REDIS_URL], ctx.meta[VERBOSE] = redis_url, verbose


@command("bridge", "--realtime", "< calls.jsonl", group=rsmq)
@ns_option
@realtime_option
def bridge(session: Session, ns: str, realtime: bool) -> None:
    """Serve RSMQ's Node methods on stdin and stdout, one JSON call and answer a line.

    {"n": 1, "method": "sendMessage", "options": {"qname": "mails", "message": "x"}} is answered by
    {"n": 1, "result": "..."} or {"n": 1, "error": {"name": ..., "message": ...}}. Methods and options are those
    of RSMQ for Node. Up to 1,000 calls may be in flight.
    """
    rsmq = opened(session, ns, realtime)
    Bridge(rsmq.client, rsmq.requests).serve(sys.stdin.fileno(), sys.stdout.fileno())


@group("queue", "list", "create -n mails -t 60", parent=rsmq)
def queue() -> None:
    """Make, show, change and delete queues."""


@command("list", "", "--ns '{rsmq}'", group=queue)
@ns_option
def list_(session: Session, ns: str) -> None:
    """Print the names of the queues as a JSON array.

    Names on the list that cannot be valid are reported on stderr.
    """
    with reported("Failed to list the queues"):
        names = opened(session, ns).list_queues()
    click.echo(output.json_text([name for name in names if can_name(name)]))
    for name in names:
        if not can_name(name):
            text = (
                f"{name!r} is on the list and can't be a queue's name; 'queue delete -n' removes it"
            )
            click.echo(output.escaped(text), err=True)


@command("create", "-n mails -t 60 -d 5 -m -1", group=queue)
@name_option
@option(
    "-t, --visibility-timeout SECONDS",
    "vt",
    "How long a received message is hidden.",
    key="vt",
    type=int,
    default=30,
)
@option("-d, --delay SECONDS", "How long a sent message is hidden.", type=int, default=0)
@option(
    "-m, --maxsize BYTES", "Longest message, 1024 to 65536; -1 for any.", type=int, default=65535
)
@ns_option
def create(session: Session, name: str, vt: int, delay: int, maxsize: int, ns: str) -> None:
    """Make a queue.

    Exit code 1: the queue exists already.
    """
    with reported(f"Failed to create queue: {name}"):
        opened(session, ns).create_queue(name, vt, delay, maxsize)
    _say(session, name, "created")


@command("describe", "-n mails", group=queue)
@name_option
@ns_option
def describe(session: Session, name: str, ns: str) -> None:
    """Print settings, totals and counts of a queue as JSON."""
    with reported(f"Failed to describe queue: {name}"):
        attributes = opened(session, ns).get_queue_attributes(name)
    click.echo(output.json_line(attributes.as_dict()))


@command("set", "-n mails -t 120", group=queue)
@name_option
@option(
    "-t, --visibility-timeout SECONDS",
    "vt",
    "How long a received message is hidden.",
    key="vt",
    type=int,
)
@option("-d, --delay SECONDS", "How long a sent message is hidden.", type=int)
@option("-m, --maxsize BYTES", "Longest message, 1024 to 65536; -1 for any.", type=int)
@ns_option
def set_(session: Session, name: str, ns: str, **settings: Any) -> None:
    """Change settings of a queue, and print what describe prints."""
    with reported(f"Failed to set attributes of queue: {name}"):
        attributes = opened(session, ns).set_queue_attributes(name, **settings)
    click.echo(output.json_line(attributes.as_dict()))


@command("delete", "-n mails", group=queue)
@name_option
@ns_option
def delete_queue(session: Session, name: str, ns: str) -> None:
    """Delete a queue with all its messages."""
    with reported(f"Failed to delete queue: {name}"):
        opened(session, ns).delete_queue(name)
    _say(session, name, "deleted")


@command("clear", "-n mails --yes", group=queue)
@name_option
@ns_option
@yes_option
def clear(session: Session, name: str, ns: str, yes: bool) -> None:
    """Delete all messages of a queue, hidden ones too; the queue stays."""
    session.confirmed(f"Delete all messages of {name}?", yes)
    with reported(f"Failed to clear queue: {name}"):
        gone = opened(session, ns).purge(name)
    session.say({"queue": name, "purged": gone}, f"{name}: {gone:,} messages deleted")


@command("repair", "-n mails", group=queue)
@name_option
@ns_option
def repair(session: Session, name: str, ns: str) -> None:
    """Remove what crashed clients left: ids without a body, fields of deleted messages."""
    with reported(f"Failed to repair queue: {name}"):
        removed = opened(session, ns).repair(name)
    text = f"{name}: {removed.phantoms:,} ids without a body, {removed.fields:,} fields without a message"
    session.say({"queue": name, **removed._asdict()}, text)


@command("redrive", "-n mails-dead --to mails", "-n mails-dead --to mails --limit 1", group=queue)
@name_option
@option("--to QUEUE", "target", "Queue to move them to.", required=True)
@option("--limit N", "Move at most N.  [default: all]", type=click.IntRange(1))
@ns_option
def redrive(session: Session, name: str, target: str, limit: int | None, ns: str) -> None:
    """Move visible messages to another queue, for example from a dead-letter queue back."""
    with reported(f"Failed to redrive from {name} to {target}"):
        moved = opened(session, ns).redrive(name, target, limit)
    session.say(
        {"queue": name, "to": target, "moved": moved},
        f"{name}: {moved:,} messages moved to {target}",
    )


def _say(session: Session, name: str, action: str) -> None:
    if session.as_json:
        session.say({"queue": name, "action": action}, "")


@group("message", 'send -n mails -m "Hello, World"', "receive -n mails -t 60", parent=rsmq)
def message() -> None:
    """Send, receive, show and delete messages."""


@command(
    "send", "-n mails -m 'Hello, World' -d 60", "-n mails --stdin < calls.jsonl", group=message
)
@name_option
@option("-m, --message TEXT", "text", "The message.")
@option("--stdin", "Send each line of stdin as a message.")
@option("-d, --delay SECONDS", "How long the message is hidden.  [default: the queue's]", type=int)
@realtime_option
@ns_option
def send(
    session: Session, name: str, text: str | None, stdin: bool, delay: int | None, **how: Any
) -> None:
    """Send a message, and print its id."""
    if (text is None) is not stdin:
        raise ConfigError("a message comes from -m or from --stdin; give one of them")
    rsmq = opened(session, how["ns"], how["realtime"])
    what = "from stdin" if text is None else text
    with reported(f"Failed to send message: {what}"):
        if text is None:
            lines = [line.rstrip(b"\r\n") for line in sys.stdin.buffer]
            ids = rsmq.send_messages(name, lines, delay)
        else:
            ids = [rsmq.send_message(name, text, delay)]
    for id_ in ids:
        session.say({"queue": name, "id": id_}, id_)


@command("receive", "-n mails", "-n mails -t 0 --wait 20s", group=message)
@name_option
@option(
    "-t, --visibility-timeout SECONDS",
    "vt",
    "How long the message is hidden, 0 allowed.  [default: the queue's]",
    key="vt",
    type=int,
)
@option("--wait DURATION", "Wait this long for a message.", default="0s")
@ns_option
def receive(session: Session, name: str, vt: int | None, wait: float, ns: str) -> None:
    """Receive the first visible message, and print it as JSON.

    `ts` is when it was first received, in ms since 1970.
    """
    with reported(f"Failed to receive from queue: {name}"):
        _show(session, name, opened(session, ns).receive_message(name, vt, wait=wait))


@command("pop", "-n mails", group=message)
@name_option
@ns_option
def pop(session: Session, name: str, ns: str) -> None:
    """Receive the first visible message and delete it at once."""
    with reported(f"Failed to pop from queue: {name}"):
        _show(session, name, opened(session, ns).pop_message(name))


@command("delete", "-n mails -i hochb5vvsh0123456789abcdefghijkl", group=message)
@name_option
@id_option
@ns_option
def delete_message(session: Session, name: str, message_id: str, ns: str) -> None:
    """Delete a message.

    Exit code 1: there is no message of this id.
    """
    failed = f"Failed to delete message ID: {message_id}"
    with reported(failed):
        if not opened(session, ns).delete_message(name, message_id):
            fail(failed)
    if session.as_json:
        session.say({"queue": name, "id": message_id, "action": "deleted"}, "")


@command("visibility", "-n mails -i hochb5vvsh0123456789abcdefghijkl -t 600", group=message)
@name_option
@id_option
@option(
    "-t, --visibility-timeout SECONDS",
    "vt",
    "Seconds until the message is visible.",
    key="vt",
    type=int,
    required=True,
)
@ns_option
def visibility(session: Session, name: str, message_id: str, vt: int, ns: str) -> None:
    """Set when a message becomes visible again."""
    failed = f"Failed to change visibility timeout for message ID: {message_id}"
    with reported(failed):
        if not opened(session, ns).change_message_visibility(name, message_id, vt):
            fail(failed)
    text = f"Message ID: {message_id} visibility timeout set to {vt}s"
    session.say({"queue": name, "id": message_id, "vt": vt}, text)


@command("peek", "-n mails", "-n mails --place all --limit 1000", group=message)
@name_option
@option("--place visible|hidden|all", "Which messages.", default="visible")
@offset_option
@limit_option(100, 1000, short=False)
@ns_option
def peek(session: Session, name: str, place: str, offset: int, limit: int, ns: str) -> None:
    """List messages without receiving them, one JSON object a line, the next message first."""
    with reported(f"Failed to peek into queue: {name}"):
        found = opened(session, ns).peek(name, place, offset, limit)
    for one in found:
        click.echo(output.json_line({**_record(session, one), "visible_at": one.visible_at}))


def _show(session: Session, name: str, found: RsmqMessage | None) -> None:
    if found:
        click.echo(output.json_line(_record(session, found)))
    else:
        session.say({}, f"No messages on queue: {name}")


def _record(session: Session, one: RsmqMessage) -> dict[str, Any]:
    """As rsmqctl prints it; with --json as RSMQ's Node client gives it."""
    if session.as_json:
        return {**one.as_dict(), "receipt": one.receipt}
    return {"id": one.id, "message": one.message, "rc": one.rc, "ts": one.fr}
