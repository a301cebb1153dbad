"""All limits of a server: what they are, what is used, and what the server was set to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from jobq.client.connection import Client
from jobq.client.names import is_name
from jobq.client.numbered_calls import ScriptCall, Values
from jobq.client.pipelining import run_each
from jobq.durations import Rate, rate_of
from jobq.errors import ConfigError, JobqError, UnavailableError
from jobq.limits import keys
from jobq.limits.calls import LimitCalls
from jobq.limits.limit import Limit
from jobq.limits.slots import LONGEST_LEASE_S, Slots

#: The rule of a limit whose keys can't be read.
DAMAGED = "damaged"


class SlotHolder(NamedTuple):
    """Who holds a slot, and for how much longer unless it is renewed."""

    who: str
    left_s: float


class LimitFacts(NamedTuple):
    """One limit. rule: what is in force, `100/m` or a number of slots. program: what the program said last.

    used: starts of the last span, or slots in use; above 10,000 a span, how much of what may start at once is used.
    seen_at: epoch seconds of the last sign of a program. most: starts of the rate, or slots. span_s: 0 for slots.
    """

    name: str
    rule: str
    program: str
    is_set: bool
    used: int
    held_s: float
    turn_s: float
    seen_at: int
    holders: list[SlotHolder]
    most: int = 0
    span_s: float = 0.0


def limit_names(client: Client) -> list[str]:
    """Return the names of all limits, sorted; what can't be a name is left out."""
    listed = client.command("HKEYS", keys.limit_names(client.namespace))
    return sorted(name.decode() for name in listed if is_name("limit", name))


def limit_facts(client: Client, names: Sequence[str] | None = None) -> list[LimitFacts]:
    """Return these limits, or all, by name; DAMAGED as the rule of one that can't be read."""
    wanted = limit_names(client) if names is None else sorted(names)
    if not wanted:
        return []
    listed = client.command("HMGET", keys.limit_names(client.namespace), *wanted)
    said = [(raw or b"").decode("utf-8", "replace") for raw in listed]
    calls = list(map(partial(_look, client), wanted, said))
    replies = iter(run_each(client, [call for call in calls if call is not None]))
    found = [None if call is None else next(replies) for call in calls]
    return list(map(_facts_or_damage, wanted, said, found))


def _look(client: Client, name: str, said: str) -> ScriptCall[list[Any]] | None:
    program = said.partition(" ")[0]
    try:
        most, span_ms, margin_ms = _parsed(program)
    except ValueError:
        return None
    values: Values = {"now": "", "most": most, "span_ms": span_ms or "", "margin_ms": margin_ms}
    script = LimitCalls(name, program, client).scripts["look"]
    return ScriptCall(script.script, script.keys, script.script.order(values), list)


def _facts_or_damage(name: str, said: str, reply: Any) -> LimitFacts:
    if isinstance(reply, UnavailableError):
        raise reply
    try:
        if reply is not None and not isinstance(reply, JobqError):
            return _facts(name, said, reply)
    except ValueError:
        pass  # anybody may have written these keys; the others are listed
    return LimitFacts(name, DAMAGED, said[:100], False, 0, 0.0, 0.0, 0, [])


def _facts(name: str, said: str, reply: list[Any]) -> LimitFacts:
    program, _, seen_at = said.partition(" ")
    most, span_ms, is_set, used, held_ms, turn_ms, *found = reply
    return LimitFacts(
        name, str(Rate(most, span_ms)) if span_ms else str(most), program, bool(is_set), used, held_ms / 1000,
        turn_ms / 1000, int(seen_at) if seen_at.isdigit() and len(seen_at) <= 11 else 0,
        [
            SlotHolder(token.decode("utf-8", "replace").partition(" ")[2], left_ms / 1000)
            for token, left_ms in zip(found[::2], found[1::2], strict=True)
        ],
        most, span_ms / 1000,
    )  # fmt: skip


def _parsed(program: str) -> tuple[int, int, int]:
    """Starts, span and margin in ms of what a program said; a span of 0 for slots."""
    rate, _, margin = program.partition("+")
    try:
        found = rate_of(rate)
        return found.most, found.span_ms, int(margin or 0)
    except ValueError:
        return int(rate) if rate.isdigit() and 0 < int(rate) <= 10**9 else 1, 0, 0


