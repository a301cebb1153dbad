"""What each kind of user must be allowed, read from the scripts: the lines that `jobq acl` prints.

A function runs with the rights of its caller, so a user needs FCALL, what the scripts send, and the few
commands that jobq sends outside of them; each of those only where it is needed, in a selector.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jobq.client.scripts import Script, folder, load
from jobq.errors import ConfigError
from jobq.queue import keys

#: Words in the scripts that look like commands, and are options of some or part of a key.
OPTIONS = frozenset(
    (
        "ALL", "BYSCORE", "COUNT", "LIMIT", "MAXLEN", "MINID", "PX", "QUEUE", "QUEUES", "REV", "STREAM", "WITHSCORES",
    )
)  # fmt: skip
_WORD = re.compile(r"'([A-Z]{2,})'")
_COMMENT = re.compile(r"--\[\[.*?\]\]|--[^\n]*", re.DOTALL)
_SPECIAL = re.compile(r"([*?\[\]\\])")
#: Logging in, asking a Cluster who serves what, waiting for replicas; nothing that reads or ends others.
#: CLIENT TRACKING would tell the name of every key of the server, and SELECT reaches other databases.
CONNECTION = (
    "+@connection", "-@admin", "-@dangerous", "-client|tracking", "-client|caching", "-select", "+wait",
    "+cluster|slots",
)  # fmt: skip
#: What calls a function; of those that write nothing.
CALLS, READING = ("fcall", "fcall_ro"), ("fcall_ro",)


class Role(NamedTuple):
    """One kind of user.

    scripts: those it calls. queue: what it sends to a queue's keys itself. names, workers: and to the two
    keys outside every queue. spent: and to the record of its sealed calls that are done. verbs: and without a key.
    reads: it writes nothing at all.
    """

    scripts: tuple[str, ...]
    queue: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    spent: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    reads: bool = False


_PRODUCER = ("enqueue", "status", "cancel")
_LOOKING = ("content", "counts", "dead", "fsck", "status")
_RESULTS = ("blmove", "exists", "lindex")
ROLES = {
    "producer": Role(_PRODUCER, _RESULTS, ("sadd",)),
    "worker": Role(
        (*_PRODUCER, "close", "collect", "counts", "dequeue", "extend", "finish", "progress", "release"),
        (*_RESULTS, "blpop", "hget", "lmpop", "lpop"), ("sadd", "smembers"), ("hset", "hdel"),
        ("zmscore", "zadd", "zremrangebyscore", "pexpire"), ("function|list", "client|unblock"),
    ),
    "dashboard": Role(
        _LOOKING, ("exists", "lindex", "ttl", "xlen", "xinfo|stream", "xrange", "xrevrange"),
        ("smembers",), ("hgetall",), reads=True,
    ),
    "operator": Role(
        (*_LOOKING, "cancel", "clear", "level", "pause", "purge", "resume", "revive"),
        ("unlink",), ("smembers", "srem"), ("hgetall",),
    ),
}  # fmt: skip
DEPLOYER = "deployer"


def commands(script: Script) -> set[str]:
    """Every command that a script may send, in lower case."""
    words = _WORD.findall(_COMMENT.sub("", script.text))
    return {word.lower() for word in words if word not in OPTIONS}


def script_commands() -> tuple[str, ...]:
    """Every command that a script of the engine sends."""
    paths = (folder() / "queue").glob("[!_]*.lua")
    return tuple(sorted(set[str]().union(*(commands(load("queue", path.stem)) for path in paths))))


def rights(role: str, namespace: str = "jobq", queues: Sequence[str] = ()) -> list[str]:
    """The words after a user's name, passwords apart: for `queues`, or all of the namespace."""
    if role == DEPLOYER:
        verbs = (f"+function|{verb}" for verb in ("load", "list", "delete"))
        return ["-@all", *CONNECTION, *verbs]
    if role not in ROLES:
        raise ConfigError(f"role {role!r} is none; take one of {', '.join((*ROLES, DEPLOYER))}")
    asked = ROLES[role]
    called = (load("queue", name) for name in asked.scripts)
    mark = "%R~" if asked.reads else "~"
    calls = READING if asked.reads else CALLS
    return [
        *(f"{mark}{pattern}" for pattern in _patterns(namespace, queues)),
        "resetchannels", *allowed_for(called, asked.queue, (*calls, *asked.verbs)),
        *_selector(mark + literal(keys.queue_names(namespace)), asked.names),
        *_selector(mark + literal(keys.workers(namespace)), asked.workers),
        *_selector(" ".join(mark + one for one in _spent(namespace, queues)), asked.spent),
    ]  # fmt: skip


def allowed_for(
    called: Iterable[Script], own: Iterable[str] = (), calls: Iterable[str] = CALLS
) -> list[str]:
    """The words that allow nothing but `calls`, what these scripts send, and what jobq sends itself."""
    needed = set(own).union(*map(commands, called))
    return ["-@all", *CONNECTION, *_allowed((*calls, *sorted(needed)))]


def _allowed(names: Iterable[str]) -> list[str]:
    return [f"+{name}" for name in names]


def _selector(key: str, names: Sequence[str]) -> list[str]:
    return [f"({key} {' '.join(_allowed(names))})"] if names else []


def _patterns(namespace: str, queues: Sequence[str]) -> list[str]:
    if queues:
        return [f"{literal(keys.prefix(namespace, queue))}*" for queue in queues]
    return [f"{literal(keys.checked_name('namespace', namespace))}:{{*"]


def _spent(namespace: str, queues: Sequence[str]) -> list[str]:
    if queues:
        return [literal(keys.spent(namespace, queue)) for queue in queues]
    return [literal(keys.spent(namespace, "")).removesuffix("}") + "*"]


def literal(text: str) -> str:
    """A pattern that only this text matches."""
    return _SPECIAL.sub(r"\\\1", text)
