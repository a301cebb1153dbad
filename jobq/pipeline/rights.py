"""Permissions of a pipeline user, computed from the scripts and printed by `jobq acl pipeline`."""

from __future__ import annotations

from collections.abc import Sequence

from jobq.client.acl import allowed_for, literal
from jobq.client.names import checked_name
from jobq.client.scripts import folder, load
from jobq.queue import keys
from jobq.queue.roles import patterns_of
from jobq.topics.keys import topic_names

#: Scripts of other areas that the pipeline calls.
_CALLED = (
    ("queue", "enqueue"), ("queue", "counts"), ("queue", "set_event_level"), ("topic", "read"), ("topic", "find"),
)  # fmt: skip
#: Commands that the pipeline itself sends to a queue's or a topic's keys.
_OWN = (
    "xinfo|stream", "xrange", "xrevrange", "xtrim", "zcard", "zcount", "zrange",
)  # fmt: skip


def rights(namespace: str = "jobq", names: Sequence[str] = ()) -> list[str]:
    """Return the ACL rules of a pipeline user, without passwords. Without names, the rules cover all queues and topics.

    The rules allow reading queues and topics as DataFrames, writing DataFrames to queues, and filling a lake.
    """
    paths = (folder() / "pipeline").glob("[!_]*.lua")
    called = [*_CALLED, *(("pipeline", path.stem) for path in paths)]
    patterns = [pattern for name in names for pattern in patterns_of(namespace, name)]
    every = f"{literal(checked_name('namespace', namespace))}:{{*"
    return [
        *(f"~{pattern}" for pattern in patterns or [every]), "resetchannels",
        *allowed_for((load(*script) for script in called), _OWN),
        f"(~{literal(keys.queue_names(namespace))} ~{literal(topic_names(namespace))} +sadd +smembers)",
        f"(~{literal(keys.redactions(namespace))} +hmget)",
        f"(~{literal(keys.audit_log(namespace))} +xinfo|stream +xrange)",
    ]  # fmt: skip
