"""RSMQ's calls as requests. They check arguments in RSMQ's order and read replies, without I/O.

RSMQ makes some checks only after it has found the queue. Here, they run before the call, but their errors are raised
only after the server has confirmed that the queue exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from jobq.client.bound_scripts import PER_CALL, ordered
from jobq.client.numbered_calls import ScriptCall, Values
from jobq.client.scripts import Argument, Script, load
from jobq.errors import ConfigError
from jobq.protocols.rsmq import checks
from jobq.protocols.rsmq.errors import (
    InvalidFormatError,
    MessageTooLongError,
    NoAttributeSuppliedError,
    QueueExistsError,
    QueueNotFoundError,
    RsmqError,
)
from jobq.protocols.rsmq.keys import Keys
from jobq.protocols.rsmq.messages import (
    Attributes,
    PeekedPage,
    Received,
    Repaired,
    RsmqMessage,
    read_attributes,
    read_messages,
    read_peeked,
)

T = TypeVar("T")
R = TypeVar("R")
PLACES = ("visible", "hidden", "all")

#: A message's id, and its receipt if only its last receiver may change it.
MessageRef = tuple[str, int | None]


class Requests:
    """Requests to one namespace. For tests, `clock` returns epoch microseconds instead of the server's time."""

    def __init__(
        self, keys: Keys, *, realtime: bool = False, clock: Callable[[], int] | None = None
    ) -> None:
        self.keys = keys
        self.realtime = realtime
        self._clock = clock
        self._bind = lru_cache(1024)(self._keys_of)
        self._usual = lru_cache(1024)(self._usual_call)

    def create(self, qname: str, vt: Any, delay: Any, maxsize: Any) -> ScriptCall[int]:
        name = checks.queue_name(qname)
        values: Values = {
            "now": self._now(),
            "name": name,
            "vt": checks.seconds("vt", vt),
            "delay": checks.seconds("delay", delay),
            "maxsize": checks.maxsize(maxsize),
        }
        return self._call("create", name, values, _created, repeatable=False)

    def list_queues(self) -> ScriptCall[list[str]]:
        return self._call("list", "", {}, _names)

    def remove(self, qname: str) -> ScriptCall[int]:
        try:
            name = checks.existing_name(qname)
        except InvalidFormatError:
            return self._unlisted(qname)
        read = _existing(name, lambda _: 1)
        return self._call("remove", name, {"name": name}, read, repeatable=False)

    def _unlisted(self, qname: Any) -> ScriptCall[int]:
        """Return a request that removes an invalid name from the list of queues."""
        written = checks.bytes_of(qname) if isinstance(qname, str) else b""
        if not written:
            raise InvalidFormatError("qname")
        # Its keys, if they exist, may belong to another queue.
        return self._call("unlist", "", {"name": written}, _unlisted, repeatable=False)

    def describe(self, qname: str, *, as_node: bool = False) -> ScriptCall[Attributes]:
        name = checks.existing_name(qname)
        read = _existing(name, lambda reply: read_attributes(reply, as_node=as_node))
        return self._call("describe", name, {"now": self._now()}, read)

    def set(
        self, qname: str, vt: Any, delay: Any, maxsize: Any, *, as_node: bool = False
    ) -> ScriptCall[Attributes]:
        if vt is None and delay is None and maxsize is None:
            raise NoAttributeSuppliedError
        name = checks.existing_name(qname)
        try:
            # Checked in this order, so that the first error is the error that RSMQ reports.
            values: Values = {
                "now": self._now(),
                "vt": "" if vt is None else checks.seconds("vt", vt),
                "maxsize": "" if maxsize is None else checks.maxsize(maxsize),
                "delay": "" if delay is None else checks.seconds("delay", delay),
            }
        except RsmqError as error:
            return self._after_name(name, error)
        read = _existing(name, lambda reply: read_attributes(reply, as_node=as_node))
        return self._call("set", name, values, read)

    def send(
        self, qname: str, messages: Sequence[Any], delay: Any, *, checked: bool = False
    ) -> ScriptCall[list[str]]:
        """Return a request that sends messages.

        Args:
            checked: Whether the messages are already bytes from `checks.body`.
        """
        name = checks.existing_name(qname)
        try:
            seconds = "" if delay is None else checks.seconds("delay", delay)
            bodies = messages if checked else [checks.body(message) for message in messages]
        except RsmqError as error:
            return self._if_there(name, error)
        pairs: list[Argument] = []
        for random, body in zip(checks.random_parts(len(bodies)), bodies, strict=True):
            pairs += (random, body)
        values: Values = {"now": self._now(), "delay": seconds, "channel": self._channel(name)}
        read = _existing(name, _sent)
        return self._call("send", name, values, read, rest=pairs, repeatable=False)

    def receive(self, qname: str, limit: int, vt: Any) -> ScriptCall[Received]:
        name = checks.existing_name(qname)
        _check_limit(limit)
        try:
            seconds = "" if vt is None else checks.seconds("vt", vt)
        except RsmqError as error:
            return self._if_there(name, error)
        values: Values = {"now": self._now(), "vt": seconds, "limit": limit}
        return self._call("receive", name, values, _existing(name, _received))

    def send_one(self, qname: str, message: Any, delay: Any) -> ScriptCall[str]:
        """Return a request that sends one message.

        For arguments of the usual types, this is faster than `send`.
        """
        if delay is not None or self._clock is not None or type(qname) is not str:
            return then(self.send(qname, [message], delay), first)
        script, keys, args, read, _ = self._usual("send", qname)
        try:
            body = checks.body(message)
        except RsmqError as error:
            return self._if_there(qname, error)
        return ScriptCall(script, keys, (*args, checks.random_part(), body), read, False)

    def receive_one(self, qname: str, vt: Any) -> ScriptCall[RsmqMessage | None]:
        """Return a request that receives one message. In the common case, this is faster than `receive`."""
        if vt is not None or self._clock is not None or type(qname) is not str:
            return then(self.receive(qname, 1, vt), _first_received)
        return self._usual("receive", qname)

    def delete_one(self, qname: str, id_: str, receipt: int | None) -> ScriptCall[bool]:
        """Return a request that deletes one message.

        For arguments of the usual types, this is faster than `delete`.
        """
        if type(receipt) is not int or type(qname) is not str:
            return then(self.delete(qname, [(id_, receipt)]), first)
        script, keys, _, read, _ = self._usual("delete", qname)
        try:
            written = checks.bytes_of(checks.message_id(id_))
        except RsmqError as error:
            return self._after_name(qname, error)
        return ScriptCall(script, keys, (written, receipt), read, False)

    def _usual_call(self, script_name: str, qname: str) -> ScriptCall[Any]:
        """Prepare a request for one message of this queue, with default arguments."""
        name = checks.existing_name(qname)
        if script_name == "receive":
            values: Values = {"now": "", "vt": "", "limit": 1}
            read = _existing(name, lambda reply: _first_received(_received(reply)))
            return self._call("receive", name, values, read)
        if script_name == "delete":
            was_deleted = _lawful(name, lambda reply: reply[1] == b"deleted")
            return self._call("delete", name, {}, was_deleted, repeatable=False)
        values = {"now": "", "delay": "", "channel": self._channel(name)}
        read_id = _existing(name, lambda reply: _sent(reply)[0])
        return self._call("send", name, values, read_id, repeatable=False)

    def pop(self, qname: str, limit: int) -> ScriptCall[list[RsmqMessage]]:
        name = checks.existing_name(qname)
        _check_limit(limit)
        read = _existing(name, lambda reply: _received(reply).messages)
        values: Values = {"now": self._now(), "limit": limit}
        return self._call("pop", name, values, read, repeatable=False)

    def delete(self, qname: str, held: Sequence[MessageRef]) -> ScriptCall[list[bool]]:
        name = checks.existing_name(qname)
        try:
            checked = [(checks.message_id(id_), receipt) for id_, receipt in held]
        except RsmqError as error:
            return self._after_name(name, error)
        read = _lawful(name, _changed("deleted", checked))
        return self._call("delete", name, {}, read, rest=_pairs(checked), repeatable=False)

    def next(
        self, qname: str, held: Sequence[MessageRef], limit: int, vt: Any
    ) -> ScriptCall[tuple[list[bool], Received]]:
        name = checks.existing_name(qname)
        _check_limit(limit)
        if len(held) > PER_CALL:
            raise ConfigError(
                f"{len(held):,} messages are too many for a call; pass at most {PER_CALL:,}"
            )
        checked = [(checks.message_id(id_), receipt) for id_, receipt in held]
        try:
            seconds = "" if vt is None else checks.seconds("vt", vt)
        except RsmqError as error:
            return self._if_there(name, error)
        values: Values = {"now": self._now(), "vt": seconds, "limit": limit}
        read, rest = _existing(name, _next), _pairs(checked)
        return self._call("next", name, values, read, rest=rest, repeatable=False)

    def visibility(self, qname: str, held: Sequence[MessageRef], vt: Any) -> ScriptCall[list[bool]]:
        name = checks.existing_name(qname)
        checked: list[MessageRef] = []
        try:
            checked += [(checks.message_id(id_), receipt) for id_, receipt in held]
            seconds = checks.seconds("vt", vt)
        except RsmqError as error:
            return self._after_name(name, error, checked)
        read = _existing(name, _changed("changed", checked), checked)
        values: Values = {"now": self._now(), "vt": seconds}
        return self._call("visibility", name, values, read, rest=_pairs(checked))

    def peek(self, qname: str, place: str, offset: int, limit: int) -> ScriptCall[PeekedPage]:
        name = checks.existing_name(qname)
        if place not in PLACES:
            raise ConfigError(f"place {place!r} is unknown; use one of {', '.join(PLACES)}")
        if offset < 0:
            raise ConfigError(f"offset {offset} is below 0; it must be at least 0")
        _check_limit(limit)
        values: Values = {"now": self._now(), "place": place, "offset": offset, "limit": limit}
        return self._call("peek", name, values, _existing(name, read_peeked))

    def purge(self, qname: str) -> ScriptCall[int]:
        name = checks.existing_name(qname)
        read = _existing(name, lambda reply: int(reply[1]))
        return self._call("purge", name, {"limit": PER_CALL}, read)

    def move(self, qname: str, target: str, held: Sequence[MessageRef]) -> ScriptCall[list[bool]]:
        name, to = checks.existing_name(qname), checks.existing_name(target)
        if name == to:
            raise ConfigError(f"the messages are already in queue {to!r}; name another queue")
        held = [(checks.message_id(id_), receipt) for id_, receipt in held]
        read = _existing(to, _changed("moved", [(id_, receipt or 0) for id_, receipt in held]))
        values: Values = {"now": self._now(), "channel": self._channel(to)}
        rest = _pairs(held)
        return self._call("move", name, values, read, rest=rest, target=to, repeatable=False)

    def repair(
        self, qname: str, cursors: tuple[str, str]
    ) -> ScriptCall[tuple[tuple[str, str], Repaired]]:
        name = checks.existing_name(qname)
        ids_cursor, fields_cursor = cursors
        values: Values = {
            "now": self._now(), "name": name, "ids_cursor": ids_cursor, "fields_cursor": fields_cursor,
            "limit": PER_CALL,
        }  # fmt: skip
        return self._call("repair", name, values, _existing(name, _repaired))

    def _if_there(self, name: str, error: RsmqError) -> ScriptCall[Any]:
        """Return a request that raises QueueNotFoundError if the queue doesn't exist, and `error` otherwise."""

        def read(_: Any) -> Any:
            raise error

        values: Values = {"now": self._now(), "place": "all", "offset": 0, "limit": 1}
        return self._call("peek", name, values, _existing(name, read))

    def _after_name(
        self, name: str, error: RsmqError, held: Sequence[MessageRef] = ()
    ) -> ScriptCall[Any]:
        """Raise `error`; if Node rejects the queue's name, return a request that first checks the queue's existence."""
        if not checks.is_regular_name(name):
            return self._if_there(name, error)
        # RSMQ would first report an id that only other clients make.
        _refuse_irregular(held)
        raise error

    def _now(self) -> Argument:
        return "" if self._clock is None else self._clock()

    def _channel(self, name: str) -> str:
        return self.keys.channel(name) if self.realtime else ""

    def _call(
        self,
        script_name: str,
        queue: str,
        values: Values,
        read: Callable[[Any], T],
        *,
        rest: Sequence[Argument] = (),
        target: str = "",
        repeatable: bool = True,
    ) -> ScriptCall[T]:
        """Build the call of a script, with its keys.

        Args:
            target: Destination queue of a move.
        """
        script, keys = self._bind(script_name, queue, target)
        return ScriptCall(script, keys, ordered(script, values, rest), read, repeatable)

    def _keys_of(self, script_name: str, queue: str, target: str) -> tuple[Script, tuple[str, ...]]:
        script = load("rsmq", script_name)
        return script, tuple(self.keys.named(key, queue, target) for key in script.keys)


