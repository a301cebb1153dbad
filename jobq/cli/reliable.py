"""`jobq reliable`: the commands of the RedisRQ module, typed and answered as in redis-cli."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from jobq.cli import exits, output
from jobq.cli.options import group, option, yes_option
from jobq.cli.session import Session, command
from jobq.errors import ConfigError, EmptyKeyError
from jobq.protocols.reliable import ReliableQueue

key_argument = click.argument("key")
ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True)
ns_option = option(
    "--ns NAME", "First part of the keys.", default="reliable", shared=("JOBQ_RELIABLE_NS",)
)
token_option = option("--token TEXT", "Token of the holder; other tokens are refused.", default="")


@group(
    "reliable",
    "push mails a@b.example c@d.example",
    "pop COUNT 10 BLOCK 5000 mails",
    "ack mails 1601155608777-1",
    "recover mails 10 60000",
)
def reliable() -> None:
    """Use RELIABLEQ queues, as the RedisRQ module does.

    The server needs no module. Each message is delivered at least once. Commands take the module's arguments
    and print what redis-cli would, or JSON with --json.
    """


def _queue(session: Session, ns: str) -> ReliableQueue:

    return ReliableQueue(session.client, ns)


def _answer(session: Session, call: Callable[[], Any]) -> int:
    """Print one reply. Exit code 1: the queue doesn't exist and the module calls that an error."""
    try:
        reply = call()
    except EmptyKeyError as error:
        text = str(error)
        click.echo(json.dumps({"error": text}) if session.as_json else f"(error) {text}")
        return exits.NO
    click.echo(json.dumps(_plain(reply), ensure_ascii=True) if session.as_json else shown(reply))
    return exits.OK


def _plain(reply: Any) -> Any:
    """A reply for JSON; messages by the names of their columns."""
    if isinstance(reply, list):
        return [_plain(item) for item in reply]
    if not hasattr(reply, "_asdict"):
        return reply
    fields = {**reply._asdict(), **vars(reply)} if hasattr(reply, "__dict__") else reply._asdict()
    return content_record(fields)


@command("push", "mails a@b.example", "mails -- -5", group=reliable)
@key_argument
@click.argument("elements", metavar="ELEMENT...", nargs=-1, required=True)
@ns_option
def push(session: Session, key: str, elements: tuple[str, ...], ns: str) -> int:
    """Append each ELEMENT to the queue KEY; print their ids."""
    # As redis-cli: the bytes that were typed, whether they are text or not.
    return _answer(session, lambda: _queue(session, ns).push(key, *map(os.fsencode, elements)))


@command(
    "pop",
    "mails",
    "COUNT 10 BLOCK 5000 high low",
    "BLOCK -1 mails --token worker-7 --recover 60000",
    group=reliable,
    takes_negatives=True,
)
@click.argument("words", metavar="[COUNT n] [BLOCK ms] KEY...", nargs=-1, required=True)
@token_option
@option(
    "--recover MS",
    "recover_ms",
    "First hand out messages delivered this long ago and not acknowledged.",
    type=click.IntRange(0),
)
@option("--deliveries", "Print the number of deliveries as a fourth item.")
@ns_option
def pop(
    session: Session, words: tuple[str, ...], token: str, recover_ms: int | None, deliveries: bool,
    ns: str,
) -> int:  # fmt: skip
    """Hand out up to n messages of the KEYs, the first one first.

    BLOCK waits that many milliseconds for a message; 0 does not wait, -1 waits for ever. (nil): there is none.
    """
    count, block, keys = pop_words(words)

    def call() -> Any:
        found = _queue(session, ns).pop(count, block, *keys, token=token, recover_ms=recover_ms)
        counted = deliveries and found and not session.as_json
        return [(*one, one.deliveries) for one in found] if counted and found else found

    return _answer(session, call)


def pop_words(words: Sequence[str]) -> tuple[int, int, Sequence[str]]:
    """Count, block and keys; a word in the place of an option is one, and takes a number."""
    found = {"COUNT": 1, "BLOCK": 0}
    given = set()
    while words and (word := words[0].upper()) in found and word not in given:
        number = words[1] if len(words) > 1 else "nothing"
        if not number.removeprefix("-" * (word == "BLOCK")).isdecimal():
            raise ConfigError(
                f"{word} takes a whole number, not {number}; COUNT 1 {words[0]} pops a key of that name"
            )
        found[word] = int(number)
        given.add(word)
        words = words[2:]
    _refuse_options(words)
    return found["COUNT"], found["BLOCK"], words


