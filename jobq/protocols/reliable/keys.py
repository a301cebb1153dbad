"""Names of a queue's keys, such as `reliable:{mails}:undelivered`.

A hash tag in queue names, as in `{shop}mails`, lets one pop read several queues of a Cluster.

=============  ==========================================================================
undelivered    list of waiting ids, next id first
tickets        list of waiting ids not promised to a blocked client, for blocking pops
delivered      sorted set of ids by last delivery (epoch ms); fractions order deliveries within one ms
messages       hash of contents by id
unacked        hash of counts by id: earlier deliveries without acknowledgement
tokens         hash of consumers' tokens by id
dead           sorted set of ids by time of death: messages delivered too often
meta           hash: last_id, issued_at (of tickets), skew (see _look.lua), max_deliveries
call:<caller>  string, expires after 10 min: number and answer of that caller's last call
=============  ==========================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from jobq.client.acl import READING, allowed_for, commands, literal, selector
from jobq.client.functions import scripts
from jobq.client.names import checked_name
from jobq.errors import ConfigError

PLACES = (
    "undelivered", "tickets", "delivered", "messages", "unacked", "tokens", "dead", "meta",
)  # fmt: skip
_NAME = re.compile(r"[^{}]*\{([^{}]+)\}[^{}]*|([^{}]+)")


def checked_key(name: str) -> str:
    """Return `name`, or raise ConfigError for an invalid name."""
    if not isinstance(name, str) or not _fits(name):
        raise ConfigError(
            f"key {name!r} can't be used; use 1-128 printable characters without white space, and braces "
            "only for one hash tag: {shop}mails"
        )
    if name[0] == "{" and name[-1] == "}":
        raise ConfigError(
            f"key {name!r} would share its messages with {name[1:-1]!r}, which is in the same slot; use that name"
        )
    return name


@lru_cache(1024)
def _fits(name: str) -> bool:
    spaced = any(c.isspace() for c in name)
    return (
        0 < len(name) <= 128 and name.isprintable() and not spaced and bool(_NAME.fullmatch(name))
    )


def tag_of(name: str) -> str:
    """Return the hash tag that decides the queue's slot in a Cluster."""
    match = _NAME.fullmatch(checked_key(name))
    assert match is not None
    return match[1] or match[2]


def checked_space(ns: str) -> str:
    """Return `ns`, the first part of all keys; raise ConfigError if it is invalid."""
    if ":" in checked_name("ns", ns):
        raise ConfigError(f"ns {ns!r} can't be used; leave out the colon")
    return ns


@lru_cache(1024)
def prefix(ns: str, name: str) -> str:
    """Return the prefix of the queue's keys."""
    return f"{ns}:{checked_key(name) if '{' in name else f'{{{checked_key(name)}}}'}:"


@lru_cache(1024)
def places(ns: str, name: str) -> tuple[str, ...]:
    """Return the eight keys of a queue, in the order that every script expects."""
    base = prefix(ns, name)
    return tuple(base + place for place in PLACES)


def of_one_slot(names: Iterable[str]) -> None:
    """Raise ConfigError unless all queues are in the same slot of a Redis Cluster."""
    tags = {tag_of(name): name for name in names}
    if len(tags) > 1:
        shown = " and ".join(repr(name) for name in list(tags.values())[:2])
        raise ConfigError(
            f"{shown} are in different slots of the Cluster; use one hash tag: {{shop}}high, {{shop}}low"
        )


#: Commands that jobq sends to a queue's keys directly.
_OWN = ("blpop", "llen")


def rights(ns: str = "reliable", queues: Sequence[str] = ()) -> list[str]:
    """Return ACL rules, without passwords, for a user with all rights to `queues`, or to the whole namespace."""
    called = (script for script in scripts() if script.area == "reliable")
    patterns = [literal(prefix(ns, queue)) for queue in queues] or [
        f"{literal(checked_space(ns))}:"
    ]
    return [*(f"~{pattern}*" for pattern in patterns), "resetchannels", *allowed_for(called, _OWN)]


#: Scripts that pages call.
_OF_LOOKING = ("info", "inspect")


def rights_to_look(ns: str = "reliable") -> list[str]:
    """Return ACL rules for a user who may view queues, but not list their names.

    Listing queues would need SCAN, which reveals all keys of a server.
    """
    called = [
        script for script in scripts() if script.area == "reliable" and script.name in _OF_LOOKING
    ]
    needed = sorted(set[str]().union(*map(commands, called)))
    return selector(f"%R~{literal(checked_space(ns))}:*", [*READING, *needed])
