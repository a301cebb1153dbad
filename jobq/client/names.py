"""Names in keys: valid names of namespaces, queues and topics."""

from __future__ import annotations

import re

from jobq.errors import ConfigError

MAX_LENGTH = 128
_REFUSED = frozenset("{} ")
_WEIGHTED = re.compile(r":\d+\Z")


def checked_name(kind: str, name: str) -> str:
    """Return `name`; raise ConfigError for braces, white space, control characters or an empty name."""
    # All other white space isn't printable.
    if not 0 < len(name) <= MAX_LENGTH or not name.isprintable() or not _REFUSED.isdisjoint(name):
        raise ConfigError(
            f"{kind} {name!r} can't be used; use 1-{MAX_LENGTH} printable characters without braces or white space"
        )
    return name


def checked_queue(name: str) -> str:
    """Return the name of a queue for messages; raise ConfigError if it is invalid or has a meaning in `--queues`."""
    checked_name("queue", name)
    if name.startswith("-") or "," in name or _WEIGHTED.search(name):
        raise ConfigError(
            f"queue {name!r} can't be used: on the command line '-' begins an option, ',' separates queues "
            "and ':3' is a weight; use another name"
        )
    return name


def is_name(kind: str, name: bytes) -> bool:
    """Whether the server's bytes can be such a name."""
    try:
        checked_name(kind, name.decode())
    except (UnicodeDecodeError, ConfigError):
        return False
    return True
