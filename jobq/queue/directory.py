"""The list of queues: a key outside their slots, written in calls of its own."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from redis.exceptions import ResponseError

from jobq.client.connection import Client, exchange
from jobq.client.names import checked_queue, is_name
from jobq.client.numbered_calls import PASSING
from jobq.client.pipelining import commands
from jobq.client.runtime import runtime
from jobq.errors import JobqError
from jobq.queue import keys, presence

#: Keys of topics and of other protocols have other names.
_OF_A_QUEUE = re.compile(rb":\{([^{}]+)\}:(?:messages|dead|meta|events)$")
NAMES_PER_CALL = 500
#: How often a process lists a queue that it enqueues to: the list may have lost the name.
LIST_EVERY_S = 60.0
#: Queues that a page or a command looks at. A longer list is cut down to names in use.
MAX_QUEUES = 10_000
#: Keys of a queue, one of which exists once the queue was used.
_TRACES = ("messages", "meta", "schedules")
#: Queues whose keys are looked for in one round trip.
_PER_LOOK = 5_000
#: How long to keep which names of a list that is too long are in use.
USED_S = 30.0


class ListedQueues(NamedTuple):
    """Queues for a page or a command.

    Attributes:
        names: Names of queues, sorted.
        strange: Entries that can't be names, sorted.
        left_out: Number of omitted names.
    """

    names: list[str]
    strange: Sequence[bytes] = ()
    left_out: int = 0


def register_queues(client: Client, names: Sequence[str]) -> None:
    """List these queues, in case the list has lost them."""
    for first in range(0, len(names), NAMES_PER_CALL):
        client.command(
            "SADD", keys.queue_names(client.namespace), *names[first : first + NAMES_PER_CALL]
        )


def register_queue(client: Client, name: str) -> float:
    """List `name` among the queues, now and then; return the deadline (time.monotonic) of the next listing."""
    known = (os.getpid(), client.url, client.namespace, name)
    now = time.monotonic()
    if now >= runtime.listed.get(known, 0.0):
        client.command("SADD", keys.queue_names(client.namespace), checked_queue(name))
        runtime.listed[known] = now + LIST_EVERY_S
    return runtime.listed[known]


def queue_names(client: Client) -> list[str]:
    """Return the names of all queues that were ever used, sorted; entries that can't be names are left out."""
    return sorted(name.decode() for name in _listed(client) if _is_name(name))


def listed_queues(client: Client) -> ListedQueues:
    """At most MAX_QUEUES queues to look at.

    Every producer may write any name into the list. A longer list is cut down to queues that workers serve or that
    have keys, then to its first names. On a Cluster, where each look is a round trip, keys aren't looked for.
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
    until, found = runtime.used_queues.get(client, (0.0, []))
    if now >= until:
        found = _used_first(client, names)
        runtime.used_queues[client] = time.monotonic() + USED_S, found
    return found


def _used_first(client: Client, names: Sequence[str]) -> list[str]:
    """Names that workers serve, then others in use. A queue whose keys can't be looked for counts as one in use."""
    try:
        workers = presence.workers(client)
    except JobqError:
        workers = []  # the list of workers only puts names first
    served = {name for worker in workers for name in worker.queues}
    found = [name for name in names if name in served]
    others = [name for name in names if name not in served]
    if client.is_cluster:
        return found + others
    for first in range(0, len(others), _PER_LOOK):
        part = others[first : first + _PER_LOOK]
        prefixes = [keys.prefix(client.namespace, name) for name in part]
        asked = [("EXISTS", *(keys.key(prefix, trace) for trace in _TRACES)) for prefix in prefixes]
        replies = commands(client, asked[0][1], asked, keep_errors=True)
        found += [name for name, reply in zip(part, replies, strict=True) if reply != 0]
    return found


def strange_queue_names(client: Client) -> list[bytes]:
    """Entries in the list of queues that can't be names, sorted."""
    return sorted(name for name in _listed(client) if not _is_name(name))


def queue_names_by_keys(client: Client) -> list[str]:
    """Return the names of queues found in the keys of all nodes that answer, sorted: for when the list is out of reach.

    Scans all keys, a bounded number at a time.
    """
    pattern = keys.key(f"{client.namespace}:{{*}}:", "*")
    found: set[bytes] = set()
    for connection in client.open_everywhere():
        try:
            connection.connect()
            cursor = b""
            while cursor != b"0":
                words = ("SCAN", cursor or "0", "MATCH", pattern, "COUNT", 1_000)
                cursor, names = exchange(connection, words)
                found.update(match[1] for name in names if (match := _OF_A_QUEUE.search(name)))
        except (*PASSING, ResponseError):
            continue
        finally:
            connection.disconnect()
    return sorted(name.decode() for name in found if _is_name(name))


def _listed(client: Client) -> list[bytes]:
    return list(client.command("SMEMBERS", keys.queue_names(client.namespace)))


def _is_name(name: bytes) -> bool:
    return is_name("queue", name)


def forget_queue(client: Client, name: str | bytes) -> None:
    """Take `name` off the list; its keys stay."""
    client.command("SREM", keys.queue_names(client.namespace), name)
