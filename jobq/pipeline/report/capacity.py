"""Compute how many workers meet a wait target, by simulating the busiest recorded hour and by a formula.

The simulation uses the recorded arrival times and run times, so the result includes the effects of bursts, daily waves
and long tails. A free worker chooses a queue with messages by smooth weighted round robin, as
`jobq worker --queues high:6,low` does. Then the worker runs the oldest message of this queue.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapreplace
from itertools import compress, pairwise
from typing import Any, NamedTuple

from jobq.durations import lasting
from jobq.pipeline.report.query import ReportQuery, pools

HOUR_US = 3_600_000_000


class Trace(NamedTuple):
    """Recorded arrivals of messages in order, with times in µs.

    Attributes:
        queue: Index of the queue.
        counted: 1 for an arrival in the measured hour. Other arrivals only fill the queues.
    """

    queue: array[int]
    arrived: array[int]
    run: array[int]
    counted: array[int]

    @property
    def queues(self) -> int:
        """The number of queues."""
        return max(self.queue, default=-1) + 1


class Waits(NamedTuple):
    """The waits in a simulation, in µs.

    Attributes:
        within: Share of messages that started within the target.
        by_queue: The same share for each queue; None for a queue without messages.
    """

    mean: float
    p95: int
    p99: int
    within: float
    by_queue: tuple[float | None, ...]


class Load(NamedTuple):
    """Statistics of recorded arrivals.

    Attributes:
        offered: Mean number of busy workers, by Little's law.
        arrival_scv and run_scv: Squared coefficients of variation of the times between arrivals and of the run times.
    """

    rate: float
    run: float
    offered: float
    arrival_scv: float
    run_scv: float


def waits(trace: Trace, workers: int, weights: Sequence[int] = ()) -> array[int]:
    """Simulate the workers; return the wait of each arrival, in the trace's order."""
    if trace.queues <= 1:
        return _one_queue(trace, workers)
    return _many_queues(trace, workers, weights or [1] * trace.queues)


def _one_queue(trace: Trace, workers: int) -> array[int]:
    free, delays = [0] * workers, array("q")
    for arrived, run in zip(trace.arrived, trace.run, strict=True):
        begun = free[0] if free[0] > arrived else arrived
        delays.append(begun - arrived)
        heapreplace(free, begun + run)
    return delays


def _many_queues(trace: Trace, workers: int, weights: Sequence[int]) -> array[int]:
    n, free = len(trace.arrived), [0] * workers
    delays = array("q", bytes(8 * n))
    waiting: list[deque[int]] = [deque() for _ in weights]
    credit, following, held, now = [0] * len(weights), 0, 0, 0
    for _ in range(n):
        # A worker that was free before a message arrived starts the message when it arrives.
        now = max(now, free[0])
        if not held and following < n and trace.arrived[following] > now:
            now = trace.arrived[following]
        while following < n and trace.arrived[following] <= now:
            waiting[trace.queue[following]].append(following)
            following, held = following + 1, held + 1
        index = waiting[_turn(waiting, weights, credit)].popleft()
        held -= 1
        delays[index] = now - trace.arrived[index]
        heapreplace(free, now + trace.run[index])
    return delays


def _turn(waiting: Sequence[deque[int]], weights: Sequence[int], credit: list[int]) -> int:
    """Return the index of the queue to serve next: the nonempty queue with the most credit."""
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
    """Simulate the workers, and return the waits of arrivals in the measured hour."""
    delays = waits(trace, workers, weights)
    judged = sorted(compress(delays, trace.counted))
    all_of, late_of = [0] * trace.queues, [0] * trace.queues
    for queue, wait in compress(zip(trace.queue, delays, strict=True), trace.counted):
        all_of[queue] += 1
        late_of[queue] += wait > target_us
    n = len(judged)
    p95, p99 = (judged[math.ceil(n * share) - 1] for share in (0.95, 0.99))
    shares = (1 - late / all_ if all_ else None for late, all_ in zip(late_of, all_of, strict=True))
    mean, within = sum(judged) / n, 1 - sum(late_of) / n
    return Waits(mean, p95, p99, within, tuple(shares))


