"""Run reports: their SQL statements over the view `events`, then the Python part of two of them.

The view has the events of the range, from a lake or from the server's streams. From Parquet files each statement reads
its few columns again, which is cheaper than to keep all columns in a heap of 1 GB. Events that come through Python are
cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from jobq.errors import ConfigError, LakeError, PipelineError
from jobq.pipeline import register
from jobq.pipeline.lake.commit import IngestState, state_of
from jobq.pipeline.lake.files import live_files
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.reading import read, time_span
from jobq.pipeline.lake.rollup import FIRST_RUN
from jobq.pipeline.lake.tables import EVENTS, ROLLUP
from jobq.pipeline.options import unknown
from jobq.pipeline.report import registry
from jobq.pipeline.report.capacity import sized
from jobq.pipeline.report.expired import (
    HOURS,
    ExpiredPart,
    RollupSource,
    SeenHours,
    no_hours,
    of_queues,
)
from jobq.pipeline.report.interval import LEAST, MedianSample, difference
from jobq.pipeline.report.query import ReportQuery, iso
from jobq.pipeline.report.registry import Report

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

#: The columns that reports read.
READ_COLUMNS = (
    "queue", "kind", "mid", "job", "attempt", "enqueued_at", "started_at", "finished_at", "run_us",
    "cpu_us", "rss_kib", "error", "fingerprint", "key", "flow", "step",
)  # fmt: skip


class EventSource(NamedTuple):
    """between: returns the events from one time to another, None: without end. dear: cache them.

    rollups: those of a lake whose older events have expired.
    """

    between: Callable[[datetime | None, datetime | None], DataFrame]
    dear: bool = False
    rollups: RollupSource | None = None


#: Groups with sketches in memory before Spark sorts all rows instead. Spark's default is 128.
MOST_SKETCHES = "10000"
_SKETCHES = "spark.sql.objectHashAggregate.sortBased.fallbackThreshold"


class EventsSeen(NamedTuple):
    """Number of events of the range, the first and last time, and the queues."""

    events: int
    first: datetime
    last: datetime
    queues: tuple[str, ...]


#: Show a report the events and hours that it is made from; returns its query and remarks on its figures.
Show = Callable[[Report], tuple[ReportQuery, list[str]]]


@contextmanager
def events_view(spark: SparkSession, read: EventSource, query: ReportQuery) -> Iterator[EventsSeen]:
    """Register the temporary view `events` for the length of the context: the events of the query's range and queues.

    Beside READ_COLUMNS it has `first_wait_ms`: how long a message waited for its first run, or for its first one since
    it was revived. It is null for every other event, and for a run after a snooze, which costs no attempt. `arrived_at`
    is that revival, else the enqueue. The view `rollup_hours` is there, without rows.
    """
    with report_views(spark, read, query) as (seen, _):
        yield seen


@contextmanager
def report_views(
    spark: SparkSession, read: EventSource, query: ReportQuery
) -> Iterator[tuple[EventsSeen, Show]]:
    """Register both views as `events_view` does; the function changes them to those of a report."""
    part = None
    if read.rollups and query.since < read.rollups.before:
        part = ExpiredPart(spark, read.rollups, query)
    chosen = _chosen(read.between(query.since, query.until), query)
    seen, kinds = _looked_over(chosen)
    seen = _with_hours(seen, part.seen()) if part else seen
    _check_queues(read, query, seen, part)
    if not seen.events:
        raise PipelineError(_nothing(read, query))
    events = _with_first_wait(chosen, kinds)
    if read.dear:
        events = events.cache()
    events.createOrReplaceTempView("events")
    no_hours(spark).createOrReplaceTempView(HOURS)
    before = spark.conf.get(_SKETCHES)
    spark.conf.set(_SKETCHES, MOST_SKETCHES)

    def show(report: Report) -> tuple[ReportQuery, list[str]]:
        if part is None:
            return query, []
        asked, some, hours, notes = part.shown(report, events)
        some.createOrReplaceTempView("events")
        (no_hours(spark) if hours is None else hours).createOrReplaceTempView(HOURS)
        return asked, notes

    try:
        yield seen, show
    finally:
        spark.conf.set(_SKETCHES, before or "128")
        for name in ("events", HOURS):
            spark.catalog.dropTempView(name)
        if read.dear:
            events.unpersist()


def _with_hours(seen: EventsSeen, hours: Sequence[SeenHours]) -> EventsSeen:
    """Add what rollup_hourly has of expired days. Late events of those days are in both, and count twice."""
    if not hours:
        return seen
    first = min(one.first for one in hours)
    return EventsSeen(
        seen.events + sum(one.events for one in hours),
        min(first, seen.first) if seen.events else first,
        seen.last if seen.events else max(one.last for one in hours),
        tuple(sorted({*seen.queues, *(one.queue for one in hours)})),
    )


def _chosen(source: DataFrame, query: ReportQuery) -> DataFrame:
    from pyspark.sql import functions as f

    at = f.col("finished_at")
    return of_queues(source.where((at >= f.lit(query.since)) & (at < f.lit(query.until))), query)


#: Kinds of events that change what the first run of a message waits for.
_SNOOZED, _REVIVED = "snoozed", "revived"


def _looked_over(chosen: DataFrame) -> tuple[EventsSeen, set[str]]:
    """Return what the range has, and which of those kinds."""
    from pyspark.sql import functions as f

    rows = (
        chosen.groupBy("queue")
        .agg(
            f.count("*").alias("events"), f.min("finished_at").alias("first"),
            f.max("finished_at").alias("last"),
            *(f.count_if(f.col("kind") == kind).alias(kind) for kind in (_SNOOZED, _REVIVED)),
        ).toArrow().to_pylist()
    )  # fmt: skip
    nothing = datetime.fromtimestamp(0, UTC)
    seen = EventsSeen(
        sum(row["events"] for row in rows),
        min((row["first"] for row in rows), default=nothing),
        max((row["last"] for row in rows), default=nothing),
        tuple(sorted(row["queue"] for row in rows)),
    )
    return seen, {kind for kind in (_SNOOZED, _REVIVED) if any(row[kind] for row in rows)}


def _with_first_wait(chosen: DataFrame, kinds: Set[str]) -> DataFrame:
    from pyspark.sql import functions as f

    events, never = chosen.select(*READ_COLUMNS, "wait_ms"), "timestamp_seconds(0)"
    first = f.expr(f"CASE WHEN {FIRST_RUN} THEN wait_ms END")
    arrived = f.col("enqueued_at")
    if _REVIVED in kinds:
        revived = events.where(f"kind = '{_REVIVED}'").groupBy("queue", "mid")
        times = revived.agg(f.collect_list("finished_at").alias("revivals"))
        # A later message with the same mid is enqueued after them.
        since = "coalesce(enqueued_at, finished_at) AND coalesce(started_at, finished_at)"
        last = f"array_max(filter(revivals, at -> at BETWEEN {since}))"
        events = events.join(times, ["queue", "mid"], "left").withColumn(
            "revived_at", f.expr(f"coalesce({last}, {never})")
        )
        arrived = f.expr("CASE WHEN revived_at >= enqueued_at THEN revived_at ELSE enqueued_at END")
        wait = (
            "CASE WHEN revived_at >= enqueued_at THEN "
            "coalesce(timestampdiff(MILLISECOND, revived_at, started_at), wait_ms) ELSE wait_ms END"
        )
        first = f.expr(f"CASE WHEN {FIRST_RUN} THEN {wait} END")
    if _SNOOZED in kinds:
        life = ["queue", "mid", *(["revived_at"] if _REVIVED in kinds else [])]
        again = events.where(f"kind = '{_SNOOZED}'").groupBy(*life)
        events = events.join(again.agg(f.min("finished_at").alias("snoozed_at")), life, "left")
        first = f.when(f.expr("snoozed_at IS NULL OR started_at < snoozed_at"), first)
    return events.select(*READ_COLUMNS, first.alias("first_wait_ms"), arrived.alias("arrived_at"))


def _check_queues(
    read: EventSource, query: ReportQuery, seen: EventsSeen, part: ExpiredPart | None
) -> None:
    missing = [name for name in query.queues if name not in seen.queues]
    if missing:
        found = read.between(None, None).select("queue").distinct().toArrow().to_pylist()
        known = sorted({row["queue"] for row in found} | (part.queues() if part else set()))
        for name in missing:
            if name not in known:
                raise ConfigError(unknown("queue", name, known))


def _nothing(read: EventSource, query: ReportQuery) -> str:
    from pyspark.sql import functions as f

    at = f.col("finished_at")
    (row,) = (
        read.between(None, None)
        .agg(f.min(at).alias("first"), f.max(at).alias("last"))
        .toArrow()
        .to_pylist()
    )
    of = f" of {', '.join(query.queues)}" if query.queues else ""
    none = f"no events{of} between {iso(query.since)} and {iso(query.until)}"
    if row["first"] is None:
        return f"{none}: nothing was recorded yet"
    return f"{none}; there are some from {iso(row['first'])} to {iso(row['last'])}: widen --since and --until"


def check_range(lake: Lake, query: ReportQuery) -> str:
    """Return what of the range has expired, in words; empty if nothing has. This needs no Spark.

    PipelineError if the files of the lake show that the range has neither events nor hours of rollup_hourly.
    """
    delta, span = lake.table(EVENTS.name), time_span(query.since, query.until)
    days, before = sorted({one.dt for one in live_files(delta)}), _state(delta).before
    gone, counted = "", False
    if before > span.first_day:
        files = live_files(lake.table(ROLLUP.name), span.first_day, span.last_day)
        counted = any(one.dt < before for one in files)
        gone = f"events before {before} have expired; " + (
            "rollup_hourly and job_runs answer for them where they can"
            if counted
            else "rollup_hourly has none of these days, so they expired before a refresh"
        )
    if counted or any(span.first_day <= day <= span.last_day for day in days):
        return gone
    none = f"no events between {iso(query.since)} and {iso(query.until)}"
    if gone:
        raise PipelineError(f"{none}: {gone}")
    if not days:
        raise PipelineError(f"{none}: nothing was recorded yet")
    raise PipelineError(
        f"{none}; there are some of the days {days[0]} to {days[-1]}: widen --since and --until"
    )


def _state(delta: DeltaTable | None) -> IngestState:
    try:
        return state_of(delta, EVENTS.app)
    except LakeError:
        return IngestState()


Row = dict[str, Any]


class EarlierRows(NamedTuple):
    """The answer for an earlier range. pairs: the row that belongs to each row of the later one, None: none does."""

    pairs: Sequence[Row | None]
    rows: Sequence[Row]


@dataclass(frozen=True)
class ReportResult:
    """The answer of a report. notes: remarks on this answer. more: whether the limit left out rows.

    earlier: what it is compared with.
    """

    report: Report
    rows: Sequence[Row]
    notes: Sequence[str] = field(default=())
    more: bool = False
    earlier: EarlierRows | None = None


def frame(spark: SparkSession, report: Report, query: ReportQuery) -> DataFrame:
    """Return the statement's DataFrame, not yet computed."""
    args = {name: query.values[name] for name in report.parameters}
    return spark.sql(report.sql, args)


