"""The view `events` that the reports' statements read: a range of history.

Of Parquet on this machine each statement reads its few columns again, which is cheaper than to keep all of
them in a heap of 1 GB first. What comes through Python is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from jobq.errors import ConfigError, PipelineError
from jobq.pipeline.options import unknown
from jobq.pipeline.report.asked import Asked, iso

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What any report reads; the rest of an event isn't kept.
READ = (
    "queue", "kind", "mid", "job", "attempt", "enqueued_at", "started_at", "finished_at", "run_us",
    "cpu_us", "rss_kib", "error", "fingerprint",
)  # fmt: skip


class Read(NamedTuple):
    """The events from a moment to another, None: without end. `dear`: to read them again costs too much."""

    between: Callable[[datetime | None, datetime | None], DataFrame]
    dear: bool = False


#: Groups whose sketches are held at once before Spark turns to sorting all rows; its own 128 is soon passed.
MOST_SKETCHES = "10000"
_SKETCHES = "spark.sql.objectHashAggregate.sortBased.fallbackThreshold"
_FIRST = "kind IN ('done', 'retry', 'dead', 'crashed', 'snoozed') AND attempt = 1"


class Seen(NamedTuple):
    """What the range holds."""

    events: int
    first: datetime
    last: datetime
    queues: tuple[str, ...]


@contextmanager
def registered(spark: SparkSession, read: Read, asked: Asked) -> Iterator[Seen]:
    """The temporary view `events` for as long: what `read` gives of the range and the queues asked for.

    Beside the columns READ it has `first_wait_ms`: how long a message waited for its first run; null for
    every other event, and for what ran again after a snooze, which costs no attempt.
    """
    chosen = _chosen(read.between(asked.since, asked.until), asked)
    seen, snoozed = _looked_over(chosen)
    _check_queues(read, asked, seen)
    if not seen.events:
        raise PipelineError(_nothing(read, asked))
    events = _with_first_wait(chosen, snoozed)
    if read.dear:
        events = events.cache()
    events.createOrReplaceTempView("events")
    before = spark.conf.get(_SKETCHES)
    spark.conf.set(_SKETCHES, MOST_SKETCHES)
    try:
        yield seen
    finally:
        spark.conf.set(_SKETCHES, before or "128")
        spark.catalog.dropTempView("events")
        if read.dear:
            events.unpersist()


def _chosen(source: DataFrame, asked: Asked) -> DataFrame:
    from pyspark.sql import functions as f

    at = f.col("finished_at")
    found = source.where((at >= f.lit(asked.since)) & (at < f.lit(asked.until)))
    return found.where(f.col("queue").isin(*asked.queues)) if asked.queues else found


def _looked_over(chosen: DataFrame) -> tuple[Seen, bool]:
    from pyspark.sql import functions as f

    rows = (
        chosen.groupBy("queue")
        .agg(
            f.count("*").alias("events"), f.min("finished_at").alias("first"),
            f.max("finished_at").alias("last"), f.count_if(f.col("kind") == "snoozed").alias("snoozed"),
        ).toArrow().to_pylist()
    )  # fmt: skip
    nothing = datetime.fromtimestamp(0, UTC)
    seen = Seen(
        sum(row["events"] for row in rows),
        min((row["first"] for row in rows), default=nothing),
        max((row["last"] for row in rows), default=nothing),
        tuple(sorted(row["queue"] for row in rows)),
    )
    return seen, any(row["snoozed"] for row in rows)


def _with_first_wait(chosen: DataFrame, snoozed: bool) -> DataFrame:
    from pyspark.sql import functions as f

    events = chosen.select(*READ, "wait_ms")
    first = f.expr(f"CASE WHEN {_FIRST} THEN wait_ms END")
    if snoozed:
        again = events.where("kind = 'snoozed'").groupBy("queue", "mid")
        since = again.agg(f.min("finished_at").alias("snoozed_at"))
        events = events.join(since, ["queue", "mid"], "left")
        first = f.when(f.expr("snoozed_at IS NULL OR started_at < snoozed_at"), first)
    return events.select(*READ, first.alias("first_wait_ms"))


def _check_queues(read: Read, asked: Asked, seen: Seen) -> None:
    missing = [name for name in asked.queues if name not in seen.queues]
    if missing:
        found = read.between(None, None).select("queue").distinct().toArrow().to_pylist()
        known = sorted(row["queue"] for row in found)
        for name in missing:
            if name not in known:
                raise ConfigError(unknown("queue", name, known))


def _nothing(read: Read, asked: Asked) -> str:
    from pyspark.sql import functions as f

    at = f.col("finished_at")
    (row,) = (
        read.between(None, None)
        .agg(f.min(at).alias("first"), f.max(at).alias("last"))
        .toArrow()
        .to_pylist()
    )
    of = f" of {', '.join(asked.queues)}" if asked.queues else ""
    none = f"no events{of} between {iso(asked.since)} and {iso(asked.until)}"
    if row["first"] is None:
        return f"{none}: nothing was recorded yet"
    return f"{none}; there are some from {iso(row['first'])} to {iso(row['last'])}: widen --since and --until"