def load(trace: Trace, observed_us: int = HOUR_US) -> Load:
    """Return the arrival rate and mean run time of the counted messages, and how much both vary."""
    arrived = list(compress(trace.arrived, trace.counted))
    runs = list(compress(trace.run, trace.counted))
    gaps = [b - a for a, b in pairwise(arrived)]
    rate, mean = len(runs) / observed_us, sum(runs) / len(runs)
    return Load(rate, mean, rate * mean, _scv(gaps), _scv(runs))


def _scv(values: Sequence[int]) -> float:
    mean = sum(values) / len(values) if values else 0
    if not mean:
        return 1.0
    return sum((value - mean) ** 2 for value in values) / len(values) / mean**2


def formula_wait(load: Load, workers: int) -> float:
    """Return the mean wait in µs by Erlang C with the Allen-Cunneen correction; infinite under overload."""
    if load.offered >= workers:
        return math.inf
    blocked = 1.0
    for n in range(1, workers + 1):
        blocked = load.offered * blocked / (n + load.offered * blocked)
    waiting = blocked / (1 - load.offered / workers * (1 - blocked))
    return waiting * load.run / (workers - load.offered) * (load.arrival_scv + load.run_scv) / 2


Row = dict[str, Any]
Try = tuple[str, int]
#: The first numbers of workers to try: the mean number of busy workers plus these.
BEYOND = (0, 1, 2, 4, 8, 16, 32, 64)
#: Number of counts to try together between the last failing and the first passing count.
FINE = 6
#: A pool that is busy for a larger share of the time has no reserve.
ROOM = 0.8


#: Simulates each pool on a trace, in this process or on executors; see `SqlEngine.each`.
Each = Callable[[Callable[[Trace, "Pool"], Waits], Trace, Sequence["Pool"]], list[Waits]]


