"""`jobq rsmq`: the commands of rsmqctl for RSMQ's queues, and more."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import wraps
from typing import Any

import click
from click.core import ParameterSource

from jobq.cli import output
from jobq.cli.options import (
    Command,
    Function,
    Group,
    group,
    limit_option,
    offset_option,
    option,
    yes_option,
)
from jobq.cli.session import Session, command, opens
from jobq.durations import counted
from jobq.errors import ConfigError
from jobq.protocols.rsmq import Rsmq, RsmqMessage
from jobq.protocols.rsmq.bridge import Bridge
from jobq.protocols.rsmq.checks import can_name
from jobq.protocols.rsmq.errors import QueueExistsError, QueueNotFoundError, RsmqError
from jobq.queue.audit_log import Performed

REDIS_URL, VERBOSE = "jobq.rsmq.redis_url", "jobq.rsmq.verbose"

ns_option = option(
    "--ns TEXT", "Prefix of RSMQ's keys; on a Cluster '{rsmq}'.", default="rsmq", shared=("JOBQ_RSMQ_NS",)
)  # fmt: skip
realtime_option = option("--realtime", "Publish after every send.", shared=("JOBQ_RSMQ_REALTIME",))
name_option = option("-n, --name QUEUE", "Name of the queue.", required=True)
id_option = option("-i, --message-id ID", "Id of the message.", required=True)


def visible_after(text: str, **attrs: Any) -> Callable[[Function], Function]:
    """Add the option -t, --visibility-timeout."""
    return option("-t, --visibility-timeout SECONDS", "vt", text, key="vt", type=int, **attrs)


def _opened(session: Session, ns: str) -> Rsmq:
    """Return an RSMQ client for the server that --url, -r or the environment names, in this order."""
    return _publishing(session, ns, False)


def _publishing(session: Session, ns: str, realtime: bool) -> Rsmq:
    ctx = click.get_current_context()
    given = ctx.meta.get(REDIS_URL)
    if given and ctx.get_parameter_source("url") is not ParameterSource.COMMANDLINE:
        session = replace(session, url=given)
    return Rsmq(session.client, ns, realtime)


on_server = opens("rsmq", _opened, ns_option)
publishing = opens("rsmq", _publishing, realtime_option, ns_option)


def verb(
    name: str, *examples: str, group: Group, failed: str, on: Callable[[Function], Function] = on_server,
    operation: str = "",
) -> Callable[[Function], Command]:  # fmt: skip
    """Declare a command on a queue. The command receives `rsmq` and the queue's `name`.

    Args:
        failed: Error text, which may contain {names} of the command's options.
    """
    return lambda function: command(
        name, *examples, group=group, operation=operation, server="starts"
    )(reports(failed)(name_option(on(function))))


def _operation(
    session: Session, rsmq: Rsmq, name: str, more: str = ""
) -> AbstractContextManager[Performed]:
    return session.operation("", f"rsmq:{name}{more}", client=rsmq.client)


def reports(failed: str) -> Callable[[Function], Function]:
    """Make the command exit with code 1 on an error of RSMQ.

    Args:
        failed: Error text, which may contain {names} of the command's options.
    """

    def declare(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **given: Any) -> object:
            name = given.get("name")
            try:
                return function(*args, **given)
            except QueueNotFoundError as error:
                return fail(f"No such queue: {name}", error)
            except QueueExistsError as error:
                return fail(f"Queue already exists: {name}", error)
            except RsmqError as error:
                source = {"text": "from stdin"} if given.get("text") is None else {}
                return fail(f"{failed.format(**given | source)} ({error})", error)

        return call

    return declare


def fail(text: str, error: RsmqError | None = None) -> bool:
    """Print why the command failed; return False."""
    if error and click.get_current_context().meta.get(VERBOSE):
        text = f"{text} [{error.name}: {error}]"
    click.echo(output.escaped(text), err=True)
    return False


@group(
    "rsmq",
    "queue create -n mails",
    'message send -n mails -m "Hello, World"',
    "message receive -n mails",
)
@option("-r, --redis-url URL", "URL of the server, like --url of each command.")
@option("-v, --verbose", "Also print RSMQ's name of an error.")
@click.pass_context
def rsmq(ctx: click.Context, redis_url: str | None, verbose: bool) -> None:
    """Use RSMQ queues, as rsmqctl does.

    RSMQ's clients in other languages can use the same queues. Each message is delivered at least once. Commands, flags
    and output match rsmqctl, so -n is the name of the queue. Exit code 1: the command failed.
    """
    ctx.meta[REDIS_URL], ctx.meta[VERBOSE] = redis_url, verbose


@command("bridge", "--realtime", "< calls.jsonl", group=rsmq, server="awaits")
@publishing
def bridge(session: Session, rsmq: Rsmq) -> None:
    """Serve the methods of RSMQ for Node on stdin and stdout, with one JSON call or answer per line.

    {"n": 1, "method": "sendMessage", "options": {"qname": "mails", "message": "x"}} is answered by {"n": 1, "result":
    "..."} or {"n": 1, "error": {"name": ..., "message": ...}}. Methods and options match RSMQ for Node. Up to 1,000
    calls may be in flight.
    """
    Bridge(rsmq.client, rsmq.requests).serve(sys.stdin.fileno(), sys.stdout.fileno())


@group("queue", "list", "create -n mails -t 60", parent=rsmq)
def queue() -> None:
    """Create, show, change and delete queues."""


@command("list", "", "--ns '{rsmq}'", group=queue)
@reports("Failed to list the queues")
@on_server
def list_(session: Session, rsmq: Rsmq) -> None:
    """Print the names of the queues as a JSON array.

    Invalid names in the list are reported on stderr.
    """
    names = rsmq.list_queues()
    click.echo(output.json_line([name for name in names if can_name(name)]))
    for name in names:
        if not can_name(name):
            remedy = "is listed but is not a valid queue name; remove it with 'queue delete -n'"
            click.echo(output.escaped(f"{name!r} {remedy}"), err=True)


@verb(
    "create",
    "-n mails -t 60 -d 5 -m -1",
    group=queue,
    failed="Failed to create queue: {name}",
    operation="rsmq-create",
)
@visible_after("How long a received message is hidden.", default=30)
@option("-d, --delay SECONDS", "How long a sent message is hidden.", type=int, default=0)
@option(
    "-m, --maxsize BYTES",
    "Maximum message size, 1024 to 65536; -1 for any.",
    type=int,
    default=65535,
)
def create(session: Session, rsmq: Rsmq, name: str, **settings: Any) -> None:
    """Create a queue.

    Exit code 1: the queue already exists.
    """
    with _operation(session, rsmq, name):
        rsmq.create_queue(name, **settings)
    session.say({"queue": name, "action": "created"})


@verb("describe", "-n mails", group=queue, failed="Failed to describe queue: {name}")
def describe(session: Session, rsmq: Rsmq, name: str) -> None:
    """Print the settings, totals and counts of a queue as JSON."""
    click.echo(output.json_line(rsmq.get_queue_attributes(name).as_dict()))


@verb(
    "set",
    "-n mails -t 120",
    group=queue,
    failed="Failed to set attributes of queue: {name}",
    operation="rsmq-set",
)
@visible_after("How long a received message is hidden.")
@option("-d, --delay SECONDS", "How long a sent message is hidden.", type=int)
@option("-m, --maxsize BYTES", "Maximum message size, 1024 to 65536; -1 for any.", type=int)
def set_(session: Session, rsmq: Rsmq, name: str, **settings: Any) -> None:
    """Change settings of a queue, and print all its settings and counts as JSON."""
    said = "".join(f" {key}:{value}" for key, value in settings.items() if value is not None)
    with _operation(session, rsmq, name, said):
        now = rsmq.set_queue_attributes(name, **settings)
    click.echo(output.json_line(now.as_dict()))


@verb(
    "delete",
    "-n mails",
    group=queue,
    failed="Failed to delete queue: {name}",
    operation="rsmq-delete",
)
def delete_queue(session: Session, rsmq: Rsmq, name: str) -> None:
    """Delete a queue with all its messages."""
    with _operation(session, rsmq, name):
        rsmq.delete_queue(name)
    session.say({"queue": name, "action": "deleted"})


@verb(
    "purge",
    "-n mails --yes",
    group=queue,
    failed="Failed to clear queue: {name}",
    operation="rsmq-purge",
)
@yes_option
def purge(session: Session, rsmq: Rsmq, name: str, yes: bool) -> None:
    """Delete all messages of a queue, including hidden messages; the queue stays."""
    session.confirmed(f"Delete all messages of {name}?", yes)
    with _operation(session, rsmq, name) as performed:
        gone = rsmq.purge(name)
        performed.set(number=gone)
    session.say({"queue": name, "purged": gone}, f"{name}: {counted(gone, 'message')} deleted")


@verb(
    "repair",
    "-n mails",
    group=queue,
    failed="Failed to repair queue: {name}",
    operation="rsmq-repair",
)
def repair(session: Session, rsmq: Rsmq, name: str) -> None:
    """Remove leftovers of crashed clients: ids without a body, and fields of deleted messages."""
    with _operation(session, rsmq, name):
        removed = rsmq.repair(name)
    fields = counted(removed.fields, "field")
    text = f"{name}: {counted(removed.phantoms, 'id')} without a body, {fields} without a message"
    session.say({"queue": name, **removed._asdict()}, text)


@verb(
    "redrive",
    "-n mails-dead --to mails",
    "-n mails-dead --to mails --limit 1",
    group=queue,
    failed="Failed to redrive from {name} to {target}",
    operation="rsmq-redrive",
)
@option("--to QUEUE", "target", "Destination queue.", required=True)
@option("--limit N", "Move at most N.  [default: all]", type=click.IntRange(1))
def redrive(session: Session, rsmq: Rsmq, name: str, target: str, limit: int | None) -> None:
    """Move visible messages to another queue, for example back from a dead-letter queue."""
    with _operation(session, rsmq, name, f" to:{target}") as performed:
        moved = rsmq.redrive(name, target, limit)
        performed.set(number=moved)
    record = {"queue": name, "to": target, "moved": moved}
    session.say(record, f"{name}: {counted(moved, 'message')} moved to {target}")


@group("message", 'send -n mails -m "Hello, World"', "receive -n mails -t 60", parent=rsmq)
def message() -> None:
    """Send, receive, show and delete messages."""


@verb(
    "send",
    "-n mails -m 'Hello, World' -d 60",
    "-n mails --stdin < calls.jsonl",
    group=message,
    failed="Failed to send message: {text}",
    on=publishing,
)
@option("-m, --message TEXT", "text", "The message.")
@option("--stdin", "Send each line of stdin as a message.")
@option("-d, --delay SECONDS", "How long the message is hidden.  [default: the queue's]", type=int)
def send(
    session: Session, rsmq: Rsmq, name: str, text: str | None, stdin: bool, delay: int | None
) -> None:
    """Send a message, and print its id."""
    if (text is None) is not stdin:
        raise ConfigError("use either -m TEXT or --stdin for the message, and not both")
    if text is None:
        lines = [line.rstrip(b"\r\n") for line in sys.stdin.buffer]
        ids = rsmq.send_messages(name, lines, delay)
    else:
        ids = [rsmq.send_message(name, text, delay)]
    for id_ in ids:
        session.say({"queue": name, "id": id_}, id_)


@verb(
    "receive",
    "-n mails",
    "-n mails -t 0 --wait 20s",
    group=message,
    failed="Failed to receive from queue: {name}",
)
@visible_after("How long the message is hidden, 0 allowed.  [default: the queue's]")
@option("--wait DURATION", "How long to wait for a message.", default="0s")
def receive(session: Session, rsmq: Rsmq, name: str, vt: int | None, wait: float) -> None:
    """Receive the first visible message, and print it as JSON.

    `ts` is when the message was first received, in ms since 1970.
    """
    _show(session, name, rsmq.receive_message(name, vt, wait=wait))


@verb("pop", "-n mails", group=message, failed="Failed to pop from queue: {name}")
def pop(session: Session, rsmq: Rsmq, name: str) -> None:
    """Receive the first visible message and delete it immediately."""
    _show(session, name, rsmq.pop_message(name))


@verb(
    "delete",
    "-n mails -i hochb5vvsh0123456789abcdefghijkl",
    group=message,
    failed="Failed to delete message ID: {message_id}",
)
@id_option
def delete_message(session: Session, rsmq: Rsmq, name: str, message_id: str) -> bool:
    """Delete a message.

    Exit code 1: there is no message with this id.
    """
    if not rsmq.delete_message(name, message_id):
        return fail(f"Failed to delete message ID: {message_id}")
    session.say({"queue": name, "id": message_id, "action": "deleted"})
    return True


@verb(
    "visibility",
    "-n mails -i hochb5vvsh0123456789abcdefghijkl -t 600",
    group=message,
    failed="Failed to change visibility timeout for message ID: {message_id}",
)
@id_option
@visible_after("Seconds until the message is visible.", required=True)
def visibility(session: Session, rsmq: Rsmq, name: str, message_id: str, vt: int) -> bool:
    """Change the visibility timeout of a message."""
    if not rsmq.change_message_visibility(name, message_id, vt):
        return fail(f"Failed to change visibility timeout for message ID: {message_id}")
    text = f"Message ID: {message_id} visibility timeout set to {vt}s"
    session.say({"queue": name, "id": message_id, "vt": vt}, text)
    return True


@verb(
    "peek",
    "-n mails",
    "-n mails --place all --limit 1000",
    group=message,
    failed="Failed to peek into queue: {name}",
)
@option("--place visible|hidden|all", "Which messages.", default="visible")
@offset_option
@limit_option(100, 1000, short=False)
def peek(session: Session, rsmq: Rsmq, name: str, place: str, offset: int, limit: int) -> None:
    """List messages without receiving them, one JSON object per line, the next message first."""
    for msg in rsmq.peek(name, place, offset, limit):
        click.echo(output.json_line({**_record(session, msg), "visible_at": msg.visible_at}))


def _show(session: Session, name: str, msg: RsmqMessage | None) -> None:
    if msg:
        click.echo(output.json_line(_record(session, msg)))
    else:
        session.say({}, f"No messages on queue: {name}")


def _record(session: Session, msg: RsmqMessage) -> dict[str, Any]:
    """Return the message as rsmqctl prints it, or with --json as RSMQ's Node client returns it."""
    if session.as_json:
        return {**msg.as_dict(), "receipt": msg.receipt}
    return {"id": msg.id, "message": msg.message, "rc": msg.rc, "ts": msg.fr}
