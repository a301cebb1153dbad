"""A backlog worked off by Spark's executors: each runs `jobq worker --burst` until the queues are empty.

Leases, fencing, retries and dead letters are the worker's own. Spark only finds the places to run and starts a
worker anew where an executor was lost; what the lost one held comes back by its lease, and a further round of
workers takes it.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jobq.errors import PipelineError
from jobq.pipeline.drain_counts import Counted, Followed
from jobq.pipeline.drain_slot import Ended, Order, Slot
from jobq.worker import exits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jobq.engine.message import Counts
    from jobq.engine.queue import Queue

POLL_S = 0.3
#: How long tasks that were told to stop may take: the worker's hurry, and some.
STOPPING_S = 10.0
#: What is over a lease before a lock that nobody renews is recovered.
SPARE_S = 1.0
FINE = frozenset((exits.OK, exits.FORCED))


class Wanted(NamedTuple):
    """What a drain is to do. lease_s must be the workers'. max_time_s: 0 = until the queues are empty."""

    args: tuple[str, ...]
    env: dict[str, str]
    executors: int
    lease_s: float
    max_time_s: float = 0.0


class Left(NamedTuple):
    """What one queue holds after a drain."""

    queue: str
    ready: int
    delayed: int
    locked: int
    paused: bool


class Drained(NamedTuple):
    """What it came to. uncounted: events that the stream dropped before they were read."""

    executors: list[Counted]
    failed: list[Ended]
    left: list[Left]
    uncounted: int
    seconds: float
    in_time: bool


class Drain:
    """One drain of some queues."""

    def __init__(self, spark: SparkSession, queues: Sequence[Queue], wanted: Wanted) -> None:
        self._spark, self._queues, self._wanted = spark, queues, wanted
        self.name = f"drain-{secrets.token_hex(4)}"
        until = time.time() + wanted.max_time_s if wanted.max_time_s else 0.0
        self._until = until
        self._order = Order(self.name, wanted.args, wanted.env, _folders(), until)
        self.followed = Followed(self.name, queues)
        self._failed: list[Ended] = []

    def run(self, tell: Callable[[Sequence[Counts]], object] = lambda _: None) -> Drained:
        """Until nothing is ready or locked, or the time is over. `tell` hears how it goes.

        Raises PipelineError when no executor can start a worker: then nothing was taken from the queues.
        """
        began = time.monotonic()
        slots = self._wanted.executors
        while slots:
            ended = self._round(slots, tell)
            self._failed += [one for one in ended if not self._is_fine(one)]
            if ended and len(self._failed) >= len(ended) and not self.followed.total:
                raise PipelineError(_told(self._failed[0]))
            slots = self._needed(tell)
        self.followed.read()
        left = [_left(queue) for queue in self._queues]
        return Drained(
            self.followed.table(), self._failed, left, self.followed.lost(),
            round(time.monotonic() - began, 3), not self._over(),
        )  # fmt: skip

    def _is_fine(self, ended: Ended) -> bool:
        # One that hadn't heard of signals yet when its time was over ends by TERM.
        return ended.code in FINE or (ended.code == -15 and self._over())

    def _over(self) -> bool:
        return bool(self._until) and time.time() >= self._until

    def _round(self, slots: int, tell: Callable[[Sequence[Counts]], object]) -> list[Ended]:
        job = _Job(self._spark, self.name, Slot(self._order), slots)
        job.start()
        try:
            while job.is_alive():
                job.join(POLL_S)
                self.followed.read()
                tell(self._counts())
        except BaseException:
            job.cancel()
            job.join(STOPPING_S)
            raise
        return job.result()

    def _needed(self, tell: Callable[[Sequence[Counts]], object]) -> int:
        """How many workers the next round takes: 0 when what is left isn't for us.

        Locks of lost executors end within a lease; what is locked after that is somebody else's.
        """
        patience = time.monotonic() + self._wanted.lease_s + SPARE_S
        while not self._over():
            for queue in self._queues:
                queue.collect(1_000)
            counts = self._counts()
            ready = sum(one.ready for one in counts if not one.paused)
            locked = sum(one.locked for one in counts)
            if ready and len(self._failed) < self._wanted.executors:
                return min(ready, self._wanted.executors)
            if not locked or time.monotonic() >= patience:
                return 0
            tell(counts)
            time.sleep(POLL_S)
        return 0

    def _counts(self) -> list[Counts]:
        return [queue.counts() for queue in self._queues]


class _Job(threading.Thread):
    """One Spark job, in a thread of its own so that the driver can look on and end it."""

    def __init__(self, spark: SparkSession, group: str, slot: Slot, slots: int) -> None:
        super().__init__(daemon=True)
        self._spark, self._group, self._slot, self._slots = spark, group, slot, slots
        self._ended: list[Ended] = []
        self._error: Exception | None = None

    def run(self) -> None:
        context = self._spark.sparkContext
        try:
            context.setJobGroup(self._group, f"jobq lake drain: {self._slots} workers", True)
            numbers = context.parallelize(range(self._slots), self._slots)
            rows: list[tuple[Any, ...]] = numbers.mapPartitions(self._slot.run_all).collect()
            self._ended = [Ended(*row) for row in rows]
        except Exception as error:
            self._error = error

    def cancel(self) -> None:
        """End its tasks, and so their workers."""
        try:
            self._spark.sparkContext.cancelJobGroup(self._group)
        except Exception as error:
            self._error = error  # the JVM is gone, and the tasks with it

    def result(self) -> list[Ended]:
        """How the workers ended; PipelineError when Spark gave up."""
        if self._error is not None:
            raise PipelineError(
                f"Spark gave up the drain: {_cause(self._error)}; what its workers held comes back when their "
                "leases end; start it again"
            ) from self._error
        return self._ended


def _cause(error: Exception) -> str:
    """The line of a JVM's or worker's long story that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "Caused by" in line or "Job aborted" in line]
    return (causes or lines or [type(error).__name__])[0][:500]


def _told(ended: Ended) -> str:
    means = exits.MEANINGS.get(ended.code, "the worker couldn't start")
    said = ended.said.strip() or "it said nothing"
    return (
        f"executor {ended.slot} on {ended.host}: exit code {ended.code}, {means}. "
        f"Nothing was taken from the queues. It said:\n{said}"
    )


def _folders() -> tuple[str, ...]:
    """This process's working folder, then where it found modules that aren't installed."""
    here = str(Path.cwd())
    installed = ("site-packages", "dist-packages")
    own = [path for path in sys.path if path and not any(part in path for part in installed)]
    standard = os.path.dirname(os.__file__)
    return tuple(dict.fromkeys([here, *(p for p in own if not p.startswith(standard))]))


def _left(queue: Queue) -> Left:
    counts: Any = queue.counts()
    return Left(queue.name, counts.ready, counts.delayed, counts.locked, counts.paused)
