"""Many keys, dying workers, and a key with a flood: limits and turns hold, and nothing is left behind.

JOBQ_KEYS=soak takes 10,000 keys and a flood of a million, one of 50,000 where two of a key run
at most. `jobq chaos --fault keys-under-kills --jobs 30000` has as many keys, and real processes.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Message

SOAK = os.environ.get("JOBQ_KEYS") == "soak"
KEYS, HANDED, WORKERS, LEASE_MS = (10_000, 1_000_000, 16, 400) if SOAK else (60, 1_500, 16, 400)
#: How many messages the flood has, by the limit of a key: under one only two of them run at a time.
FLOOD = {None: 1_000_000, 2: 50_000} if SOAK else {None: 1_500, 2: 250}
#: A key that arrives, with a limit: more than may run.
EACH = {None: 1, 2: 4}
BATCH = 250
pytestmark = [pytest.mark.one_server, pytest.mark.timeout(43_200 if SOAK else 600)]


class Crowd:
    """Workers and an observer outside of the queue, in the test's time. A run ends with its lease at the latest."""

    def __init__(self, queue: Queue, at: Callable[[int], int], most: int | None) -> None:
        self.queue, self.at, self.most = queue, at, most
        self.random = random.Random(14)
        self.ms = self.killed = 0
        self.holds: list[list[Message]] = [[] for _ in range(WORKERS)]
        self.key_of: dict[str, str] = {}
        self.running: dict[str, dict[str, int]] = {}
        #: How many messages of a key are not over.
        self.left: Counter[str] = Counter()
        #: The keys of the dequeued messages, in that order; how many these were when a key came, by its first message.
        self.order: list[str] = []
        self.since: dict[str, int] = {}
        #: Of each such message: the most turns that another key had while it waited.
        self.turns: list[int] = []

    def enqueue(self, keys: list[str]) -> None:
        rows = [(f"m{len(self.key_of) + number}", b"v", key) for number, key in enumerate(keys)]
        self.queue.enqueue_many(rows, now=self.at(self.ms))
        self.key_of |= {mid: key for mid, _, key in rows}
        self.left.update(keys)
        for key, mid in {key: mid for mid, _, key in reversed(rows)}.items():
            if key != "flood":
                self.since[mid] = len(self.order)

    def handed(self, worker: int, messages: list[Message]) -> None:
        self.holds[worker] = messages
        for one in messages:
            key = self.key_of[one.mid]
            others = self.running.setdefault(key, {})
            for mid in [mid for mid, until in others.items() if until <= self.at(self.ms)]:
                del others[mid]
            assert one.mid not in others
            assert self.most is None or len(others) < self.most, f"{key}: {others} and {one.mid}"
            others[one.mid] = one.lock_expires_at
            if one.mid in self.since:
                turns = Counter(self.order[self.since.pop(one.mid) :])
                self.turns.append(max(turns.values(), default=0))
            self.order.append(key)

    def idle(self, keys: set[str]) -> list[str]:
        """Return the keys without waiting or running messages, even after a worker died."""
        return [one for one in keys if not self.left[one]]

    def step(self) -> None:
        self.ms += self.random.randrange(4)
        worker = self.random.randrange(WORKERS)
        held, self.holds[worker] = self.holds[worker], []
        if held and self.random.random() < 0.02:
            self.killed += 1
            return
        endings = [Ending(mid=one.mid, token=one.token) for one in held]
        done = self.queue.finish(
            endings,
            dequeue=self.random.randrange(1, 9),
            lease=LEASE_MS / 1000,
            now=self.at(self.ms),
        )
        for one, word in zip(held, done.replies, strict=True):
            if word == "ok":
                key = self.key_of[one.mid]
                del self.running[key][one.mid]
                self.left[key] -= 1
        assert done.dequeued is not None
        self.handed(worker, done.dequeued.messages)
        if not done.dequeued.messages:
            self.ms += 20


@pytest.mark.parametrize("most", [None, 2], ids=["no limit", "two of a key"])
def test_others_wait_two_laps_at_most_behind_a_flood_while_workers_die(
    queue: Queue, at: Callable[[int], int], redis: Any, most: int | None
):
    """A lap is one turn of each key: keys that arrive while a message waits also have a turn in its lap."""
    queue.rules(key_max=most)
    crowd = Crowd(queue, at, most)
    for _ in range(FLOOD[most] // BATCH):
        crowd.enqueue(["flood"] * BATCH)
    while queue.admin.counts().messages:
        for _ in range(10):
            names = {f"k{crowd.random.randrange(KEYS)}" for _ in range(4)}
            if len(crowd.order) < min(HANDED, 6 * FLOOD[most]) and (new := crowd.idle(names)):
                crowd.enqueue(sorted(new) * EACH[most])
            crowd.step()

    assert len(crowd.turns) > 300 and crowd.killed > 10
    assert max(crowd.turns) == 2
    kept = ("keys", "lines", "turns", "rests", "locks", "options")
    assert redis.exists(*(f"{queue.prefix}{name}" for name in kept)) == 0
