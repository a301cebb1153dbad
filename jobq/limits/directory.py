"""All limits on a server: their declarations, their use, and the rules set on the server."""

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
from jobq.limits.concurrency_limit import MAX_LEASE_S, ConcurrencyLimit
from jobq.limits.rate_limit import RateLimit
from jobq.records import JsonRecord, MomentOrZero

#: Shown as the rule of a limit whose keys can't be read.
DAMAGED = "damaged"


class LimitHolder(JsonRecord):
    """The holder of a slot, and the remaining time of its lease."""

    who: str
    left_ms: int


class LimitRecord(JsonRecord):
    """A limit and its current use.

    Attributes:
        limit: The name of the limit.
        rule: The rule in force: `100/m`, or a number of slots.
        program: The latest declaration by a program.
        set_here: Whether the rule was set on the server, overriding programs.
        used: Starts in the last span, or slots in use. If the rate is above 10,000 per span: the used part of a burst.
        waits_ms: Time until the turn of the last waiting caller.
        held_ms: Time until the hold ends; 0 without a hold.
        seen_at: Time of the latest declaration.
        holders: Holders of slots, at most 1,000.
        max: Maximum number of starts, or of slots.
        span_ms: The time span of a rate; 0 for slots.
    """

    limit: str
    rule: str
    program: str
    set_here: bool = False
    used: int = 0
    waits_ms: int = 0
    held_ms: int = 0
    seen_at: MomentOrZero = 0
    holders: tuple[LimitHolder, ...] = ()
    max: int = 0
    span_ms: int = 0


def limit_names(client: Client) -> list[str]:
    """Return the valid names of all limits, sorted."""
    listed = client.command("HKEYS", keys.limit_names(client.namespace))
    return sorted(name.decode() for name in listed if is_name("limit", name))


def limit_facts(client: Client, names: Sequence[str] | None = None) -> list[LimitRecord]:
    """Return the named limits, or all limits, sorted by name. An unreadable limit has the rule DAMAGED."""
    wanted = limit_names(client) if names is None else sorted(names)
    if not wanted:
        return []
    listed = client.command("HMGET", keys.limit_names(client.namespace), *wanted)
    said = [(raw or b"").decode("utf-8", "replace") for raw in listed]
    calls = list(map(partial(_look, client), wanted, said))
    replies = iter(run_each(client, [call for call in calls if call is not None]))
    answers = [None if call is None else next(replies) for call in calls]
    return list(map(_facts_or_damage, wanted, said, answers))


def _look(client: Client, name: str, said: str) -> ScriptCall[list[Any]] | None:
    program = said.partition(" ")[0]
    try:
        most, span_ms, margin_ms = _parsed(program)
    except ValueError:
        return None
    values: Values = {"now": "", "most": most, "span_ms": span_ms or "", "margin_ms": margin_ms}
    script = LimitCalls(name, program, client).scripts["look"]
    return ScriptCall(script.script, script.keys, script.script.order(values), list)


def _facts_or_damage(name: str, said: str, reply: Any) -> LimitRecord:
    if isinstance(reply, UnavailableError):
        raise reply
    try:
        if reply is not None and not isinstance(reply, JobqError):
            return _facts(name, said, reply)
    except ValueError:
        pass  # Another program may have written this limit's keys. The other limits must still be listed.
    return LimitRecord(name, DAMAGED, said[:100])


def _facts(name: str, said: str, reply: list[Any]) -> LimitRecord:
    program, _, seen_at = said.partition(" ")
    most, span_ms, is_set, used, held_ms, turn_ms, *holders = reply
    return LimitRecord(
        name, str(Rate(most, span_ms)) if span_ms else str(most), program, bool(is_set), used, turn_ms, held_ms,
        1000 * int(seen_at) if seen_at.isdigit() and len(seen_at) <= 11 else 0,
        tuple([
            LimitHolder(token.decode("utf-8", "replace").partition(" ")[2], left_ms)
            for token, left_ms in zip(holders[::2], holders[1::2], strict=True)
        ]),
        most, span_ms,
    )  # fmt: skip


def _parsed(program: str) -> tuple[int, int, int]:
    """Return a declared limit as numbers: starts, span in ms, and margin in ms. For slots, the span is 0."""
    rate, _, margin = program.partition("+")
    try:
        parsed = rate_of(rate)
        return parsed.most, parsed.span_ms, int(margin or 0)
    except ValueError:
        return int(rate) if rate.isdigit() and 0 < int(rate) <= 10**9 else 1, 0, 0


def set_limit(client: Client, name: str, rule: str) -> None:
    """Set a rate or a number of slots on the server, to override the declarations of programs.

    Raises:
        ConfigError: The rule is invalid, or programs declare the other kind of limit.
    """
    made = (
        ConcurrencyLimit(name, int(rule), client=client)
        if rule.isdigit()
        else RateLimit(name, rule, client=client)
    )
    known = client.command("HGET", keys.limit_names(client.namespace), name)
    said = known.decode("utf-8", "replace").partition(" ")[0] if known else ""
    if said and ("/" in said) != isinstance(made, RateLimit):
        kind = "a rate, such as 100/m" if "/" in said else "a number of slots, such as 50"
        raise ConfigError(
            f"{rule!r} doesn't fit limit {name}, which programs declare as {said!r}; use {kind}"
        )
    most, span_ms = (
        (made.rate.most, made.rate.span_ms) if isinstance(made, RateLimit) else (made.max_slots, 0)
    )
    calls = made.calls
    if not known:
        calls.perform(calls.list_steps())
    values: Values = {"most": most, "span_ms": span_ms or ""}
    calls.perform(calls.run_steps("set", values))


def unset_limit(client: Client, name: str) -> bool:
    """Remove the rule that was set on the server; return whether there was one."""
    calls = RateLimit(name, "1/s", client=client).calls
    reply = calls.perform(calls.run_steps("set", {"most": "", "span_ms": ""}))
    return bool(reply[1])


def hold_limit(client: Client, name: str, seconds: float) -> None:
    """Reject all starts for a number of seconds; 0 ends the hold."""
    RateLimit(name, "1/s", client=client).hold(seconds)


class LimitDamage(NamedTuple):
    """A damaged key of a limit, and the violated rule. `key` is empty for an invalid name in the list of limits."""

    limit: str
    rule: str
    key: str = ""
    raw: bytes = b""


#: Number of starts or holders per read.
PAGE = 1_000


def limit_damage(client: Client) -> Iterator[LimitDamage]:
    """Yield the damaged keys of all limits on a server. The limits may be in use."""
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
    """Remove an invalid name from the list, or rename a damaged key; return a description of the repair.

    After the rename, the limit restarts empty. So it may allow the full rate twice within one span, and grant slots
    that are still in use.
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
    """Check that a limit's start times are sorted, latest first; return the violated rule, or ''."""
    at = 0  # pages overlap by one entry
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
    most = client.clock_ms(key) + MAX_LEASE_S * 1000
    at = float(latest[1])
    return "" if math.isfinite(at) and at <= most else "a lease with an impossible end"


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
#: Key -> the key's type, and a check that returns the violated rule or ''.
_KEYS: dict[str, tuple[str, Callable[[Client, str], str]]] = {
    "ring": ("list", _ring),
    "holders": ("zset", _holders),
    "state": ("hash", _numbers),
    "settings": ("hash", _numbers),
}