def then(request: ScriptCall[T], make: Callable[[T], R]) -> ScriptCall[R]:
    """Return a request that converts the result of `request` with `make`."""
    script, keys, args, read, repeatable = request
    return ScriptCall(script, keys, args, lambda reply: make(read(reply)), repeatable)


def first(results: Sequence[T]) -> T:
    """Return the result of a request for a single message."""
    return results[0]


def outcome_words(request: ScriptCall[list[bool]]) -> ScriptCall[list[str]]:
    """Return a request whose results are 'deleted', 'moved', 'absent' or 'stale' instead of bools."""

    def words(reply: list[Any]) -> list[str]:
        request.read(reply)
        return [word.decode() for word in reply[1:]]

    return ScriptCall(request.script, request.keys, request.args, words, request.repeatable)


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= PER_CALL:
        raise ConfigError(f"limit {limit} is out of range; it must be between 1 and {PER_CALL:,}")


def _pairs(held: Sequence[MessageRef]) -> list[Argument]:
    return [
        part
        for id_, receipt in held
        for part in (checks.bytes_of(id_), "" if receipt is None else receipt)
    ]


def _existing(
    name: str, read: Callable[[list[Any]], T], held: Sequence[MessageRef] = ()
) -> Callable[[list[Any]], T]:
    def read_if_found(reply: list[Any]) -> T:
        if reply[0] == b"not_found":
            _refuse_irregular_name(name)
            _refuse_irregular(held)
            raise QueueNotFoundError
        return read(reply)

    return read_if_found