def set_limit(client: Client, name: str, rule: str) -> None:
    """Have the server win over what programs say: a rate, or a number of slots. ConfigError for the other kind."""
    made = (
        Slots(name, int(rule), client=client)
        if rule.isdigit()
        else Limit(name, rule, client=client)
    )
    known = client.command("HGET", keys.limit_names(client.namespace), name)
    said = known.decode("utf-8", "replace").partition(" ")[0] if known else ""
    if said and ("/" in said) != isinstance(made, Limit):
        kind = "a rate, such as 100/m" if "/" in said else "a number of slots, such as 50"
        raise ConfigError(
            f"{rule!r} can't be a rule for {name}, which programs declare as {said!r}; give {kind}"
        )
    most, span_ms = (
        (made.rate.most, made.rate.span_ms) if isinstance(made, Limit) else (made.most, 0)
    )
    calls = made.calls
    if not known:
        calls.perform(calls.list_steps())
    values: Values = {"most": most, "span_ms": span_ms or ""}
    calls.perform(calls.run_steps("set", values))


def unset_limit(client: Client, name: str) -> bool:
    """Have programs decide again; return whether the server was set to anything."""
    calls = Limit(name, "1/s", client=client).calls
    reply = calls.perform(calls.run_steps("set", {"most": "", "span_ms": ""}))
    return bool(reply[1])


def hold_limit(client: Client, name: str, seconds: float) -> None:
    """Have a limit allow nothing for a time; 0 ends a hold."""
    Limit(name, "1/s", client=client).hold(seconds)


class LimitDamage(NamedTuple):
    """What is wrong with a key of a limit. key: '' for the name in the list of limits."""

    limit: str
    rule: str
    key: str = ""
    raw: bytes = b""


#: Starts that are read at once, and holders.
PAGE = 1_000


def limit_damage(client: Client) -> Iterator[LimitDamage]:
    """Check all limits of a server while they are in use."""
    for raw in sorted(client.command("HKEYS", keys.limit_names(client.namespace))):
        name = raw.decode("utf-8", "backslashreplace")
        if not is_name("limit", raw):
            yield LimitDamage(name, "not a limit's name", raw=raw)
            continue
        base = keys.base(client.namespace, name)
        for key, (kind, check) in _KEYS.items():
            there = client.command("TYPE", base + key).decode()
            if there not in (kind, "none"):
                yield LimitDamage(name, f"key of another type: {there}", key)
            elif there == kind and (rule := check(client, base + key)):
                yield LimitDamage(name, rule, key)


def mend_limit(client: Client, damage: LimitDamage) -> str:
    """Remove an invalid name from the list, or rename a damaged key; return what was done.

    Without its key a limit begins anew: within one span it may allow as many starts again, and slots that are in use.
    """
    if not damage.key:
        client.command("HDEL", keys.limit_names(client.namespace), damage.raw)
        return "removed"
    base = keys.base(client.namespace, damage.limit)
    aside = f"{base}damaged:{damage.key}:{time.time_ns() // 1_000_000}"
    client.command("RENAME", base + damage.key, aside)
    return f"renamed to {aside}"


def _is_time(value: bytes) -> bool:
    return value.isdigit() and len(value) <= _DIGITS


def _ring(client: Client, key: str) -> str:
    """The times are whole, and the newest comes first. It moves while it is read, so pages overlap."""
    at = 0
    while page := client.command("LRANGE", key, at, at + PAGE):
        if not all(map(_is_time, page)):
            return "a start without a time"
        if any(int(newer) < int(older) for newer, older in pairwise(page)):
            return "starts out of order"
        at += PAGE
    return ""


def _holders(client: Client, key: str) -> str:
    latest = client.command("ZRANGE", key, -1, -1, "WITHSCORES")
    if not latest:
        return ""
    most = client.clock_ms(key) + LONGEST_LEASE_S * 1000
    at = float(latest[1])
    return "" if math.isfinite(at) and at <= most else "a lease that ends too late"


def _numbers(client: Client, key: str) -> str:
    reply = client.command("HGETALL", key)
    for field, value in zip(reply[::2], reply[1::2], strict=True):
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 <= number <= _LARGEST:
            return f"{field.decode('utf-8', 'backslashreplace')} is not a number"
    return ""


_DIGITS, _LARGEST = 16, 2**53 - 1
#: Key -> its type, and what is wrong with it, '' for nothing.
_KEYS: dict[str, tuple[str, Callable[[Client, str], str]]] = {
    "ring": ("list", _ring),
    "holders": ("zset", _holders),
    "state": ("hash", _numbers),
    "settings": ("hash", _numbers),
}
