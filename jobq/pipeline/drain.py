"""A backlog worked off by Spark's executors: each runs `jobq worker --burst` until the queues are empty.

Leases, fencing, retries and dead letters are the worker's own. Spark only finds the places to run and starts a
worker anew where an executor was lost; what the lost one held comes back at its lease's end, and whoever is
left, or a worker started then, takes it.
"""

from __future__ import annotations

import os
import secrets
import signal
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
#: How many expired locks a look recovers, and how many due messages it makes ready, in each queue.
COLLECTED = 1_000
#: How long tasks that were told to stop may take: the worker's hurry, and some.
STOPPING_S = 10.0
#: What is over a lease before a lock that nobody renews is recovered.
SPARE_S = 1.0
FINE = frozenset((exits.OK, exits.FORCED))
#: Ends of a worker that never asked for a message: wrong options, no server, no jobs, no child.
NEVER_BEGAN = frozenset((2, 3, exits.BOOT, exits.CHILD_BOOT))


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
        self._jobs: list[_Job] = []
        self._started = 0
        self._was_ready = False
        self._alone_since = time.monotonic()

    def run(self, tell: Callable[[Sequence[Counts]], object] = lambda _: None) -> Drained:
        """Until nothing is ready or locked, or the time is over. `tell` hears how it goes.

        Raises PipelineError when no executor can start a worker: then nothing was taken from the queues.
        """
        began = time.monotonic()
        try:
            self._start(self._wanted.executors)
            while self._goes_on(tell):
                time.sleep(POLL_S)
        except BaseException:
            self._cancel()
            raise
        left = [_left(queue) for queue in self._queues]
        return Drained(
            self.followed.table(), self._failed, left, self.followed.lost(),
            round(time.monotonic() - began, 3), not self._over(),
        )  # fmt: skip

    def _goes_on(self, tell: Callable[[Sequence[Counts]], object]) -> bool:
        """Look after it all once; False when there is nothing more to do."""
        busy = self._reap()
        self.followed.read()
        for queue in self._queues:
            queue.collect(COLLECTED)
        counts = [queue.counts() for queue in self._queues]
        tell(counts)
        ready = sum(one.ready for one in counts if not one.paused)
        idle = self._wanted.executors - busy
        # A worker leaves when all there is was handed out, also what is given back a moment later.
        if ready and idle > 0 and self._was_ready and self._is_open():
            self._start(min(ready, idle))
            busy += 1
        self._was_ready = bool(ready)
        if busy or (ready and self._is_open()):
            self._alone_since = time.monotonic()
            return True
        # Locks of lost executors end within a lease; what is locked after that is somebody else's.
        patience = self._wanted.lease_s + SPARE_S
        locked = any(one.locked for one in counts)
        return locked and not self._over() and time.monotonic() - self._alone_since < patience

    def _is_open(self) -> bool:
        """Whether more workers are to be started."""
        return not self._over() and len(self._failed) < self._wanted.executors

    def _reap(self) -> int:
        """Take the results of what has ended; how many workers run, or wait for a place to run."""
        for job in [job for job in self._jobs if not job.is_alive()]:
            self._jobs.remove(job)
            ended = job.result()
            failed = [one for one in ended if not self._is_fine(one)]
            self._failed += failed
            self.followed.read()
            in_vain = [one for one in failed if one.code in NEVER_BEGAN]
            if in_vain and len(in_vain) == len(ended) and not self.followed.total:
                raise _not_started(in_vain[0])
        return sum(job.nrunning() for job in self._jobs)

    def _start(self, workers: int) -> None:
        self._started += 1
        group = f"{self.name}.{self._started}"
        job = _Job(self._spark, group, Slot(self._order), workers)
        self._jobs.append(job)
        job.start()

    def _cancel(self) -> None:
        for job in self._jobs:
            job.cancel()
        deadline = time.monotonic() + STOPPING_S
        for job in self._jobs:
            job.join(max(0.0, deadline - time.monotonic()))

    def _is_fine(self, ended: Ended) -> bool:
        # One that hadn't heard of signals yet when its time was over ends by TERM.
        return ended.code in FINE or (ended.code == -signal.SIGTERM and self._over())

    def _over(self) -> bool:
        return bool(self._until) and time.time() >= self._until


class _Job(threading.Thread):
    """One Spark job, in a thread of its own so that the driver can look on and end it."""

    def __init__(self, spark: SparkSession, group: str, slot: Slot, workers: int) -> None:
        super().__init__(daemon=True)
        self._context, self._group = spark.sparkContext, group
        self._slot, self._workers = slot, workers
        self._ended: list[Ended] = []
        self._error: Exception | None = None

    def run(self) -> None:
        context, workers = self._context, self._workers
        try:
            context.setJobGroup(self._group, f"jobq lake drain: {workers} workers", True)
            numbers = context.parallelize(range(workers), workers)
            rows: list[tuple[Any, ...]] = numbers.mapPartitions(self._slot.run_all).collect()
            self._ended = [Ended(*row) for row in rows]
        except Exception as error:
            self._error = error

    def nrunning(self) -> int:
        """How many of its tasks haven't ended."""
        if not self.is_alive():
            return 0
        try:
            tracker = self._context.statusTracker()
            jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(self._group)))
            stages = filter(None, (tracker.getStageInfo(s) for job in jobs for s in job.stageIds))
            return self._workers - sum(stage.numCompletedTasks for stage in stages)
        except Exception:
            return self._workers  # the JVM is gone: `result` tells

    def cancel(self) -> None:
        """End its tasks, and so their workers."""
        try:
            self._context.cancelJobGroup(self._group)
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


def _not_started(ended: Ended) -> PipelineError:
    """With what the worker said as a note: a traceback has more lines than a message should."""
    said = ended.said.strip() or "it said nothing"
    means = exits.MEANINGS.get(ended.code, "its worker could not start")
    error = PipelineError(
        f"executor {ended.executor}: exit code {ended.code}, {means}; nothing was taken from the queues; "
        f"its last words: {said.splitlines()[-1].strip()}"
    )
    error.add_note(said)
    return error


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