def run(spark: SparkSession, report: Report, query: ReportQuery) -> ReportResult:
    """Compute the report."""
    answer = frame(spark, report, query)
    # A time line or the input of the Python part must be complete.
    whole = bool(report.raw) or report.chart.kind == "lines"
    limit = 0 if whole else query.limit
    rows = (answer.limit(limit + 1) if limit else answer).toArrow().to_pylist()
    if rows and report.name in _GOES_ON:
        return _GOES_ON[report.name](spark, report, query, rows)
    more = bool(limit) and len(rows) > limit
    return ReportResult(report, rows[:limit] if more else rows, more=more)


def judge(report: Report, query: ReportQuery, rows: Sequence[Row]) -> ReportResult:
    """Return each job's verdict, the worst first."""
    enough = [row for row in rows if min(row["n_before"], row["n_after"]) >= LEAST]
    judged = [_judged(row, query) for row in rows]
    judged.sort(key=lambda row: (_ORDER[row["verdict"]], -abs(row["change"] or 0), row["job"]))
    name = query.at_name or "the middle of the range, as no mark lies in it"
    notes = [
        f"Before and after {iso(query.compared_at)} ({name}), {len(enough):,} of {len(rows):,} jobs with {LEAST} "
        f"runs or more on both sides. The intervals hold together at {100 * query.confidence:.4g} %; slower or faster "
        f"means by more than {100 * query.min_change:.4g} %."
    ]
    if len(judged) > query.limit > 0:
        return ReportResult(report, judged[: query.limit], notes, more=True)
    return ReportResult(report, judged, notes)


