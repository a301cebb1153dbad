"""A queue's name bound to a client: calls a script by name with this queue's keys."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import urandom
from typing import TYPE_CHECKING, Any

from jobq.client.numbered_calls import Caller, Callers, Tries
from jobq.client.scripts import Script, load
from jobq.errors import ConfigError, LeaseLostError, ScriptError
from jobq.queue import keys
from jobq.queue.types import text_of

if TYPE_CHECKING:
    from jobq.client.connection import Client, Exchange

Argument = str | bytes | int
#: Messages of one enqueue: nobody else is served meanwhile, and 1,000 take about two milliseconds.
PER_CALL = 250
#: Of content, about, for the same reason.
BYTES_PER_CALL = 4 * 1024 * 1024
#: In characters.
LONGEST_MID = 128
#: What the tokens of messages fence besides the call's number: where that doesn't help any more, the same under a
#: new one does no harm. What a lost dequeue handed out stays locked until its lease ends.
FENCED = frozenset(("dequeue", "finish", "release"))
_URLSAFE = bytes.maketrans(b"+/", b"-_")


class Binding:
    """What every queue needs: its keys, its scripts, its callers."""

    def __init__(self, name: str, client: Client | None = None) -> None:
        self.name = keys.checked_name("queue", name)
        if client is None:
            from jobq.client.connection import default_client

            client = default_client()
        self.client = client
        self.prefix = keys.prefix(client.namespace, name)
        self.wake_key = keys.key(self.prefix, "wake")
        self._callers = Callers()
        self._bound: dict[str, tuple[Script, list[str], bool]] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def result_key(self, mid: str) -> str:
        """Where the result of `mid` is kept, as a list of one."""
        return keys.result(self.prefix, mid)

    def _bind(self, name: str) -> tuple[Script, list[str], bool]:
        script = load("queue", name)
        names = [keys.key(self.prefix, key) for key in script.keys if key != "last_call"]
        bound = self._bound[name] = (script, names, "last_call" in script.keys)
        return bound

    def _run(self, name: str, *args: Argument) -> Any:
        """Run a script that is harmless to repeat."""
        script, names, _ = self._bound.get(name) or self._bind(name)
        return self.client.run(script, names, args)

    @contextmanager
    def _own(self, caller: Caller | None) -> Iterator[Caller]:
        """`caller` itself, or a spare one for the length of one call."""
        if caller is not None:
            yield caller
            return
        spare = self._callers.take()
        yield spare
        # Not reached after an error: that call may still arrive, so its caller stays out of use.
        self._callers.give_back(spare)

    def _call(
        self,
        name: str,
        caller: Caller,
        args: Sequence[Argument],
        extra_keys: Sequence[str] = (),
        by: Exchange | None = None,
        tries: Tries | None = None,
    ) -> Any:
        """Run a script as the next numbered call of `caller`; `tries`: those made of that call before."""
        script, keys, numbered = self._next_call(name, caller, args, extra_keys)
        reply = self.client.run(
            script, keys, numbered, by, tries=tries, renew=renewal(name, caller, args)
        )
        return served(self.name, caller, reply)

    def _by_parts(
        self, verb: str, ids: Sequence[str], caller: Caller | None, now: int | None
    ) -> list[str]:
        """A word per id. Each part is one call."""
        words: list[str] = []
        for first in range(0, len(ids), PER_CALL):
            args = [moment(now), *ids[first : first + PER_CALL]]
            with self._own(caller) as own:
                words += map(text_of, self._call(verb, own, args))
        return words

    def _next_call(
        self,
        name: str,
        caller: Caller,
        args: Sequence[Argument],
        extra_keys: Sequence[str] = (),
    ) -> tuple[Script, tuple[str, ...], tuple[Argument, ...]]:
        script, names, _ = self._bound.get(name) or self._bind(name)
        keys = (*names, f"{self.prefix}call:{caller.id}", *extra_keys)
        return script, keys, (caller.id, caller.next(), *args)


def renewal(
    name: str, caller: Caller, args: Sequence[Argument]
) -> Callable[[], tuple[Argument, ...]] | None:
    """The arguments of the same call under the next number, where that does no harm."""
    if name not in FENCED:
        return None

    def renewed() -> tuple[Argument, ...]:
        caller.renewals += 1
        return (caller.id, caller.next(), *args)

    return renewed


def served(queue: str, caller: Caller, reply: Any) -> Any:
    """The reply to a numbered call; LeaseLostError when the caller was refused."""
    if reply and reply[0] == b"closed":
        raise LeaseLostError(
            f"queue {queue!r} refused caller {caller.id}: it was closed, or its call is older"
        )
    return reply


def new_mid() -> str:
    """A mid that nobody else has."""
    return mid_of(urandom(12))


def mid_of(digest: bytes) -> str:
    """12 bytes as a mid: 84 of their bits in 14 characters, which fit 16 bytes of the server's memory."""
    return b2a_base64(digest, newline=False)[:14].translate(_URLSAFE).decode()


def checked_mid(mid: str) -> str:
    """`mid` itself, or ConfigError."""
    if not 0 < len(mid) <= LONGEST_MID or not mid.isprintable():
        raise ConfigError(f"mid {mid!r} can't be used; take 1-128 printable characters")
    return mid


def moment(now: int | None) -> Argument:
    """The `now` argument of a script."""
    return "" if now is None else now


def word(value: bytes, known: frozenset[str]) -> str:
    """A reply's word, which must be one this version knows."""
    text = value.decode()
    if text not in known:
        raise ScriptError(f"a script answered {text!r}; is another version of jobq at work here?")
    return text
