"""A neighbour that may write to one queue only, and damages it while the same workers run the queue under test."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from jobq.chaos.place import keys_of
from jobq.client.connection import Client
from jobq.queue import keys
from jobq.queue.queue import Queue

if TYPE_CHECKING:
    from jobq.chaos.stage import Stage

NEIGHBOUR = "neighbour"
NO_TEXT = b"\xff"
LONG_MID = "m" * 70_000
#: Keys that every worker of a queue touches, and what may stand there instead.
TOUCHED = (
    "messages", "locks", "tokens", "backoffs", "nattempts", "ncrashes", "ready", "due", "circle",
    "done", "left_ready", "dead", "wake", "meta", "events",
)  # fmt: skip
Damage = Callable[["Stage", str], None]


def no_text(stage: Stage, base: str) -> None:
    """Bytes that are no text among the mids."""
    stage.client.command("LPUSH", keys.key(base, "ready"), NO_TEXT)


def wrong_type(stage: Stage, base: str) -> None:
    """A key of another type."""
    key = keys.key(base, stage.random.choice(TOUCHED))
    stage.client.command("DEL", key)
    if stage.random.getrandbits(1):
        stage.client.command("SET", key, "no such thing")
    else:
        stage.client.command("GEOADD", key, "0", "0", "nowhere")


def settings(stage: Stage, base: str) -> None:
    """Settings that mean nothing."""
    stage.client.command("HSET", keys.key(base, "meta"), "maxlen", "bogus", "events", "bogus")


def long_mid(stage: Stage, base: str) -> None:
    """A mid of 70 kB."""
    stage.client.command("HSET", keys.key(base, "messages"), LONG_MID, "{}")
    stage.client.command("RPUSH", keys.key(base, "ready"), LONG_MID)


def dead_without_record(stage: Stage, base: str) -> None:
    """A dead id that nothing is known of."""
    stage.client.command("ZADD", keys.key(base, "dead"), "1", "nobody#0")


def listing(stage: Stage, base: str) -> None:
    """A name that can't be one among those of the queues."""
    stage.client.command("SADD", keys.queue_names(stage.client.namespace), NO_TEXT)


DAMAGES: tuple[Damage, ...] = (no_text, settings, long_mid, dead_without_record, listing)
#: Messages of the neighbour's own, which run while its queue is damaged.
NJOBS, JOB_S = 4, 0.1


def damage(stage: Stage) -> None:
    """A key of another type, or some of the others at once, for a while; then the neighbour's queue is removed."""
    base = keys.prefix(stage.client.namespace, NEIGHBOUR)
    several = stage.random.sample(DAMAGES, stage.random.randint(1, len(DAMAGES)))
    chosen = several if stage.random.getrandbits(1) else [wrong_type]
    with stage.fault("neighbour"):
        try:
            content = json.dumps({"job": "jobq.chaos.neighbour"}).encode()
            Queue(NEIGHBOUR, stage.client).enqueue_many([content] * NJOBS)
            time.sleep(stage.random.uniform(0.0, JOB_S))
            for one in chosen:
                one(stage, base)
            time.sleep(stage.random.uniform(0.2, 0.5))
        finally:
            remove(stage.client, base)


def remove(client: Client, base: str) -> None:
    """Leave nothing of the neighbour."""
    client.command("SREM", keys.queue_names(client.namespace), NO_TEXT)
    for key in keys_of(client):
        if key.startswith(base):
            client.command("DEL", key)