SLOWER, FASTER, SAME, TOO_FEW = "slower", "faster", "no change shown", "not enough data"
_ORDER = {SLOWER: 0, FASTER: 1, SAME: 2, TOO_FEW: 3}


def _judged(row: Row, query: ReportQuery) -> Row:
    told = {name: row[name] for name in ("job", "before_us", "after_us", "n_before", "n_after")}
    judged: Row = {**told, "verdict": TOO_FEW, "change": None, "low_us": None, "high_us": None}
    if row["before_us"] and row["after_us"] is not None:
        judged["change"] = row["after_us"] / row["before_us"] - 1
    if min(row["n_before"], row["n_after"]) < LEAST:
        return judged
    found = difference(
        *(
            MedianSample(row[f"{side}_us"], row[f"{side}_low"], row[f"{side}_high"])
            for side in ("before", "after")
        )
    )
    least = query.min_change * row["before_us"]
    verdict = SLOWER if found.low > least else FASTER if found.high < -least else SAME
    return judged | {"verdict": verdict, "low_us": found.low, "high_us": found.high}


def _capacity(
    spark: SparkSession, report: Report, query: ReportQuery, rows: list[Row]
) -> ReportResult:

    found, notes = sized(spark, query, rows)
    return ReportResult(report, found, notes)


