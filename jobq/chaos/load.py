"""Strokes that only bring work: more of it, larger, or for later than what workers are used to."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jobq.chaos.producing import QUEUE, contents, enqueue
from jobq.queue.queue import Queue
from jobq.queue.types import PER_CALL

if TYPE_CHECKING:
    from jobq.chaos.stage import Stage

SMALLEST, LARGEST = 10, 26
LATER_S = 3600.0


def huge(stage: Stage) -> None:
    """A content of 1 KB to 64 MB: over the limit it must be refused before it is sent."""
    size = round(2 ** stage.random.uniform(SMALLEST, LARGEST))
    with stage.fault("huge"):
        mid = f"huge-{stage.random.getrandbits(32):x}"
        enqueue(Queue(QUEUE, stage.client), stage.crew.ledger, mid, 0.0, size)


def backlog(stage: Stage, count: int = 2_000, seconds: float = 0.0) -> None:
    """Many at once, each of so many seconds."""
    queue, ledger = Queue(QUEUE, stage.client), stage.crew.ledger
    stem = f"backlog-{stage.random.getrandbits(32):x}"
    with stage.fault("backlog"):
        for start in range(0, count, PER_CALL):
            mids = [f"{stem}-{n}" for n in range(start, min(count, start + PER_CALL))]
            for mid in mids:
                ledger.write("enqueue", mid=mid)
            done = queue.enqueue_many([(mid, contents(mid, seconds)) for mid in mids])
            for one in done:
                ledger.write("enqueued", mid=one.mid, outcome="ok", action=one.action)


def delayed(stage: Stage, count: int = 20_000) -> None:
    """Many that aren't due for an hour, for a while; they are cancelled before that."""
    queue = Queue(QUEUE, stage.client)
    mids = [f"later-{n}" for n in range(count)]
    with stage.fault("delayed"):
        try:
            queue.enqueue_many([(mid, contents(mid, 0.0)) for mid in mids], delay=LATER_S)
            time.sleep(stage.random.uniform(0.3, 0.8))
        finally:
            for start in range(0, count, PER_CALL):
                queue.cancel(*mids[start : start + PER_CALL])
