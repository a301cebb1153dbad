"""Names of a limit's keys: `jobq:limit:{stripe}:ring`. The limit's name is the hash tag.

=================  =======================================================================
ring               list: when the last starts were, epoch ms, newest first; PX while they count
state              hash: hold, hold_ms, advice (the last turn that was given), and of a rate above 10,000 moment,
                   started_at, idle_at; of slots lease_ms, the longest; PX until none of it matters
settings           hash: most, span_ms; what the server was set to, until it is unset
holders            sorted set, token -> when its lease ends, epoch ms; PX a lease
call:<caller>      string, PX 10 min: number and reply of that caller's last start
=================  =======================================================================

`jobq:limits`, outside any slot, is a hash: name -> what the program said last, and when.
"""

from __future__ import annotations

from jobq.client.acl import CALLS, READING, allowed_for, commands, literal, selector
from jobq.client.functions import scripts
from jobq.client.names import checked_name
from jobq.client.scripts import Script, load

#: What checking the structure of limits reads, and what repairing it sends.
_CHECKS, _MENDS = ("hgetall", "lrange", "type", "zrange"), ("rename",)


def base(namespace: str, limit: str) -> str:
    """What every key of a limit begins with."""
    return f"{checked_name('namespace', namespace)}:limit:{{{checked_name('limit', limit)}}}:"


def limit_names(namespace: str) -> str:
    """Hash of the limits ever used; outside any slot of theirs."""
    return f"{checked_name('namespace', namespace)}:limits"


def rights(namespace: str = "jobq") -> list[str]:
    """Return the words after a user's name, without passwords: to use and set all limits."""
    return [
        f"~{_pattern(namespace)}",
        "resetchannels",
        *allowed_for(_scripts()),
        *_names(namespace),
    ]


def within(namespace: str = "jobq", *, repairing: bool = False) -> list[str]:
    """Return the words that allow the same to a user who does other things. repairing: and to repair damaged limits."""
    needed = set[str]().union(*map(commands, _scripts()))
    if repairing:
        needed |= {*_CHECKS, *_MENDS}
    words = selector(f"~{_pattern(namespace)}", [*CALLS, *sorted(needed)])
    return [*words, *_names(namespace, "hdel" if repairing else "")]


def reading(namespace: str = "jobq") -> list[str]:
    """Return the words that allow a user who does other things to see all limits, and nothing else of them."""
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