_GOES_ON: Mapping[str, Callable[[SparkSession, Report, ReportQuery, list[Row]], ReportResult]] = {
    registry.CAPACITY.name: _capacity,
    registry.REGRESSIONS.name: lambda _, report, query, rows: judge(report, query, rows),
}


def answers(
    spark: SparkSession,
    read: EventSource,
    reports: Sequence[Report],
    query: ReportQuery,
    began: Callable[[Report], object] = lambda _: None,
) -> tuple[list[ReportResult], EventsSeen]:
    """Run each report; return the answers and what the range has. Call `began` before each report."""
    results = []
    with report_views(spark, read, query) as (seen, show):
        for report in reports:
            began(report)
            asked, notes = show(report)
            result = run(spark, report, asked)
            results.append(replace(result, notes=[*notes, *result.notes]))
    return results, seen


def from_lake(spark: SparkSession, lake: Lake) -> EventSource:
    """Return the events of a lake, and its rollups if events have expired."""
    rollups, state = None, _state(lake.table(EVENTS.name))
    if state.before:
        before = datetime.fromisoformat(state.before).replace(tzinfo=UTC)
        rollups = RollupSource(
            before, state.expired, lambda name, since, until: read(spark, lake, name, since, until)
        )
    return EventSource(
        lambda since, until: read(spark, lake, "events", since, until),
        dear=not lake.store.is_local, rollups=rollups,
    )  # fmt: skip


def from_server(spark: SparkSession, url: str | None, namespace: str) -> EventSource:
    """Return the events that the server's streams still have: about the last 100,000 of each queue."""

    register(spark)

    def read(since: datetime | None, until: datetime | None) -> DataFrame:
        reader = spark.read.format("jobq").option("view", "events").option("namespace", namespace)
        # Streams are trimmed while a report reads them.
        reader = reader.option("failOnDataLoss", "false")
        # One bad record must not hide the others; executors log how many they skip.
        reader = reader.option("mode", "DROPMALFORMED")
        # The option compares the time of the entry, which is after that of the event.
        reader = reader.option("since", since.isoformat()) if since else reader
        return (reader.option("url", url) if url else reader).load()

    return EventSource(read, dear=True)