def _refuse_options(words: Sequence[str]) -> None:
    for word in words:
        if word.startswith("--"):
            raise click.NoSuchOption(word)


@command("ack", "mails 1601155608777-1 1601155608777-2", group=reliable)
@key_argument
@ids_argument
@token_option
@ns_option
def ack(session: Session, key: str, ids: tuple[str, ...], token: str, ns: str) -> int:
    """Acknowledge delivered messages, which deletes them; print their ids."""
    return _answer(session, lambda: _queue(session, ns).ack(key, *ids, token=token))


@command("nack", "mails 1601155608777-1 --front", group=reliable)
@key_argument
@ids_argument
@token_option
@option("--front", "Put them before the waiting messages, not behind.")
@ns_option
def nack(session: Session, key: str, ids: tuple[str, ...], token: str, front: bool, ns: str) -> int:
    """Return delivered messages to the queue. A message with too many deliveries is dead."""
    return _answer(session, lambda: _queue(session, ns).nack(key, *ids, token=token, front=front))


@command("release", "mails 1601155608777-1 --token worker-7", group=reliable)
@key_argument
@ids_argument
@token_option
@ns_option
def release(session: Session, key: str, ids: tuple[str, ...], token: str, ns: str) -> int:
    """Return messages that were not handled to the front; the delivery does not count."""
    return _answer(session, lambda: _queue(session, ns).release(key, *ids, token=token))


@command("extend", "mails 1601155608777-1 --token worker-7", group=reliable)
@key_argument
@ids_argument
@token_option
@ns_option
def extend(session: Session, key: str, ids: tuple[str, ...], token: str, ns: str) -> int:
    """Set the delivery time of messages to now, so that they are not recovered yet."""
    return _answer(session, lambda: _queue(session, ns).extend(key, *ids, token=token))


@command(
    "recover", "mails 10 60000", "mails 1 60000 --block -1", group=reliable, takes_negatives=True
)
@key_argument
@click.argument("count", type=click.IntRange(0))
@click.argument("elapsed", type=click.IntRange(0))
@option("--block MS", "Wait this long for a message; -1: for ever.", type=int, default=0)
@token_option
@option("--deliveries", "Print the number of deliveries as a third item.")
@ns_option
def recover(
    session: Session, key: str, count: int, elapsed: int, block: int, token: str, deliveries: bool,
    ns: str,
) -> int:  # fmt: skip
    """Hand out again up to COUNT messages delivered ELAPSED ms ago and not acknowledged."""

    def call() -> Any:
        found = _queue(session, ns).recover(key, count, elapsed, block=block, token=token)
        counted = deliveries and found and not session.as_json
        return [(*one, one.deliveries) for one in found] if counted and found else found

    return _answer(session, call)


@command(
    "inspect",
    "mails 0 10",
    "mails -2 2",
    "mails PENDING 0 10",
    group=reliable,
    takes_negatives=True,
)
@key_argument
@click.argument("words", metavar="[PENDING|DEAD] START COUNT", nargs=-1, required=True)
@ns_option
def inspect(session: Session, key: str, words: tuple[str, ...], ns: str) -> int:
    """Show COUNT messages from START on: waiting, pending or dead ones.

    A negative START counts from the end.
    """
    _refuse_options(words)
    place = words[0].upper() if words[0].upper() in ("PENDING", "DEAD") else ""
    numbers = words[1:] if place else words
    if len(numbers) != 2 or not all(number.removeprefix("-").isdecimal() for number in numbers):
        raise click.UsageError(
            f"inspect takes START and COUNT, not {' '.join(numbers) or 'nothing'}"
        )
    start, count = map(int, numbers)
    queue = _queue(session, ns)
    if place == "DEAD":
        return _answer(session, lambda: queue.dead(key, start, count))
    if place:
        return _answer(session, lambda: queue.pending(key, start, count))
    return _answer(session, lambda: queue.inspect(key, start, count))


