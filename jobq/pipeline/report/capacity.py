"""How many workers a wait target takes: a sweep of simulations over executors, beside the formula."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobq.pipeline.report.asked import Asked, pools
from jobq.pipeline.report.simulation import Load, Trace, Waits, formula_wait, load, simulate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]
Try = tuple[str, int]
#: Workers beyond the mean number of busy ones that a sweep tries first.
BEYOND = (0, 1, 2, 4, 8, 16, 32, 64)
#: Of the counts between the last that failed and the first that holds, no more than so many are tried at once.
FINE = 6
#: Busier than this, a worker pool has no room for an hour that is a little worse.
ROOM = 0.8


def sized(spark: SparkSession, asked: Asked, rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """A row per pool that was tried, and what to say of them."""
    names, trace = tracked(rows)
    if not any(trace.counted):
        return [], [
            "The busiest hour was cut off by the limit on its arrivals; raise --trace-rows."
        ]
    found = load(trace)
    weights = weighed(asked, names, trace)

    def judged(tries: Iterable[Try]) -> dict[Try, Waits]:
        return swept(spark, trace, weights, list(tries), round(asked.target_s * 1e6))

    results = searched(asked, weights, max(1, math.ceil(found.offered)), judged)
    told = [
        _row(asked, names, found, key, one)
        for key, one in sorted(results.items(), key=lambda item: (item[0][1], item[0][0]))
    ]
    return told, _notes(asked, trace, found, told, len(rows))


def tracked(rows: Sequence[Row]) -> tuple[tuple[str, ...], Trace]:
    """The queues' names and the trace of the statement's rows."""
    names = tuple(sorted({row["queue"] for row in rows}))
    index = {name: i for i, name in enumerate(names)}
    return names, Trace(
        array("q", (index[row["queue"]] for row in rows)),
        array("q", (row["arrived_us"] for row in rows)),
        array("q", (row["run_us"] for row in rows)),
        array("q", (int(row["counted"]) for row in rows)),
    )


def weighed(asked: Asked, names: tuple[str, ...], trace: Trace) -> dict[str, tuple[int, ...]]:
    """Ways to weigh the queues, by their names in the report: equal, by what each asks for, and those asked for."""
    if len(names) < 2:
        return {"one queue": (1,)}
    busy = [0] * len(names)
    for queue, run in zip(trace.queue, trace.run, strict=True):
        busy[queue] += run
    most = max(busy) or 1
    by_load = tuple(max(1, round(10 * one / most)) for one in busy)
    return {"equal": (1,) * len(names), "by load": by_load, **pools(asked, names)}


def searched(
    asked: Asked,
    weights: Mapping[str, Sequence[int]],
    least: int,
    judged: Callable[[Iterable[Try]], dict[Try, Waits]],
) -> dict[Try, Waits]:
    """Try a few counts, then closer and closer ones until the least that holds is known."""
    counts = asked.workers or tuple(least + more for more in BEYOND)
    results = judged((name, count) for name in weights for count in counts)
    if asked.workers:
        return results
    while between := [(name, n) for name in weights for n in _between(asked, name, results)]:
        results |= judged(between)
    return results


def _between(asked: Asked, name: str, results: Mapping[Try, Waits]) -> range:
    """Counts to try next: between the first that holds and the one below it; none where none holds."""
    counts = sorted(count for weights, count in results if weights == name)
    holds = next((n for n in counts if _holds(asked, results[name, n])), counts[0])
    fails = max((n for n in counts if n < holds), default=holds - 1)
    return range(fails + 1, holds, math.ceil((holds - fails) / FINE))


def swept(
    spark: SparkSession, trace: Trace, weights: Mapping[str, Sequence[int]], tries: list[Try], target_us: int
) -> dict[Try, Waits]:  # fmt: skip
    """Each try on an executor; the trace travels once."""
    context = spark.sparkContext
    shared = context.broadcast(trace)
    jobs = [(name, count, tuple(weights[name])) for name, count in tries]
    try:
        done = (
            context.parallelize(jobs, max(1, min(len(jobs), context.defaultParallelism)))
            .map(lambda job: ((job[0], job[1]), simulate(shared.value, job[1], job[2], target_us)))
            .collect()
        )
    finally:
        shared.unpersist()
    return dict(done)


def _holds(asked: Asked, one: Waits) -> bool:
    return all(share is None or share >= asked.objective for share in one.by_queue)


def _row(asked: Asked, names: Sequence[str], found: Load, tried: Try, one: Waits) -> Row:
    shares = [
        (share, name) for share, name in zip(one.by_queue, names, strict=False) if share is not None
    ]
    (weights, workers), (worst, queue) = tried, min(shares)
    formula = formula_wait(found, workers)
    return {
        "weights": weights, "workers": workers, "busy": min(1.0, found.offered / workers),
        "formula_us": formula if math.isfinite(formula) else None,
        "mean_us": one.mean, "p95_us": one.p95, "p99_us": one.p99,
        "within": one.within, "worst_queue": queue, "worst_within": worst,
        "meets": "yes" if _holds(asked, one) else "no",
    }  # fmt: skip


def _notes(asked: Asked, trace: Trace, found: Load, told: Sequence[Row], rows: int) -> list[str]:
    room, busy = max(1, math.ceil(found.offered / ROOM)), max(1, math.ceil(found.offered))
    fits = (n for n in range(busy, busy + 1000) if formula_wait(found, n) <= asked.target_s * 1e6)
    notes = [
        f"Busiest hour: {sum(trace.counted):,} attempts. By Little's law {found.offered:.2f} workers are busy on "
        f"average, and {room:,} would be busy for less than {100 * ROOM:.0f} % of it. By the formula a mean wait of "
        f"{asked.target_s:g} s takes {next(fits, 'more than a thousand')}."
    ]
    for weights in dict.fromkeys(row["weights"] for row in told):
        rows_of = [row for row in told if row["weights"] == weights and row["meets"] == "yes"]
        need = f"{rows_of[0]['workers']:,}" if rows_of else "more than were tried"
        notes.append(
            f"By simulation, weights {weights}: for {100 * asked.objective:.4g} % of each queue's messages to start "
            f"within {asked.target_s:g} s it takes {need}."
        )
    if rows >= asked.trace_rows:
        notes.append(f"Only the first {rows:,} arrivals were taken; --trace-rows takes more.")
    return notes
