"""Check names that become part of keys, such as names of namespaces, queues and topics."""

from __future__ import annotations

import re
from functools import lru_cache

from jobq.errors import ConfigError

MAX_LENGTH = 128
_REFUSED = frozenset("{} ")
_WEIGHTED = re.compile(r":\d+\Z")
#: Matches the full name of a partition and captures its queue. Java and SQL engines interpret the pattern alike.
PARTITION = "(.*[^/])/[0-9]+"
_PARTITION = re.compile(PARTITION)


def checked_name(kind: str, name: str) -> str:
    """Return `name`; raise ConfigError if it is empty or too long, or has braces, white space or control characters."""
    # The space is the only printable white space.
    if not 0 < len(name) <= MAX_LENGTH or not name.isprintable() or not _REFUSED.isdisjoint(name):
        raise ConfigError(
            f"{kind} {name!r} can't be used; use 1-{MAX_LENGTH} printable characters without braces or white space"
        )
    return name


def checked_queue(name: str) -> str:
    """Return the name of a queue; raise ConfigError if it is invalid or has a special meaning in `--queues`."""
    checked_name("queue", name)
    if name.startswith("-") or "," in name or _WEIGHTED.search(name):
        raise ConfigError(
            f"queue {name!r} can't be used: on the command line '-' begins an option, ',' separates queues "
            "and ':3' is a weight; use another name"
        )
    if is_partition(name):
        raise ConfigError(
            f"queue {name!r} can't be used: a name ending with '/' and a number belongs to a partition; use another"
        )
    return name


def is_partition(name: str) -> bool:
    """Whether this is the name of a partition of a queue, such as `low/3`."""
    return _PARTITION.fullmatch(name) is not None


@lru_cache(maxsize=1024)
def base_of(name: str) -> str:
    """Return the queue that a partition belongs to. If the queue isn't a partition, return its own name."""
    return name.rpartition("/")[0] if is_partition(name) else name


def partition_in(name: str) -> str:
    """Return `name` if it is the name of a partition, else ''."""
    return name if is_partition(name) else ""


def is_name(kind: str, name: bytes) -> bool:
    """Return whether bytes from the server are a valid name."""
    try:
        checked_name(kind, name.decode())
    except (UnicodeDecodeError, ConfigError):
        return False
    return True