@command("info", "mails", "mails --all", group=reliable)
@key_argument
@option("--all", "everything", "Print more than the module does.")
@ns_option
def info(session: Session, key: str, everything: bool, ns: str) -> int:
    """Count the waiting and the delivered messages."""

    def call() -> Any:
        facts = _queue(session, ns).info(key)._asdict()
        wanted = dict(list(facts.items())[: None if everything else 2])
        return wanted if session.as_json else [item for fact in wanted.items() for item in fact]

    return _answer(session, call)


@command("length", "mails", group=reliable)
@key_argument
@ns_option
def length(session: Session, key: str, ns: str) -> int:
    """Count the waiting messages."""
    return _answer(session, lambda: _queue(session, ns).length(key))


@command("configure", "mails --max-deliveries 5", group=reliable)
@key_argument
@option(
    "--max-deliveries N",
    "Deliveries without an acknowledgement after which a message is dead; 0: never.",
    type=click.IntRange(0),
    required=True,
)
@ns_option
def configure(session: Session, key: str, max_deliveries: int, ns: str) -> None:
    """Set how often a message of KEY may be delivered."""
    _queue(session, ns).configure(key, max_deliveries=max_deliveries)
    session.say({"key": key, "max_deliveries": max_deliveries}, "OK")


@command("revive", "mails 1601155608777-1", group=reliable)
@key_argument
@ids_argument
@ns_option
def revive(session: Session, key: str, ids: tuple[str, ...], ns: str) -> int:
    """Return dead messages to the queue, with no deliveries counted; print their ids."""
    return _answer(session, lambda: _queue(session, ns).revive(key, *ids))


@command("purge", "mails 1601155608777-1", group=reliable)
@key_argument
@ids_argument
@ns_option
def purge(session: Session, key: str, ids: tuple[str, ...], ns: str) -> int:
    """Delete dead messages; print their ids."""
    return _answer(session, lambda: _queue(session, ns).purge(key, *ids))


@command("clear", "mails", "mails --yes", group=reliable)
@key_argument
@yes_option
@ns_option
def clear(session: Session, key: str, yes: bool, ns: str) -> int:
    """Delete every message of KEY, the dead too; print how many there were. The queue's settings stay."""
    session.confirmed(f"Delete every message of {output.escaped(key)}?", yes)
    return _answer(session, lambda: _queue(session, ns).clear(key))


@command("delete", "mails", "mails --yes", group=reliable)
@key_argument
@yes_option
@ns_option
def delete(session: Session, key: str, yes: bool, ns: str) -> int:
    """Delete the queue KEY: its messages, its last id and its settings; print how many messages there were."""
    session.confirmed(f"Delete the queue {output.escaped(key)} with every message?", yes)
    return _answer(session, lambda: _queue(session, ns).delete(key))


Reply = str | bytes | int | None | tuple[Any, ...] | list[Any]
_ESCAPES = {
    0x5C: "\\\\",
    0x22: '\\"',
    0x0A: "\\n",
    0x0D: "\\r",
    0x09: "\\t",
    0x07: "\\a",
    0x08: "\\b",
}


def shown(reply: Reply, margin: str = "") -> str:
    """The lines of a reply, without the last line's end; all but the first begin with `margin`."""
    if reply is None:
        return "(nil)"
    if isinstance(reply, int):
        return f"(integer) {reply}"
    if isinstance(reply, str | bytes):
        return quoted(reply.encode() if isinstance(reply, str) else reply)
    if not reply:
        return "(empty array)"
    width = len(str(len(reply)))
    inner = margin + " " * (width + 2)
    rows = [f"{number:>{width}}) {shown(item, inner)}" for number, item in enumerate(reply, 1)]
    return f"\n{margin}".join(rows)


def quoted(text: bytes) -> str:
    """`"a\\n\\xff"`: printable ASCII as it is, everything else as an escape."""
    return '"' + "".join(_ESCAPES.get(byte) or _escaped(byte) for byte in text) + '"'


def _escaped(byte: int) -> str:
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}"


def content_record(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields for JSON: `content` as text, and `content_base64` too if it is not UTF-8."""
    content: bytes = fields["content"]
    text = content.decode("utf-8", "backslashreplace")
    record = {**fields, "content": text}
    if text.encode() != content:
        record["content_base64"] = base64.b64encode(content).decode()
    return record
