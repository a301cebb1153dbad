"""Names of a limit's keys, such as `jobq:limit:{stripe}:ring`. The limit's name is the hash tag.

=================  =======================================================================
ring               list: times of the latest starts, epoch ms, newest first; expires when they no longer count
state              hash: hold, hold_ms, advice (latest start time suggested to a caller); for a rate above 10,000 also
                   moment, started_at, idle_at; for slots lease_ms, the longest lease; expires when it no longer matters
settings           hash: most, span_ms, as set on the server; never expires
holders            sorted set, token -> end of its lease, epoch ms; expires after a lease
call:<caller>      string: number and reply of the caller's latest start; expires after 10 min
=================  =======================================================================

`jobq:limits`, outside any slot, is a hash: name -> the latest declaration and its time.
"""

from __future__ import annotations

from jobq.client.acl import CALLS, READING, allowed_for, commands, literal, selector
from jobq.client.functions import scripts
from jobq.client.names import checked_name
from jobq.client.scripts import Script, load

#: Commands that check limits, and commands that repair them.
_CHECKS, _MENDS = ("hgetall", "lrange", "type", "zrange"), ("rename",)


def base(namespace: str, limit: str) -> str:
    """Return the common prefix of a limit's keys."""
    return f"{checked_name('namespace', namespace)}:limit:{{{checked_name('limit', limit)}}}:"


def limit_names(namespace: str) -> str:
    """Return the key of the hash that lists all limits. The key has no hash tag."""
    return f"{checked_name('namespace', namespace)}:limits"


def rights(namespace: str = "jobq") -> list[str]:
    """Return the ACL rules, without a password, of a user who may use and set all limits."""
    return [
        f"~{_pattern(namespace)}",
        "resetchannels",
        *allowed_for(_scripts()),
        *_names(namespace),
    ]


def within(namespace: str = "jobq", *, repairing: bool = False) -> list[str]:
    """Return additional ACL rules for a user who may use all limits.

    Args:
        namespace: The namespace of the limits.
        repairing: Also allow the repair of damaged limits.
    """
    needed = set[str]().union(*map(commands, _scripts()))
    if repairing:
        needed |= {*_CHECKS, *_MENDS}
    words = selector(f"~{_pattern(namespace)}", [*CALLS, *sorted(needed)])
    return [*words, *_names(namespace, "hdel" if repairing else "")]


def reading(namespace: str = "jobq") -> list[str]:
    """Return additional ACL rules for a user who may read all limits."""
    needed = [*READING, *sorted({*commands(load("limit", "look")), *_CHECKS})]
    names = f"%R~{literal(limit_names(namespace))}"
    return [
        *selector(f"%R~{_pattern(namespace)}", needed),
        *selector(names, ("hkeys", "hmget", "exists")),
    ]


def _scripts() -> list[Script]:
    return [script for script in scripts() if script.area == "limit"]


def _pattern(namespace: str) -> str:
    return f"{literal(checked_name('namespace', namespace))}:limit:{{*"


def _names(namespace: str, more: str = "") -> list[str]:
    usual = ("exists", "hget", "hgetall", "hkeys", "hmget", "hset")
    return selector(f"~{literal(limit_names(namespace))}", (*usual, more) if more else usual)
