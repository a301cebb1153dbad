"""The list of queues. Its key isn't in the queues' Cluster slots, so separate calls add queues to the list."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from redis.exceptions import ResponseError

from jobq.client.connection import Client, exchange
from jobq.client.names import checked_queue, is_name, is_partition
from jobq.client.numbered_calls import PASSING
from jobq.client.pipelining import commands
from jobq.client.runtime import runtime
from jobq.errors import JobqError
from jobq.queue import keys, presence

#: Keys of topics and of other protocols have other names.
_OF_A_QUEUE = re.compile(rb":\{([^{}]+)\}:(?:messages|dead|meta|events)$")
NAMES_PER_CALL = 500
#: How often a process adds each queue that it enqueues to, because the list may have lost the name.
LIST_EVERY_S = 60.0
#: Maximum number of queues for a page or a command. A longer list is cut; queues in use come first.
MAX_QUEUES = 10_000
#: Keys of a queue. If the queue was ever used, at least one of them exists.
_TRACES = ("messages", "meta", "schedules")
#: Number of queues whose keys are checked in one round trip.
_PER_LOOK = 5_000
#: How long a process keeps the names in use, if the list of queues is too long.
USED_S = 30.0


class ListedQueues(NamedTuple):
    """Queues for a page or a command.

    Attributes:
        names: Names of queues, sorted.
        strange: Invalid names in the list, sorted.
        left_out: Number of omitted names.
    """

    names: list[str]
    strange: Sequence[bytes] = ()
    left_out: int = 0


def register_queues(client: Client, names: Sequence[str]) -> None:
    """Add these names to the list of queues again, in case the list has lost them."""
    for first in range(0, len(names), NAMES_PER_CALL):
        client.command(
            "SADD", keys.queue_names(client.namespace), *names[first : first + NAMES_PER_CALL]
        )


def register_queue(client: Client, name: str) -> float:
    """Add `name` to the list of queues, at most once a minute.

    Return the time.monotonic() of the next necessary call.
    """
    known = (os.getpid(), client.url, client.namespace, name)
    now = time.monotonic()
    if now >= runtime.listed.get(known, 0.0):
        if not is_partition(name):
            checked_queue(name)
        client.command("SADD", keys.queue_names(client.namespace), name)
        runtime.listed[known] = now + LIST_EVERY_S
    return runtime.listed[known]


def queue_names(client: Client) -> list[str]:
    """Return the names of all queues that were ever used, sorted; invalid names are left out."""
    return sorted(name.decode() for name in _listed(client) if _is_name(name))


def listed_queues(client: Client) -> ListedQueues:
    """Return at most MAX_QUEUES queues for a page or a command.

    Every producer can write any name into the list. If it is too long, queues that workers serve are kept first, then
    queues that have keys, in alphabetical order. On a Cluster, keys aren't checked, because each check would be a round
    trip.
    """
    names, strange = list[str](), list[bytes]()
    for name in _listed(client):
        if _is_name(name):
            names.append(name.decode())
        else:
            strange.append(name)
    names.sort()
    kept = names if len(names) <= MAX_QUEUES else sorted(_used(client, names)[:MAX_QUEUES])
    return ListedQueues(kept, sorted(strange), len(names) - len(kept))


def _used(client: Client, names: Sequence[str]) -> list[str]:
    now = time.monotonic()
    until, used = runtime.used_queues.get(client, (0.0, []))
    if now >= until:
        used = _used_first(client, names)
        runtime.used_queues[client] = time.monotonic() + USED_S, used
    return used


def _used_first(client: Client, names: Sequence[str]) -> list[str]:
    """Return the served queues' names, then the names of unserved queues that have Redis keys.

    If the keys of an unserved queue can't be checked, its name is also returned.
    """
    try:
        workers = presence.workers(client)
    except JobqError:
        workers = []  # workers only affect the order of the names
    served = {name for worker in workers for name in worker.queues}
    used = [name for name in names if name in served]
    others = [name for name in names if name not in served]
    if client.is_cluster:
        return used + others
    for first in range(0, len(others), _PER_LOOK):
        part = others[first : first + _PER_LOOK]
        prefixes = [keys.prefix(client.namespace, name) for name in part]
        asked = [("EXISTS", *(keys.key(prefix, trace) for trace in _TRACES)) for prefix in prefixes]
        replies = commands(client, asked[0][1], asked, keep_errors=True)
        used += [name for name, reply in zip(part, replies, strict=True) if reply != 0]
    return used


def strange_queue_names(client: Client) -> list[bytes]:
    """Return the invalid names in the list of queues, sorted."""
    return sorted(name for name in _listed(client) if not _is_name(name))


def queue_names_by_keys(client: Client) -> list[str]:
    """Return the sorted names of all queues that have keys. Nodes that don't answer are skipped.

    Use this if the list of queues can't be read. All keys are scanned, a bounded number at a time.
    """
    pattern = keys.key(f"{client.namespace}:{{*}}:", "*")
    queues: set[bytes] = set()
    for connection in client.open_everywhere():
        try:
            connection.connect()
            cursor = b""
            while cursor != b"0":
                words = ("SCAN", cursor or "0", "MATCH", pattern, "COUNT", 1_000)
                cursor, names = exchange(connection, words)
                queues.update(match[1] for name in names if (match := _OF_A_QUEUE.search(name)))
        except (*PASSING, ResponseError):
            continue
        finally:
            connection.disconnect()
    return sorted(name.decode() for name in queues if _is_name(name))


def _listed(client: Client) -> list[bytes]:
    return list(client.command("SMEMBERS", keys.queue_names(client.namespace)))


def _is_name(name: bytes) -> bool:
    return is_name("queue", name)


def forget_queue(client: Client, name: str | bytes) -> None:
    """Remove `name` from the list of queues; the queue's keys stay."""
    client.command("SREM", keys.queue_names(client.namespace), name)
