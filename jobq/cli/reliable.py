"""`jobq reliable`: the commands of the RedisRQ module, with the syntax and output of redis-cli."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import wraps
from typing import Any

import click
from msgspec import structs

from jobq.cli import output
from jobq.cli.options import Command, Function, group, option, yes_option
from jobq.cli.output import Listing
from jobq.cli.session import Session, command, opens
from jobq.durations import counted
from jobq.errors import ConfigError, EmptyKeyError
from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.reliable.listing import find_queues
from jobq.queue.audit_log import Performed

key_argument = click.argument("key")
ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True)
ns_option = option(
    "--ns NAME", "Prefix of the keys.", default="reliable", shared=("JOBQ_RELIABLE_NS",)
)
token_option = option("--token TEXT", "Token of the holder; other tokens are rejected.", default="")


@group(
    "reliable",
    "push mails a@b.example c@d.example",
    "pop COUNT 10 BLOCK 5000 mails",
    "ack mails 1601155608777-1",
    "recover mails 10 60000",
)
def reliable() -> None:
    """Use RELIABLEQ queues, as the RedisRQ module does.

    The server doesn't need the module. Each message is delivered at least once. Commands accept the module's
    arguments, and print replies in redis-cli's format. With --json, they print JSON.
    """


def _queue(session: Session, ns: str) -> ReliableQueue:
    return ReliableQueue(session.client, ns)


def verb(
    name: str, *examples: str, takes_negatives: bool = False, operation: str = ""
) -> Callable[[Function], Command]:
    """Declare a command whose function receives `queue`. The command prints the function's reply as redis-cli does.

    Exit code 1: the queue doesn't exist, which is an error in the RedisRQ module.
    """

    def declare(function: Function) -> Command:
        @wraps(function)
        def call(session: Session, **given: Any) -> bool:
            try:
                reply: Any = function(session, **given)
            except EmptyKeyError as error:
                text = str(error)
                click.echo(json.dumps({"error": text}) if session.as_json else f"(error) {text}")
                return False
            click.echo(output.json_line(_plain(reply)) if session.as_json else shown(reply))
            return True

        on_queue = opens("queue", _queue, ns_option)
        declared = command(
            name,
            *examples,
            group=reliable,
            takes_negatives=takes_negatives,
            operation=operation,
            server="starts",
        )
        return declared(on_queue(call))

    return declare


def _operation(
    session: Session, key: str, ids: Sequence[str] = (), more: str = ""
) -> AbstractContextManager[Performed]:
    messages = "".join(f" id:{id_}" for id_ in ids)
    return session.operation("", f"reliable:{key}{more}{messages}", when=bool(session.verb))


def _plain(reply: Any) -> Any:
    if isinstance(reply, list):
        return [_plain(item) for item in reply]
    if not hasattr(reply, "_asdict"):
        return reply
    fields = {**reply._asdict(), **vars(reply)} if hasattr(reply, "__dict__") else reply._asdict()
    return {**fields, **output.content_facts(fields["content"])}


@verb("push", "mails a@b.example", "mails -- -5")
@key_argument
@click.argument("elements", metavar="ELEMENT...", nargs=-1, required=True)
def push(session: Session, queue: ReliableQueue, key: str, elements: tuple[str, ...]) -> object:
    """Append each ELEMENT to the queue KEY, and print the new message ids."""
    # Like redis-cli, push the typed bytes, even if they aren't text.
    return queue.push(key, *map(os.fsencode, elements))


@verb(
    "pop",
    "mails",
    "COUNT 10 BLOCK 5000 high low",
    "BLOCK -1 mails --token worker-7 --recover 60000",
    takes_negatives=True,
)
@click.argument("words", metavar="[COUNT n] [BLOCK ms] KEY...", nargs=-1, required=True)
@token_option
@option(
    "--recover MS", "recover_ms", "First deliver messages unacknowledged for this long again.",
    type=click.IntRange(0),
)  # fmt: skip
@option("--deliveries", "Print the number of deliveries as a fourth item.")
def pop(
    session: Session,
    queue: ReliableQueue,
    words: tuple[str, ...],
    deliveries: bool,
    token: str,
    recover_ms: int | None,
) -> object:
    """Receive up to n messages from the queues KEY, in the order of the KEYs.

    BLOCK is how many milliseconds to wait for a message: 0 does not wait, and -1 waits indefinitely. If there is no
    message, the command prints (nil).
    """
    count, block, keys = pop_words(words)
    after = None if recover_ms is None else recover_ms / 1000
    popped = queue.pop(count, block, *keys, token=token, recover_after=after)
    return _counted(session, popped, deliveries)


def _counted(session: Session, messages: Any, deliveries: bool) -> object:
    """Add the number of deliveries to each message, unless the output is JSON, which always includes the number."""
    counted = deliveries and messages and not session.as_json
    return [(*message, message.deliveries) for message in messages] if counted else messages


def pop_words(words: Sequence[str]) -> tuple[int, int, Sequence[str]]:
    """Parse COUNT, BLOCK and the keys.

    The words COUNT and BLOCK may come before the keys, each followed by a number.
    """
    numbers = {"COUNT": 1, "BLOCK": 0}
    given = set()
    while words and (word := words[0].upper()) in numbers and word not in given:
        number = words[1] if len(words) > 1 else "nothing"
        if not number.removeprefix("-" * (word == "BLOCK")).isdecimal():
            raise ConfigError(
                f"{word} must be followed by a whole number, but {number} follows; to pop a key with that name, "
                f"write {word} {numbers[word]} {words[0]}"
            )
        numbers[word] = int(number)
        given.add(word)
        words = words[2:]
    _refuse_options(words)
    return numbers["COUNT"], numbers["BLOCK"], words


def _refuse_options(words: Sequence[str]) -> None:
    for word in words:
        if word.startswith("--"):
            raise click.NoSuchOption(word)


def _on_ids(
    name: str, text: str, example: str, *options: Callable[[Function], Function], operation: str = ""
) -> Command:  # fmt: skip
    def call(
        session: Session, queue: ReliableQueue, key: str, ids: tuple[str, ...], **how: Any
    ) -> object:
        with _operation(session, key, ids) as performed:
            done: object = getattr(queue, name)(key, *ids, **how)
            performed.set(number=len(done) if isinstance(done, list) else None)
        return done

    call.__doc__ = text
    declared: list[Callable[[Any], object]] = [key_argument, ids_argument, *options]
    for declare in reversed(declared):
        declare(call)
    return verb(name, example, operation=operation)(call)


_on_ids(
    "ack", "Acknowledge and delete delivered messages; print their ids.",
    "mails 1601155608777-1 1601155608777-2", token_option,
)  # fmt: skip
_on_ids(
    "nack", "Return delivered messages to the queue. A message with too many deliveries becomes dead.",
    "mails 1601155608777-1 --front", token_option,
    option("--front", "Put the messages before the waiting messages, not after."),
)  # fmt: skip
_on_ids(
    "release", "Return unhandled messages to the front; the delivery isn't counted.",
    "mails 1601155608777-1 --token worker-7", token_option,
)  # fmt: skip
_on_ids(
    "extend", "Set the delivery time of messages to now, so that they are not recovered yet.",
    "mails 1601155608777-1 --token worker-7", token_option,
)  # fmt: skip


@verb("recover", "mails 10 60000", "mails 1 60000 --block -1", takes_negatives=True)
@key_argument
@click.argument("count", type=click.IntRange(0))
@click.argument("elapsed", type=click.IntRange(0))
@option(
    "--block MS", "Milliseconds to wait for a message; -1 waits indefinitely.", type=int, default=0
)
@token_option
@option("--deliveries", "Print the number of deliveries as a third item.")
def recover(
    session: Session, queue: ReliableQueue, key: str, count: int, elapsed: int, deliveries: bool,
    **how: Any,
) -> object:  # fmt: skip
    """Redeliver up to COUNT unacknowledged messages, delivered at least ELAPSED ms ago."""
    return _counted(session, queue.recover(key, count, elapsed, **how), deliveries)


@verb("inspect", "mails 0 10", "mails -2 2", "mails PENDING 0 10", takes_negatives=True)
@key_argument
@click.argument("words", metavar="[PENDING|DEAD] START COUNT", nargs=-1, required=True)
def inspect(session: Session, queue: ReliableQueue, key: str, words: tuple[str, ...]) -> object:
    """Show COUNT waiting, pending or dead messages, starting at position START.

    A negative START counts from the end.
    """
    _refuse_options(words)
    places: dict[str, Callable[[str, int, int], object]] = {
        "PENDING": queue.pending,
        "DEAD": queue.dead,
    }
    read = places.get(words[0].upper(), queue.inspect)
    numbers = words[1:] if words[0].upper() in places else words
    if len(numbers) != 2 or not all(number.removeprefix("-").isdecimal() for number in numbers):
        raise click.UsageError(
            f"inspect needs START and COUNT, not {' '.join(numbers) or 'nothing'}"
        )
    return read(key, int(numbers[0]), int(numbers[1]))


@verb("info", "mails", "mails --all")
@key_argument
@option("--all", "everything", "Print additional columns.")
def info(session: Session, queue: ReliableQueue, key: str, everything: bool) -> object:
    """Count the waiting and the delivered messages."""
    _, *facts = structs.asdict(queue.info(key)).items()
    wanted = dict(facts if everything else facts[:2])
    return wanted if session.as_json else [item for fact in wanted.items() for item in fact]


@command("list", "", "--json", group=reliable)
@opens("queue", _queue, ns_option)
def list_(session: Session, queue: ReliableQueue) -> None:
    """List the queues with their counts.

    The RedisRQ module doesn't store a list of queues, so the command scans up to 20,000 keys of the server.
    """
    queues = find_queues(queue.client, queue.ns)
    rows = []
    for key in queues.names:
        with session.tolerating(key, "key"), suppress(EmptyKeyError):
            rows.append(queue.info(key))
    if not queues.whole:
        session.note(f"searched {counted(queues.looked_at, 'key')}; there may be more queues")
    columns = ("key", "undelivered", "delivered", "dead", "promised", "max_deliveries", "last_id")
    empty = f"no queues with --ns {queue.ns!r}; create one with 'jobq reliable push'"
    session.say_all(rows, Listing(columns, ("promised", "last_id", "max_deliveries"), empty))


@verb("length", "mails")
@key_argument
def length(session: Session, queue: ReliableQueue, key: str) -> object:
    """Count the waiting messages."""
    return queue.length(key)


@command("configure", "mails --max-deliveries 5", group=reliable, operation="reliable-configure")
@opens("queue", _queue, ns_option)
@key_argument
@option(
    "--max-deliveries N", "Maximum number of unacknowledged deliveries before a message is dead; 0: unlimited.",
    type=click.IntRange(0), required=True,
)  # fmt: skip
def configure(session: Session, queue: ReliableQueue, key: str, max_deliveries: int) -> None:
    """Set how often a message of KEY may be delivered."""
    with _operation(session, key, more=f" max-deliveries:{max_deliveries}"):
        queue.configure(key, max_deliveries=max_deliveries)
    session.say({"key": key, "max_deliveries": max_deliveries}, "OK")


_on_ids(
    "revive", "Return dead messages to the queue, with deliveries reset; print their ids.",
    "mails 1601155608777-1", operation="reliable-revive",
)  # fmt: skip
_on_ids(
    "purge", "Delete dead messages; print their ids.", "mails 1601155608777-1",
    operation="reliable-purge",
)  # fmt: skip


@verb("clear", "mails", "mails --yes", operation="reliable-clear")
@key_argument
@yes_option
def clear(session: Session, queue: ReliableQueue, key: str, yes: bool) -> object:
    """Delete every message of KEY, including dead messages; print how many there were. The queue's settings stay."""
    session.confirmed(f"Delete every message of {output.escaped(key)}?", yes)
    with _operation(session, key) as performed:
        gone = queue.clear(key)
        performed.set(number=gone)
    return gone


@verb("delete", "mails", "mails --yes", operation="reliable-delete")
@key_argument
@yes_option
def delete(session: Session, queue: ReliableQueue, key: str, yes: bool) -> object:
    """Delete the queue KEY: its messages, its last id and its settings; print how many messages there were."""
    session.confirmed(f"Delete the queue {output.escaped(key)} with every message?", yes)
    with _operation(session, key) as performed:
        gone = queue.delete(key)
        performed.set(number=gone)
    return gone


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
    """Format a reply. Every line except the first begins with `margin`, and the last has no newline."""
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
    r"""Return text in quotes, such as `"a\n\xff"`, with everything but printable ASCII escaped."""
    return '"' + "".join(_ESCAPES.get(byte) or _escaped(byte) for byte in text) + '"'


def _escaped(byte: int) -> str:
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}"
