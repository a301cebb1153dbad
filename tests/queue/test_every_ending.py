"""Whatever calls come, in any order: an ended member is in the outbox once for each of its lives."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from jobq.queue.fsck import repair
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Message, OutcomeWord

FLOW = "import:7"
MIDS = [f"~{FLOW}.rows.{number}" for number in range(4)]
PLAIN = ["plain", "other"]
OUTCOMES: tuple[OutcomeWord, ...] = (
    "done",
    "done",
    "retry",
    "dead",
    "crashed",
    "snooze",
    "release",
    "unknown",
    "expired",
)
SEEDS, CALLS = 40, 60
#: Name of the state of a mid that no longer lives, or never did.
OVER = ("nil", "dead", "done-with-backoff", "done-awaiting-gc")


class CallSequence:
    """Random calls to one queue, and the outbox entries of each."""

    def __init__(self, queue: Queue, seed: int) -> None:
        self.queue, self.random, self.now = queue, random.Random(seed), 1_700_000_000_000
        self.held: list[Message] = []
        self.binned: list[str] = []
        self.said: list[str] = []

    def live(self) -> set[str]:
        """The members that haven't ended."""
        found = {mid: self.queue.status(mid, now=self.now).word for mid in MIDS}
        return {mid for mid, status in found.items() if status not in OVER}

    def step(self) -> None:
        """One call; its effect on members is in the outbox, and in the count."""
        before = self.live()
        self.now += self.random.choice((0, 1, 50, 3_000, 40_000))
        call = self.random.choice(CALLS_OF_A_QUEUE)
        self.said.append(call.__name__)
        call(self)
        after = self.live()
        records = [
            (one.kind.rstrip("+"), one.subject)
            for entry in self.queue.flow_outbox(1_000)
            for one in entry.records
        ]
        entries = [entry.entry_id for entry in self.queue.flow_outbox(1_000)]
        self.queue.flow_outbox_drop(entries)
        counted = Counter(mid for _, mid in records)
        assert {kind for kind, _ in records} <= {"done", "dead", "cancelled"}
        assert all(n == 1 for n in counted.values()), self.said
        # A call may end one and bring it back, by its bin.
        assert before - after <= set(counted), self.said
        assert set(counted) <= before, self.said
        assert set(counted).isdisjoint(after), self.said
        number = self.queue.client.command("HGET", f"{self.queue.prefix}meta", "members")
        assert int(number or 0) == len(after), self.said


def enqueue(it: CallSequence) -> None:
    mids = it.random.sample(MIDS, it.random.randint(1, 3))
    options: dict[str, Any] = it.random.choice(
        ({}, {"delay": 1}, {"until": 3_600}, {"key": "k"}, {"key": "k", "ordered": True})
    )
    it.queue.enqueue_members([(mid, b"v") for mid in mids], now=it.now, **options)


def enqueue_plain(it: CallSequence) -> None:
    it.queue.enqueue_many([(mid, b"v") for mid in PLAIN], now=it.now, on_conflict="replace")


def dequeue(it: CallSequence) -> None:
    limit, lease = it.random.randint(1, 4), it.random.choice((1, 15))
    it.held += it.queue.dequeue(limit, lease=lease, crash_limit=2, now=it.now).messages


def finish(it: CallSequence) -> None:
    it.random.shuffle(it.held)
    taken, it.held = it.held[:2], it.held[2:]
    endings = [
        Ending(
            mid=one.mid,
            token=one.token,
            outcome=it.random.choice(OUTCOMES),
            backoff=it.random.choice((0, 5)),
            reason="why",
        )
        for one in taken
    ]
    found = it.queue.finish(endings, dequeue=it.random.choice((0, 2)), crash_limit=2, now=it.now)
    if found.dequeued:
        it.held += found.dequeued.messages


def release(it: CallSequence) -> None:
    taken, it.held = it.held[:1], it.held[1:]
    it.queue.release([(one.mid, one.token) for one in taken], now=it.now)


def cancel(it: CallSequence) -> None:
    it.queue.cancel(*it.random.sample([*MIDS, *PLAIN], 2), now=it.now)


def collect(it: CallSequence) -> None:
    it.queue.admin.collect(100, crash_limit=2, now=it.now)


def revive(it: CallSequence) -> None:
    found = it.queue.admin.dead()
    if found:
        it.queue.admin.revive(it.random.choice(found).dead_id, now=it.now)


def take_out(it: CallSequence) -> None:
    mid = it.random.choice(MIDS)
    if it.queue.admin.bin("op").take_out((mid, "*"), now=it.now)[0] == "taken":
        it.binned.append(mid)


def put_back(it: CallSequence) -> None:
    if it.binned:
        it.queue.admin.bin("op").put_back("waiting", it.binned.pop(), now=it.now)


def purge(it: CallSequence) -> None:
    found = it.queue.admin.dead()
    if found:
        it.queue.admin.purge(found[0].dead_id)


def mend(it: CallSequence) -> None:
    list(repair(it.queue, it.queue.admin.fsck()))


CALLS_OF_A_QUEUE: list[Callable[[CallSequence], None]] = [
    enqueue, enqueue, enqueue_plain, dequeue, dequeue, finish, finish, finish, release, cancel, collect, revive,
    take_out, put_back, purge, mend,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_each_member_that_ends_is_in_the_outbox_once(queue: Queue, redis: Any, seed: int) -> None:
    for number in range(SEEDS // 4):
        redis.flushall()
        history = CallSequence(queue, 1_000 * seed + number)
        for _ in range(CALLS):
            history.step()
        assert queue.admin.fsck() == []
