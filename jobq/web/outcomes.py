"""How attempts ended and how long they took, minute by minute, counted from events."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from heapq import nlargest
from threading import RLock
from typing import NamedTuple

from jobq.client.names import base_of
from jobq.events import Event
from jobq.web.rings import Ring

#: Columns of the counts of a minute.
DONE, FAILED, DEAD = range(3)
#: Bucket i of a histogram has the attempts up to 2**i ms; the last bucket has all longer attempts.
BUCKETS = 26
DAY_MINUTES = 1_440
#: Number of latest minutes that the figures of a queue cover.
RECENT_MINUTES = 15
#: Default number of dead messages to show.
NEWEST_DEAD = 50
_COLUMN = {"done": DONE, "retry": FAILED, "crashed": FAILED, "recovered": FAILED, "dead": DEAD}


class StreamEntry(NamedTuple):
    """One entry of an event stream.

    Attributes:
        at_ms: When the server wrote the entry.
    """

    at_ms: int
    event: Event


class DeadEvent(NamedTuple):
    """The event that recorded the death of a message."""

    at_ms: int
    queue: str
    mid: str
    job: str
    error: str


class DurationCounts:
    """Counts of durations in buckets of doubling size."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts = [0.0] * BUCKETS

    def add(self, ms: float, weight: float = 1.0) -> None:
        """Count a duration."""
        self.counts[min(BUCKETS - 1, math.ceil(ms).bit_length() if ms > 1 else 0)] += weight

    def merge(self, other: DurationCounts) -> None:
        """Add another object's counts."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]

    def quantile_ms(self, share: float) -> float | None:
        """Estimate a quantile of the durations in ms; None without durations. The 95th percentile is share=0.95."""
        total = sum(self.counts)
        if not total:
            return None
        wanted, below = share * total, 0.0
        for i, count in enumerate(self.counts):
            if count and below + count >= wanted:
                low = 0.0 if i == 0 else 2.0 ** (i - 1)
                return low + (2.0**i - low) * (wanted - below) / count
            below += count
        return 2.0 ** (BUCKETS - 1)


class Recent(NamedTuple):
    """Counts of ended attempts in the last RECENT_MINUTES, by outcome.

    Attributes:
        sampled: Whether the figures are estimates.
        known: Whether the events of these minutes were read.
    """

    done: float = 0.0
    failed: float = 0.0
    dead: float = 0.0
    wait_p95_ms: float | None = None
    run_p95_ms: float | None = None
    sampled: bool = False
    known: bool = True

    @property
    def failure_share(self) -> float | None:
        """Share of failed attempts; None without attempts."""
        total = self.done + self.failed + self.dead
        return (self.failed + self.dead) / total if total else None


class _OfQueue:
    def __init__(self) -> None:
        self.minutes = Ring(DAY_MINUTES, 60, 3)
        #: Minute -> waiting and run times of attempts, kept for the last RECENT_MINUTES.
        self.waits: dict[int, DurationCounts] = {}
        self.runs: dict[int, DurationCounts] = {}
        self.quantiles = Ring(DAY_MINUTES, 60, 2)
        self.sampled_ms = 0
        #: The last computed figures, and their minute.
        self.recent: tuple[int, Recent] | None = None

    def take(self, ended: Sequence[StreamEntry], weight: float) -> Counter[tuple[int, int]]:
        """Count ended attempts, and return the counts by minute and outcome."""
        counts = Counter((at_ms // 60_000, _COLUMN[event.kind]) for at_ms, event in ended)
        for (minute, column), number in counts.items():
            self.minutes.add(minute * 60, column, number * weight)
        for at_ms, event in ended:
            minute = at_ms // 60_000
            if minute not in self.waits:
                self.waits[minute], self.runs[minute] = DurationCounts(), DurationCounts()
            self.waits[minute].add(event.wait_ms, weight)
            self.runs[minute].add(event.run_us / 1000, weight)
        self.recent = None
        return counts

    def close_minutes(self, now_minute: int) -> None:
        """Replace the durations of minutes older than RECENT_MINUTES with their 95th percentiles."""
        for minute in sorted(self.waits):
            if minute >= now_minute - RECENT_MINUTES:
                break
            waits, runs = self.waits.pop(minute), self.runs.pop(minute)
            values = waits.quantile_ms(0.95) or 0.0, runs.quantile_ms(0.95) or 0.0
            self.quantiles.put(minute * 60, values)


class Outcomes:
    """Outcomes of all queues. It is thread-safe."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._queues: dict[str, _OfQueue] = {}
        self._totals = Ring(DAY_MINUTES, 60, 3)
        self._dead: deque[DeadEvent] = deque(maxlen=10 * NEWEST_DEAD)

    def take(self, queue: str, entries: Sequence[StreamEntry], weight: float = 1.0) -> None:
        """Count the events of a queue; see `Follower.take`."""
        with self._lock:
            ended = [entry for entry in entries if entry.event.kind in _COLUMN]
            newest = max((entry.at_ms for entry in entries), default=0)
            counted = Counter[tuple[int, int]]()
            # Events of a partition also count for its queue.
            for name in {queue, base_of(queue)}:
                mine = self._queues.get(name) or self._queues.setdefault(name, _OfQueue())
                counted = mine.take(ended, weight)
                if weight > 1:
                    mine.sampled_ms = max(mine.sampled_ms, newest)
                mine.close_minutes(newest // 60_000)
            for (minute, column), number in counted.items():
                self._totals.add(minute * 60, column, number * weight)
            self._dead.extend(
                DeadEvent(at_ms, queue, event.mid, event.job, event.error)
                for at_ms, event in entries
                if event.kind == "dead"
            )

    def forget(self, names: Iterable[str]) -> None:
        """Drop the figures of deleted queues."""
        with self._lock:
            for name in names:
                self._queues.pop(name, None)

    def recent(self, queue: str, now_ms: int) -> Recent:
        """Return a queue's outcome counts and percentiles for the last RECENT_MINUTES."""
        with self._lock:
            mine = self._queues.get(queue)
            if mine is None:
                return Recent()
            minute = now_ms // 60_000
            if mine.recent is None or mine.recent[0] != minute:
                mine.recent = minute, _recent(mine, minute)
            return mine.recent[1]

    def total(self, now_ms: int) -> Recent:
        """Return the outcome counts of all queues in the last RECENT_MINUTES, without percentiles."""
        with self._lock:
            return Recent(*_sums(self._totals, now_ms // 60_000))

    def counted(
        self, queue: str | None, column: int, since_s: float, until_s: float
    ) -> list[tuple[float, float | None]]:
        """Count the attempts with one outcome in each minute.

        Args:
            queue: None means all queues.
            column: DONE, FAILED or DEAD.
        """
        first, last = int(since_s // 60), int(until_s // 60)
        counts = dict.fromkeys(range(first, last + 1), 0.0)
        with self._lock:
            mine = self._totals if queue is None else None
            if queue in self._queues:
                mine = self._queues[queue].minutes
            if mine is not None:
                for at, value in mine.points(column, since_s, until_s):
                    counts[int(at // 60)] = value or 0.0
        return [(minute * 60.0, count) for minute, count in sorted(counts.items())]

    def quantiles(
        self, queue: str, since_s: float, until_s: float
    ) -> tuple[list[tuple[float, float | None]], list[tuple[float, float | None]]]:
        """Return the 95th percentiles of waiting times and of run times in each minute, in ms."""
        with self._lock:
            mine = self._queues.get(queue)
            if mine is None:
                return [], []
            series = []
            for column, histograms in enumerate((mine.waits, mine.runs)):
                points = dict(mine.quantiles.points(column, since_s, until_s))
                for minute, histogram in histograms.items():
                    if since_s <= minute * 60 <= until_s:
                        points[minute * 60.0] = histogram.quantile_ms(0.95)
                first, last = int(since_s // 60), int(until_s // 60)
                series.append([(m * 60.0, points.get(m * 60.0)) for m in range(first, last + 1)])
            return series[0], series[1]

    def newest_dead(self, count: int = NEWEST_DEAD) -> list[DeadEvent]:
        """Return the events of the latest deaths of messages, latest first."""
        with self._lock:
            return nlargest(count, set(self._dead))


def _sums(minutes: Ring, minute: int) -> tuple[float, float, float]:
    since = (minute - RECENT_MINUTES + 1) * 60
    done, failed, dead = (
        sum(value or 0 for _, value in minutes.points(column, since, minute * 60))
        for column in (DONE, FAILED, DEAD)
    )
    return done, failed, dead


def _recent(mine: _OfQueue, minute: int) -> Recent:
    waits, runs = DurationCounts(), DurationCounts()
    for wait in mine.waits:
        if wait > minute - RECENT_MINUTES:
            waits.merge(mine.waits[wait])
            runs.merge(mine.runs[wait])
    sampled = mine.sampled_ms >= (minute - RECENT_MINUTES) * 60_000
    return Recent(
        *_sums(mine.minutes, minute), waits.quantile_ms(0.95), runs.quantile_ms(0.95), sampled
    )
