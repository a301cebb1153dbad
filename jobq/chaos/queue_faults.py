"""Faults caused by unusual messages, or by damage to another queue of the workers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from jobq.chaos.bad_jobs import KINDS, WAYS
from jobq.chaos.producers import QUEUE, contents, enqueue, enqueue_content, enqueue_poison
from jobq.chaos.round_setup import RoundSetup
from jobq.chaos.servers import keys_of
from jobq.client.connection import Client
from jobq.queue import keys
from jobq.queue.queue import Queue
from jobq.queue.types import PER_CALL

SMALLEST, LARGEST = 10, 26
LATER_S = 3600.0


def huge(setup: RoundSetup) -> None:
    """Enqueue a message with 1 KB to 64 MB of content.

    A client must reject content over the limit before sending it.
    """
    size = round(2 ** setup.random.uniform(SMALLEST, LARGEST))
    with setup.injected("huge"):
        mid = f"huge-{setup.random.getrandbits(32):x}"
        enqueue(Queue(QUEUE, setup.client), setup.workers.ledger, mid, 0.0, size)


def backlog(setup: RoundSetup, count: int = 2_000, seconds: float = 0.0) -> None:
    """Enqueue a burst of `count` jobs that each run for `seconds`."""
    queue, ledger = Queue(QUEUE, setup.client), setup.workers.ledger
    stem = f"backlog-{setup.random.getrandbits(32):x}"
    with setup.injected("backlog"):
        for start in range(0, count, PER_CALL):
            mids = [f"{stem}-{n}" for n in range(start, min(count, start + PER_CALL))]
            for mid in mids:
                ledger.write("enqueue", mid=mid)
            done = queue.enqueue_many([(mid, contents(mid, seconds)) for mid in mids])
            for enqueued in done:
                ledger.write("enqueued", mid=enqueued.mid, outcome="ok", action=enqueued.action)


def delayed(setup: RoundSetup, count: int = 20_000) -> None:
    """Enqueue many messages delayed by an hour, and cancel them after a while."""
    queue = Queue(QUEUE, setup.client)
    mids = [f"later-{n}" for n in range(count)]
    with setup.injected("delayed"):
        try:
            queue.enqueue_many([(mid, contents(mid, 0.0)) for mid in mids], delay=LATER_S)
            time.sleep(setup.random.uniform(0.3, 0.8))
        finally:
            for start in range(0, count, PER_CALL):
                queue.cancel(*mids[start : start + PER_CALL])


NEIGHBOUR = "neighbour"
NO_TEXT = b"\xff"
LONG_MID = "m" * 70_000
#: Keys that every worker of a queue uses, any of which may get another type.
TOUCHED = (
    "messages", "locks", "tokens", "backoffs", "nattempts", "ncrashes", "ready", "due", "circle",
    "done", "left_ready", "dead", "wake", "meta", "events",
)  # fmt: skip
Damage = Callable[["RoundSetup", str], None]


def no_text(setup: RoundSetup, base: str) -> None:
    """Add a mid that isn't valid text to the queue."""
    setup.client.command("LPUSH", keys.key(base, "ready"), NO_TEXT)


def wrong_type(setup: RoundSetup, base: str) -> None:
    """Replace a key of the queue with a key of another type."""
    key = keys.key(base, setup.random.choice(TOUCHED))
    setup.client.command("DEL", key)
    if setup.random.getrandbits(1):
        setup.client.command("SET", key, "no such thing")
    else:
        setup.client.command("GEOADD", key, "0", "0", "nowhere")


def settings_of_queue(setup: RoundSetup, base: str) -> None:
    """Write invalid settings."""
    setup.client.command("HSET", keys.key(base, "meta"), "maxlen", "bogus", "events", "bogus")


def long_mid(setup: RoundSetup, base: str) -> None:
    """Put a mid of 70 kB into the queue."""
    setup.client.command("HSET", keys.key(base, "messages"), LONG_MID, "{}")
    setup.client.command("RPUSH", keys.key(base, "ready"), LONG_MID)


def dead_without_record(setup: RoundSetup, base: str) -> None:
    """Put the id of a dead message into the queue, without the message."""
    setup.client.command("ZADD", keys.key(base, "dead"), "1", "nobody#0")


def listing(setup: RoundSetup, base: str) -> None:
    """Put an invalid queue name into the server's list of queues."""
    setup.client.command("SADD", keys.queue_names(setup.client.namespace), NO_TEXT)


DAMAGES: tuple[Damage, ...] = (no_text, settings_of_queue, long_mid, dead_without_record, listing)
#: Messages of the damaged queue, which run while it is damaged.
NJOBS, JOB_S = 4, 0.1


def neighbour(setup: RoundSetup) -> None:
    """Damage the keys of another queue of the same workers for a while, then remove that queue."""
    base = keys.prefix(setup.client.namespace, NEIGHBOUR)
    several = setup.random.sample(DAMAGES, setup.random.randint(1, len(DAMAGES)))
    chosen = several if setup.random.getrandbits(1) else [wrong_type]
    with setup.injected("neighbour"):
        try:
            content = json.dumps({"job": "jobq.chaos.neighbour"}).encode()
            Queue(NEIGHBOUR, setup.client).enqueue_many([content] * NJOBS)
            time.sleep(setup.random.uniform(0.0, JOB_S))
            for damage in chosen:
                damage(setup, base)
            time.sleep(setup.random.uniform(0.2, 0.5))
        finally:
            remove(setup.client, base)


def remove(client: Client, base: str) -> None:
    """Delete all keys of the damaged queue."""
    client.command("SREM", keys.queue_names(client.namespace), NO_TEXT)
    # Delete all together, until none is left: a report between two deletions would leave a key.
    while left := [key for key in keys_of(client) if key.startswith(base)]:
        client.command("DEL", *left)


def poison(setup: RoundSetup) -> None:
    """Enqueue a message whose job crashes its process."""
    kind = setup.random.choice(list(KINDS))
    mid = f"{kind}-{setup.random.getrandbits(32):x}"
    with setup.injected("poison"):
        enqueue_poison(
            Queue(QUEUE, setup.client),
            setup.workers.ledger,
            mid,
            kind,
            setup.workers.crash_limit,
        )


def fork(setup: RoundSetup) -> None:
    """Enqueue a job that forks. The forked process ends in one of the ways in WAYS."""
    way = setup.random.choice(list(WAYS))
    mid = f"fork-{way}-{setup.random.getrandbits(32):x}"
    content = json.dumps({"job": "jobq.chaos.fork", "args": [mid, way]}).encode()
    with setup.injected("fork"):
        enqueue_content(Queue(QUEUE, setup.client), setup.workers.ledger, mid, content)
