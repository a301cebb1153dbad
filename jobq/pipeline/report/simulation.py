"""Served first come first served by so many workers: what a trace's waits would have been.

Driven by the recorded arrivals and run times themselves, so bursts, daily waves and long tails are in it. A free
worker asks the queues in turns, as `jobq worker --queues high:6,low` does: by weight, a smooth round robin among
those that hold anything. Plain Python, for it runs on executors.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from heapq import heapreplace
from itertools import compress, pairwise
from typing import NamedTuple

HOUR_US = 3_600_000_000


class Trace(NamedTuple):
    """Arrivals in order, µs. `queue` is an index; only those `counted` are judged, the others fill the queues."""

    queue: array[int]
    arrived: array[int]
    run: array[int]
    counted: array[int]

    @property
    def queues(self) -> int:
        """How many queues there are."""
        return max(self.queue, default=-1) + 1


class Waits(NamedTuple):
    """One simulated pool. Times in µs, shares between 0 and 1; `by_queue`: share in time of each, None without any."""

    mean: float
    p95: int
    p99: int
    within: float
    by_queue: tuple[float | None, ...]


class Load(NamedTuple):
    """What a trace asks for: `offered` is the mean number of busy workers, by Little's law."""

    rate: float
    run: float
    offered: float
    arrival_scv: float
    run_scv: float


def waits(trace: Trace, workers: int, weights: Sequence[int] = ()) -> array[int]:
    """The wait of each arrival, in the trace's order."""
    if trace.queues <= 1:
        return _one_queue(trace, workers)
    return _many_queues(trace, workers, weights or [1] * trace.queues)


def _one_queue(trace: Trace, workers: int) -> array[int]:
    free, found = [0] * workers, array("q")
    for arrived, run in zip(trace.arrived, trace.run, strict=True):
        begun = free[0] if free[0] > arrived else arrived
        found.append(begun - arrived)
        heapreplace(free, begun + run)
    return found


def _many_queues(trace: Trace, workers: int, weights: Sequence[int]) -> array[int]:
    n, free = len(trace.arrived), [0] * workers
    found = array("q", bytes(8 * n))
    waiting: list[deque[int]] = [deque() for _ in weights]
    credit, following, held, now = [0] * len(weights), 0, 0, 0
    for _ in range(n):
        # Never back: a worker that was free before an arrival starts it when it arrives.
        now = max(now, free[0])
        if not held and following < n and trace.arrived[following] > now:
            now = trace.arrived[following]
        while following < n and trace.arrived[following] <= now:
            waiting[trace.queue[following]].append(following)
            following, held = following + 1, held + 1
        index = waiting[_turn(waiting, weights, credit)].popleft()
        held -= 1
        found[index] = now - trace.arrived[index]
        heapreplace(free, now + trace.run[index])
    return found


def _turn(waiting: Sequence[deque[int]], weights: Sequence[int], credit: list[int]) -> int:
    """The queue whose turn it is: that of the most credit among those that hold anything."""
    best, total = -1, 0
    for i, queue in enumerate(waiting):
        if queue:
            credit[i] += weights[i]
            total += weights[i]
            if best < 0 or credit[i] > credit[best]:
                best = i
    credit[best] -= total
    return best


def simulate(trace: Trace, workers: int, weights: Sequence[int], target_us: int) -> Waits:
    """How the counted arrivals fare."""
    found = waits(trace, workers, weights)
    judged = sorted(compress(found, trace.counted))
    all_of, late_of = [0] * trace.queues, [0] * trace.queues
    for queue, wait in compress(zip(trace.queue, found, strict=True), trace.counted):
        all_of[queue] += 1
        late_of[queue] += wait > target_us
    n = len(judged)
    p95, p99 = (judged[math.ceil(n * share) - 1] for share in (0.95, 0.99))
    shares = (1 - late / all_ if all_ else None for late, all_ in zip(late_of, all_of, strict=True))
    mean, within = sum(judged) / n, 1 - sum(late_of) / n
    return Waits(mean, p95, p99, within, tuple(shares))


def load(trace: Trace) -> Load:
    """Rate and run time of the counted arrivals, an hour's, and how much they vary (squared, relative)."""
    arrived = list(compress(trace.arrived, trace.counted))
    runs = list(compress(trace.run, trace.counted))
    gaps = [b - a for a, b in pairwise(arrived)]
    rate, mean = len(runs) / HOUR_US, sum(runs) / len(runs)
    return Load(rate, mean, rate * mean, _scv(gaps), _scv(runs))


def _scv(values: Sequence[int]) -> float:
    mean = sum(values) / len(values) if values else 0
    if not mean:
        return 1.0
    return sum((value - mean) ** 2 for value in values) / len(values) / mean**2


def formula_wait(load: Load, workers: int) -> float:
    """Mean wait in µs by Erlang C with the Allen-Cunneen correction; infinite when they can't keep up."""
    if load.offered >= workers:
        return math.inf
    blocked = 1.0
    for n in range(1, workers + 1):
        blocked = load.offered * blocked / (n + load.offered * blocked)
    waiting = blocked / (1 - load.offered / workers * (1 - blocked))
    return waiting * load.run / (workers - load.offered) * (load.arrival_scv + load.run_scv) / 2
