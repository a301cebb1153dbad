"""Which queues and workers there are: two keys outside every slot, written in calls of their own."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from jobq.client.connection import Client, exchange
from jobq.client.names import checked_name, is_name
from jobq.client.numbered_calls import PASSING
from jobq.client.runtime import runtime
from jobq.queue import keys

#: Of topics and of other protocols, keys have other names or none of these.
_OF_A_QUEUE = re.compile(rb":\{([^{}]+)\}:(?:messages|dead|meta|events)$")
PER_CALL = 500
#: By so much a worker's clock may be behind the server's.
CLOCKS_MS = 30_000
#: How often a process lists a queue that it enqueues to: somebody may have lost the name, or forgotten the queue.
LIST_EVERY_S = 60.0


def register_queues(client: Client, names: Sequence[str]) -> None:
    """Make them known again, should somebody have lost them."""
    for first in range(0, len(names), PER_CALL):
        client.command("SADD", keys.queue_names(client.namespace), *names[first : first + PER_CALL])


def register_queue(client: Client, name: str) -> float:
    """List `name` among the queues, now and then; until when (time.monotonic) that need not be done again."""
    known = (os.getpid(), client.url, client.namespace, name)
    now = time.monotonic()
    if now >= runtime.listed.get(known, 0.0):
        client.command("SADD", keys.queue_names(client.namespace), checked_name("queue", name))
        runtime.listed[known] = now + LIST_EVERY_S
    return runtime.listed[known]


def queue_names(client: Client) -> list[str]:
    """The names of all queues ever used here, sorted. What can't be a queue's name is left out."""
    return sorted(name.decode() for name in _listed(client) if _is_name(name))


def strange_queue_names(client: Client) -> list[bytes]:
    """What somebody put among the names of queues and can't be one, sorted."""
    return sorted(name for name in _listed(client) if not _is_name(name))


def queue_names_by_keys(client: Client) -> list[str]:
    """The names of queues by the keys of all nodes that answer, sorted: for when the list of names is out of reach.

    Reads the names of all keys there are, a bounded part at a time.
    """
    pattern = keys.key(f"{client.namespace}:{{*}}:", "*")
    found: set[bytes] = set()
    for connection in client.open_everywhere():
        try:
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
    """List `name` no longer; its keys stay."""
    client.command("SREM", keys.queue_names(client.namespace), name)


def put_worker(client: Client, name: str, facts: dict[str, Any]) -> None:
    """A worker's sign of life; `facts` is JSON data with `seen_at`, epoch ms."""
    client.command("HSET", keys.workers(client.namespace), name, json.dumps(facts))


def forget_worker(client: Client, name: str) -> None:
    """A worker has left."""
    client.command("HDEL", keys.workers(client.namespace), name)


def served(client: Client) -> dict[str, int]:
    """Queue -> how many living workers serve it. One counts as living until three leases after its last sign."""
    now_ms = int(client.command("TIME")[0]) * 1000
    found: Counter[str] = Counter()
    for facts in workers(client).values():
        seen_at, lease_ms, queues = (facts.get(name) for name in ("seen_at", "lease_ms", "queues"))
        if not (
            isinstance(seen_at, int) and isinstance(lease_ms, int) and isinstance(queues, list)
        ):
            continue
        if now_ms - seen_at < 3 * lease_ms + CLOCKS_MS:
            found.update(name for name in queues if isinstance(name, str))
    return found


def workers(client: Client) -> dict[str, dict[str, Any]]:
    """Every worker's last sign of life, also of those that died without leaving; damaged entries are left out."""
    reply = client.command("HGETALL", keys.workers(client.namespace))
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    found = {}
    for name, facts in pairs:
        try:
            read = json.loads(facts)
        except (ValueError, RecursionError):
            continue  # written by somebody else
        if isinstance(read, dict):
            found[name.decode("utf-8", "backslashreplace")] = read
    return found