def sized(each: Each, query: ReportQuery, rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Simulate different numbers of workers. Return a row for each simulation, and notes about the results."""
    names, trace = tracked(rows)
    if not any(trace.counted):
        return [], [
            "The busiest hour was cut off by the limit on its arrivals; raise --trace-rows."
        ]
    observed_us = _observed(query, rows, trace)
    peak = load(trace, observed_us)
    weights = weighed(query, names, trace)

    def judged(tries: Iterable[Try]) -> dict[Try, Waits]:
        target_us = round(query.target_s * 1e6)
        tried = [Pool(*key, tuple(weights[key[0]]), target_us) for key in tries]
        return {
            (pool.name, pool.workers): waits
            for pool, waits in zip(tried, each(_simulated, trace, tried))
        }

    results = searched(query, weights, max(1, math.ceil(peak.offered)), judged)
    told = [
        _row(query, names, peak, key, times)
        for key, times in sorted(results.items(), key=lambda item: (item[0][1], item[0][0]))
    ]
    return told, _notes(query, trace, peak, told, len(rows), observed_us)


def _observed(query: ReportQuery, rows: Sequence[Row], trace: Trace) -> int:
    """Return how long arrivals were counted, in µs. The time is shorter if the limit on rows cut off arrivals."""
    observed: int = rows[0]["observed_us"]
    if len(rows) >= query.trace_rows:
        counted = list(compress(trace.arrived, trace.counted))
        observed = min(observed, counted[-1] - counted[0])
    return max(1, observed)


def tracked(rows: Sequence[Row]) -> tuple[tuple[str, ...], Trace]:
    """Return the queues' names, and the rows as a trace."""
    names = tuple(sorted({row["queue"] for row in rows}))
    index = {name: i for i, name in enumerate(names)}
    return names, Trace(
        array("q", (index[row["queue"]] for row in rows)),
        array("q", (row["arrived_us"] for row in rows)),
        array("q", (row["run_us"] for row in rows)),
        array("q", (int(row["counted"]) for row in rows)),
    )


def weighed(query: ReportQuery, names: tuple[str, ...], trace: Trace) -> dict[str, tuple[int, ...]]:
    """Return the sets of queue weights to try, by name: equal, by load, and each set from --weights."""
    if len(names) < 2:
        return {"one queue": (1,)}
    busy = [0] * len(names)
    for queue, run in zip(trace.queue, trace.run, strict=True):
        busy[queue] += run
    most = max(busy) or 1
    by_load = tuple(max(1, round(10 * busy_us / most)) for busy_us in busy)
    return {"equal": (1,) * len(names), "by load": by_load, **pools(query, names)}


def searched(
    query: ReportQuery,
    weights: Mapping[str, Sequence[int]],
    least: int,
    judged: Callable[[Iterable[Try]], dict[Try, Waits]],
) -> dict[Try, Waits]:
    """Simulate different numbers of workers, and find the smallest number that meets the target.

    If the query contains numbers of workers, simulate only these.
    """
    counts = query.workers or tuple(least + more for more in BEYOND)
    results = judged((name, count) for name in weights for count in counts)
    if query.workers:
        return results
    while between := [(name, n) for name in weights for n in _between(query, name, results)]:
        results |= judged(between)
    return results


def _between(query: ReportQuery, name: str, results: Mapping[Try, Waits]) -> range:
    """Return numbers of workers to try next.

    The numbers are between the largest number that misses the target and the smallest number that meets it.
    """
    counts = sorted(count for weights, count in results if weights == name)
    holds = next((n for n in counts if _holds(query, results[name, n])), counts[0])
    fails = max((n for n in counts if n < holds), default=holds - 1)
    return range(fails + 1, holds, math.ceil((holds - fails) / FINE))


class Pool(NamedTuple):
    """A pool of workers to simulate.

    Attributes:
        name: Name of the set of weights in the report, such as `equal`.
    """

    name: str
    workers: int
    weights: tuple[int, ...]
    target_us: int


def _simulated(trace: Trace, pool: Pool) -> Waits:
    return simulate(trace, pool.workers, pool.weights, pool.target_us)


def _holds(query: ReportQuery, times: Waits) -> bool:
    return all(share is None or share >= query.objective for share in times.by_queue)


def _row(query: ReportQuery, names: Sequence[str], peak: Load, tried: Try, times: Waits) -> Row:
    shares = [
        (share, name) for share, name in zip(times.by_queue, names, strict=False) if share is not None
    ]  # fmt: skip
    (weights, workers), (worst, queue) = tried, min(shares)
    formula = formula_wait(peak, workers)
    return {
        "weights": weights, "workers": workers, "busy": min(1.0, peak.offered / workers),
        "formula_us": formula if math.isfinite(formula) else None,
        "mean_us": times.mean, "p95_us": times.p95, "p99_us": times.p99,
        "within": times.within, "worst_queue": queue, "worst_within": worst,
        "meets": "yes" if _holds(query, times) else "no",
    }  # fmt: skip


def _notes(
    query: ReportQuery, trace: Trace, peak: Load, told: Sequence[Row], rows: int, observed_us: int
) -> list[str]:
    part = (
        f" in the {lasting(observed_us / 1e6)} that were observed" if observed_us < HOUR_US else ""
    )
    room, busy = max(1, math.ceil(peak.offered / ROOM)), max(1, math.ceil(peak.offered))
    fits = (n for n in range(busy, busy + 1000) if formula_wait(peak, n) <= query.target_s * 1e6)
    notes = [
        f"Busiest hour: {sum(trace.counted):,} attempts{part}. By Little's law {peak.offered:.2f} workers are busy on "
        f"average, and {room:,} would be busy for less than {100 * ROOM:.0f} % of the time. By the formula a "
        f"mean wait of {query.target_s:g} s takes {next(fits, 'more than a thousand')}."
    ]
    for weights in dict.fromkeys(row["weights"] for row in told):
        rows_of = [row for row in told if row["weights"] == weights and row["meets"] == "yes"]
        need = f"{rows_of[0]['workers']:,}" if rows_of else "more than tried"
        notes.append(
            f"By simulation, weights {weights}: for {100 * query.objective:.4g} % of each queue's messages to start "
            f"within {query.target_s:g} s it takes {need}."
        )
    if rows >= query.trace_rows:
        notes.append(f"Only the first {rows:,} arrivals were used; raise --trace-rows to use more.")
    return notes
