"""Names of a topic's keys, such as `jobq:{orders}:topic:log`. The topic's name is the hash tag.

=================  =======================================================================
log                stream, `index-appended_at` -> m content, k key, h headers
base               stream like log: entries that compaction kept, with indexes up to base_to in meta
clean              stream: the new base that a running compaction writes
newest             hash, key -> latest index, only during a compaction
marks              sorted set, index by the bytes appended before the index, one per 64 KiB
meta               hash: last, last_at, first, base_to, bytes, limits, progress of a compaction
groups             set, names of the groups
call:<caller>      string, expires after 10 min: number and reply of the caller's last call. The record of a replay
                   doesn't expire before the replay; `….first` has the first index, and `….lock` the lock
=================  =======================================================================

Each group has these keys:

=================  =======================================================================
group:<name>       hash: cursor (last index handed out), paused, out_of_range, skipped
held:<name>        sorted set, tokens of the batches that readers hold, by their first index
leases:<name>      sorted set, the same tokens, by the end of their lease
batches:<name>     hash, token -> last index, number of deliveries
=================  =======================================================================
"""

from __future__ import annotations

from collections.abc import Sequence

from jobq.client.acl import CALLS, READING, allowed_for, commands, literal, selector
from jobq.client.functions import scripts
from jobq.client.names import checked_name
from jobq.queue.keys import prefix

_OF_GROUPS = frozenset(("group", "held", "leases", "batches"))


def base(namespace: str, topic: str) -> str:
    """Return the prefix of a topic's keys."""
    return f"{prefix(namespace, checked_name('topic', topic))}topic:"


def key(start: str, name: str, group: str = "", caller: str = "") -> str:
    """Return the key for a name in the Lua scripts, such as `log`."""
    if name == "last_call":
        return f"{start}call:{caller}"
    return f"{start}{name}:{group}" if name in _OF_GROUPS else start + name


def of_topic(start: str) -> list[str]:
    """Return all keys of a topic, except its groups' keys and its `call:` keys."""
    return [start + name for name in ("log", "base", "clean", "newest", "marks", "meta", "groups")]


def of_group(start: str, group: str) -> list[str]:
    """Return all keys of a group."""
    return [key(start, name, group) for name in sorted(_OF_GROUPS)]


def topic_names(namespace: str) -> str:
    """Return the key of the set of all topics' names, which is outside the topics' slots."""
    return f"{checked_name('namespace', namespace)}:topics"


#: Commands that jobq sends to a topic's keys directly.
_OWN = ("unlink", "xrange", "xread")
#: Scripts that an exporter uses to read the lag of groups.
_OF_LAG = ("describe", "lag")
_STEERING = ("find", "seek", "steer")


def rights(namespace: str = "jobq", topics: Sequence[str] = ()) -> list[str]:
    """Return ACL rules, without passwords, for a user who appends to, reads and controls `topics`, or all topics.

    The rules cover only topics in jobq's layout, because redismq's keys can't be distinguished from other keys.
    """
    called = (
        script
        for script in scripts()
        if script.area == "topic" and not script.name.startswith("redismq")
    )
    patterns = [f"{literal(base(namespace, topic))}*" for topic in topics]
    names = literal(topic_names(namespace))
    return [
        *(f"~{pattern}" for pattern in patterns or [f"{literal(checked_name('namespace', namespace))}:{{*}}:topic:*"]),
        "resetchannels", *allowed_for(called, _OWN),
        f"(~{names} +sadd +smembers +srem)",
    ]  # fmt: skip


def rights_to_steer(namespace: str = "jobq") -> list[str]:
    """Return additional ACL rules that let a user pause and resume topic groups, and change their positions."""
    called = [
        script
        for script in scripts()
        if script.area == "topic" and script.name in (*_OF_LAG, *_STEERING)
    ]
    needed = sorted(set[str]().union(*map(commands, called)))
    pattern = f"~{literal(checked_name('namespace', namespace))}:{{*}}:topic:*"
    names = f"%R~{literal(topic_names(namespace))}"
    return [*selector(pattern, [*CALLS, *needed]), *selector(names, ["smembers"])]


def rights_to_lag(namespace: str = "jobq") -> list[str]:
    """Return additional ACL rules that let a user read the lag of topic groups."""
    called = [script for script in scripts() if script.area == "topic" and script.name in _OF_LAG]
    needed = sorted(set[str]().union(*map(commands, called)))
    pattern = f"%R~{literal(checked_name('namespace', namespace))}:{{*}}:topic:*"
    names = f"%R~{literal(topic_names(namespace))}"
    return [*selector(pattern, [*READING, *needed]), *selector(names, ["smembers"])]
