"""Derive the commands and keys that a user needs from the scripts that the user calls.

A function runs with the rights of its caller. So a user needs FCALL, the commands that the scripts send, and the few
commands that jobq sends outside scripts. A selector allows each of these few commands only on the keys that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from jobq.client.scripts import Script

#: Words in the scripts that look like commands but are options of commands or parts of keys.
OPTIONS = frozenset(
    (
        "ALL", "BYSCORE", "COUNT", "GT", "LEFT", "LIMIT", "MAXLEN", "MINID", "PX", "QUEUE", "QUEUES", "REV", "RIGHT",
        "STREAM", "WEIGHTS", "WITHSCORES",
    )
)  # fmt: skip
#: The only subcommand that the scripts send, by command.
SUBCOMMANDS = {"xinfo": "xinfo|stream"}
_WORD = re.compile(r"'([A-Z]{2,})'")
_COMMENT = re.compile(r"--\[\[.*?\]\]|--[^\n]*", re.DOTALL)
_SPECIAL = re.compile(r"([*?\[\]\\])")
#: Commands to log in, to look up the nodes of a Cluster, and to wait for replicas. Commands that read or close other
#: connections are excluded. CLIENT TRACKING would reveal the name of every key, and SELECT gives access to other
#: databases.
CONNECTION = (
    "+@connection", "-@admin", "-@dangerous", "-client|tracking", "-client|caching", "-select", "+wait",
    "+cluster|slots",
)  # fmt: skip
#: Commands that call a function: for all users, and for users that only read.
CALLS, READING = ("fcall", "fcall_ro"), ("fcall_ro",)


def commands(script: Script) -> set[str]:
    """Return every command that a script may send, in lower case."""
    words = _WORD.findall(_COMMENT.sub("", script.text))
    names = (str(word).lower() for word in words if word not in OPTIONS)
    return {SUBCOMMANDS.get(name, name) for name in names}


def allowed_for(
    called: Iterable[Script], own: Iterable[str] = (), calls: Iterable[str] = CALLS
) -> list[str]:
    """Return ACL rules that allow `calls`, `own`, and all commands that the scripts in `called` send."""
    needed = set(own).union(*map(commands, called))
    return ["-@all", *CONNECTION, *_allowed((*calls, *sorted(needed)))]


def _allowed(names: Iterable[str]) -> list[str]:
    return [f"+{name}" for name in names]


def selector(key: str, names: Sequence[str]) -> list[str]:
    """Return a selector that allows these commands on keys with this pattern; empty if there are no commands."""
    return [f"({key} {' '.join(_allowed(names))})"] if names else []


def literal(text: str) -> str:
    """Return a pattern that matches only this text."""
    return _SPECIAL.sub(r"\\\1", text)