def _lawful(name: str, read: Callable[[list[Any]], T]) -> Callable[[list[Any]], T]:
    def read_if_lawful(reply: list[Any]) -> T:
        if reply[0] == b"not_found":
            _refuse_irregular_name(name)
        return read(reply)

    return read_if_lawful


def _refuse_irregular_name(name: str) -> None:
    """Reject a name that Node rejects. This runs only if no queue has the name."""
    if not checks.is_regular_name(name):
        raise InvalidFormatError("qname")


def _changed(word: str, held: Sequence[MessageRef]) -> Callable[[list[Any]], list[bool]]:
    expected = word.encode()

    def read(reply: list[Any]) -> list[bool]:
        changed = [text == expected for text in reply[1:]]
        if False in changed:
            _refuse_irregular([ref for ref, done in zip(held, changed, strict=True) if not done])
        return changed

    return read


def _refuse_irregular(held: Sequence[MessageRef]) -> None:
    """Reject ids that Node rejects, unless they have a receipt."""
    if not all(receipt is not None or checks.is_regular_id(id_) for id_, receipt in held):
        raise InvalidFormatError("id")


def _created(reply: list[Any]) -> int:
    if reply[0] == b"exists":
        raise QueueExistsError
    return 1


def _unlisted(reply: list[Any]) -> int:
    if reply[0] == b"not_found":
        raise InvalidFormatError("qname")
    return 1


def _names(reply: list[bytes]) -> list[str]:
    return sorted(checks.text_of(name) for name in reply[1:])


def _sent(reply: list[Any]) -> list[str]:
    if reply[0] == b"too_long":
        raise MessageTooLongError
    return [id_.decode() for id_ in reply[1:]]


def _received(reply: list[Any]) -> Received:
    if reply[0] == b"ok":
        return Received(read_messages(reply))
    return Received([], float(reply[1]) / 1000 if reply[1] else None)


def _first_received(received: Received) -> RsmqMessage | None:
    return received.messages[0] if received.messages else None


def _next(reply: list[Any]) -> tuple[list[bool], Received]:
    deleted = [word == b"deleted" for word in reply.pop(1)]
    return deleted, _received(reply)


def _repaired(reply: list[Any]) -> tuple[tuple[str, str], Repaired]:
    _, ids, fields, *counts = reply
    return (ids.decode(), fields.decode()), Repaired(*counts)
