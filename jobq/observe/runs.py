"""Find the usual run times of jobs, the longest-running messages, and stuck messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from jobq.durations import lasting
from jobq.events import Event
from jobq.queue.presence import ChildEntry

#: Minimum number of runs to compute a job's usual run time.
MIN_RUNS = 3
#: A run is stuck when it has taken this many times the usual time, and at least this long.
STUCK_TIMES, MIN_STUCK_MS = 3, 10_000
#: Limit for jobs with unknown usual times.
STUCK_UNKNOWN_MS = 60_000
_RAN = frozenset(("done", "retry", "dead"))


def usual_times(events: Iterable[Event | None]) -> dict[str, int]:
    """Return the 95th percentile of each job's run times, in ms. Jobs with too few finished attempts are left out."""
    runs: dict[str, list[int]] = defaultdict(list)
    for event in events:
        if event is not None and event.kind in _RAN and event.run_us:
            runs[event.job].append(event.run_us)
    return {
        job: sorted(times)[min(len(times) - 1, len(times) * 95 // 100)] // 1000
        for job, times in runs.items()
        if len(times) >= MIN_RUNS
    }


class RunningMessage(NamedTuple):
    """A running message.

    Attributes:
        usual_ms: 95th percentile of the job's run times in ms; None if unknown.
        started_at: Start of the attempt, by the server's clock.
    """

    worker: str
    pid: int
    queue: str
    mid: str
    started_at: int
    job: str = ""
    usual_ms: int | None = None

    def took_ms(self, now_ms: int) -> int:
        """Return how long the message has run, in ms."""
        return max(0, now_ms - self.started_at)

    def is_stuck(self, now_ms: int) -> bool:
        """Return whether the message has run far longer than its job usually does."""
        if self.usual_ms is None:
            return self.took_ms(now_ms) > STUCK_UNKNOWN_MS
        return self.took_ms(now_ms) > max(MIN_STUCK_MS, STUCK_TIMES * self.usual_ms)

    def sentence(self, now_ms: int) -> str:
        """Describe the run in a sentence, with the message, its run time so far, its worker, and the job's usual run
        time.
        """
        job = f"{self.job} " if self.job else ""
        took = lasting(self.took_ms(now_ms) / 1000)
        return f"{job}{self.mid} has run for {took} on {self.worker}, {self.usual}"

    @property
    def usual(self) -> str:
        """Describe the job's usual run time in words."""
        if self.usual_ms is None:
            return "usual time unknown"
        return f"usually up to {lasting(self.usual_ms / 1000)} (p95)"


def runs_in(worker: str, children: Iterable[ChildEntry]) -> list[RunningMessage]:
    """Return the running messages of a worker's children."""
    return [
        RunningMessage(worker, child.pid, job.queue, job.mid, job.started_at)
        for child in children
        for job in child.running
    ]


def longest_by_queue(runs: Iterable[RunningMessage]) -> dict[str, RunningMessage]:
    """Return the longest-running message of each queue."""
    longest: dict[str, RunningMessage] = {}
    for run in runs:
        if run.queue not in longest or run.started_at < longest[run.queue].started_at:
            longest[run.queue] = run
    return longest
