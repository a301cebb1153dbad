"""Each script at its default batch limits, timed by the server itself.

The queue has 100,000 ready, 10,000 delayed and 1,000 dead messages. The server's own percentiles of EVALSHA count
the script and nothing else: no client, no socket.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jobq
from bench.server import info, private_server
from bench.stage import Row
from bench.targets import PAGE_HOLDS
from jobq.config import WorkerSettings
from jobq.queue import fsck
from jobq.queue.admin import PAGE
from jobq.queue.types import PER_CALL, Ending, Lease, Message
from jobq.worker import leases

READY, DELAYED, DEAD = 100_000, 10_000, 1_000
CALLS = 200
CONTENT = b'{"v":1,"job":"noop","args":[12345,"short text"]}'
BATCH = WorkerSettings().prefetch
#: Long enough for keys not to expire during the run.
LEASE_S = 600.0
#: Shorter calls aren't logged, and commands within scripts are shorter.
SLOW_US, SLOW_CALLS = 100, 10_000


class Call(NamedTuple):
    """A script call, and the preparation for each call."""

    name: str
    call: Callable[[Any], object]
    prepare: Callable[[], Any] = lambda: None


def scripts(_: str) -> Iterator[Row]:
    """Measure p50 and p99 in ms of 200 calls each."""
    with private_server() as client:
        queue = jobq.Queue("bench", client)
        client.command("CONFIG", "SET", "latency-tracking-info-percentiles", "50 99")
        _filled(queue)
        for call in (*_of_workers(queue), *_of_people(queue)):
            yield from _timed(client, call)
        yield from _longest_pages(client, queue)


def _longest_pages(client: jobq.Client, queue: jobq.Queue) -> Iterator[Row]:
    """Measure how long one call of the listing commands blocks the server: the longest in its SLOWLOG."""
    large = jobq.Queue("large", client)
    for size in (100, 10_000, 100_000):
        large.enqueue_many([bytes(size)] * 40)
    client.command("CONFIG", "SET", "slowlog-log-slower-than", SLOW_US)
    client.command("CONFIG", "SET", "slowlog-max-len", SLOW_CALLS)
    lists: dict[str, Callable[[jobq.Queue], Iterator[object]]] = {
        "messages --all": lambda one: one.admin.iter_entries("ready"),
        "messages --place due --all": lambda one: one.admin.iter_entries("due"),
        "messages --place circle --all": lambda one: one.admin.iter_entries("circle"),
        "dead list --all": lambda one: one.admin.iter_dead(),
    }
    for name, entries in lists.items():
        client.command("SLOWLOG", "RESET", routed_by="")
        for one in (queue, large):
            for _ in entries(one):
                pass
        slow = client.command("SLOWLOG", "GET", SLOW_CALLS, routed_by="")
        longest = max((int(entry[2]) for entry in slow), default=SLOW_US)
        yield PAGE_HOLDS.format(name), longest / 1000, "ms"


def _filled(queue: jobq.Queue) -> None:
    queue.enqueue_many([CONTENT] * DEAD)
    for _ in range(DEAD // BATCH + 1):
        queue.finish([_dead(message) for message in queue.dequeue(BATCH).messages])
    queue.enqueue_many([CONTENT] * READY)
    queue.enqueue_many([CONTENT] * DELAYED, delay=3600)


def _dead(message: Message) -> Ending:
    return Ending(mid=message.mid, token=message.token, outcome="dead", reason="for the bench")


def _timed(client: jobq.Client, script: Call) -> Iterator[Row]:
    # Prepared before, so that the percentiles are of this script alone.
    prepared = [script.prepare() for _ in range(CALLS)]
    client.command("CONFIG", "RESETSTAT")
    for prepare in prepared:
        script.call(prepare)
    found = info(client, "latencystats")["latency_percentiles_usec_evalsha"]
    for part in found.split(","):
        share, microseconds = part.split("=")
        yield f"script {script.name}, {share}", float(microseconds) / 1000, "ms"


def _of_workers(queue: jobq.Queue) -> list[Call]:
    def held(count: int = BATCH) -> list[Message]:
        return queue.dequeue(count, lease=LEASE_S).messages

    def ended() -> list[Ending]:
        return [Ending(mid=m.mid, token=m.token) for m in held()]

    def holds(count: int = BATCH) -> list[Lease]:
        return [Lease(m.mid, m.token) for m in held(count)]

    lent, of_both = holds(leases.PER_CALL), f"{BATCH} with dequeue of {BATCH}"
    return [
        Call("enqueue of 1", lambda _: queue.enqueue(CONTENT)),
        Call(f"enqueue of {PER_CALL:,}", lambda _: queue.enqueue_many([CONTENT] * PER_CALL)),
        Call("dequeue of 1", lambda _: queue.dequeue(1)),
        Call(f"dequeue of {BATCH}", lambda _: queue.dequeue(BATCH)),
        Call(f"finish of {of_both}", lambda one: queue.finish(one, dequeue=BATCH), ended),
        Call(f"extend of {leases.PER_CALL}", lambda _: queue.extend(lent)),
        Call(f"release of {BATCH}", queue.release, holds),
        Call("collect of 100", lambda _: queue.admin.collect()),
        Call("close", queue.end_session, lambda: secrets.token_urlsafe(12)),
    ]


def _of_people(queue: jobq.Queue) -> list[Call]:
    mid = queue.enqueue(CONTENT).mid
    page: dict[str, Any] = {"part": "ready", "cursor": 0, "limit": fsck.LIMIT}
    dead = iter([message.dead_id for message in queue.admin.dead(limit=PAGE)])
    return [
        Call("status", lambda _: queue.status(mid)),
        Call("counts", lambda _: queue.admin.counts()),
        Call("content, a page of 100", lambda _: queue.admin.content()),
        Call("dead, a page of 100", lambda _: queue.admin.dead()),
        Call("cancel", queue.cancel, lambda: queue.enqueue(CONTENT).mid),
        Call("revive", queue.admin.revive, lambda: next(dead)),
        Call("purge", queue.admin.purge, lambda: next(dead)),
        Call(f"fsck of {fsck.LIMIT}", lambda _: queue.scripts["fsck"].run(page)),
        Call("pause", lambda _: queue.admin.pause()),
        Call("resume", lambda _: queue.admin.resume()),
    ]
