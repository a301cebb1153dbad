"""Run reports: SQL statements over the view `events`. For two of them, Python code then processes the rows.

The view has the events of the range, from a lake or from the server's streams. A small range is computed in this
process, a large range by Spark (see `engines`). With Spark, each statement reads its few columns again, because a heap
of 1 GB can't hold all columns. Events read through Python are cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from jobq.client.names import base_of
from jobq.errors import ConfigError, PipelineError
from jobq.pipeline.lake.files import live_files
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.reading import time_span
from jobq.pipeline.lake.rollup import FIRST_RUN
from jobq.pipeline.lake.tables import EVENTS, ROLLUP, sourced
from jobq.pipeline.options import unknown
from jobq.pipeline.report import registry
from jobq.pipeline.report.capacity import sized
from jobq.pipeline.report.engines import EXACT_ROWS, Row, SparkEngine, SqlEngine, as_spark
from jobq.pipeline.report.expired import HOURS, ExpiredPart, SeenHours, no_hours
from jobq.pipeline.report.interval import MIN_COUNT, MedianSample, difference
from jobq.pipeline.report.query import ReportQuery, iso
from jobq.pipeline.report.registry import Report, statement
from jobq.pipeline.report.sources import EventSource, ingest_state

#: Number of groups with sketches in memory after which Spark sorts all rows instead. Spark's default is 128.
MAX_SKETCHES = "10000"
_SKETCHES = "spark.sql.objectHashAggregate.sortBased.fallbackThreshold"
#: Views: all events read, events of the range and its queues, and events with the first wait.
_READ, _CHOSEN, _PLAIN = "events_read", "events_chosen", "events_plain"


class EventsSeen(NamedTuple):
    """The number of events in a report's range, the times of the first and last event, and the events' queues."""

    events: int
    first: datetime
    last: datetime
    queues: tuple[str, ...]


#: Prepares the events and hours for a report. Returns the report's query and notes on its figures.
Show = Callable[[Report], tuple[ReportQuery, list[str]]]


@contextmanager
def events_view(engine: SqlEngine, read: EventSource, query: ReportQuery) -> Iterator[EventsSeen]:
    """Make the view `events` for the duration of a `with` block: the events of the query's range and queues.

    The view has the columns of `sources.READ_COLUMNS`, but `queue` contains the value of `base_queue`. Two columns are
    added. `first_wait_ms` is the wait for a message's first run, or for its first run after a revival. The column is
    null for all other events, including runs after a snooze. `arrived_at` is when the message was enqueued or last
    revived. An empty view `rollup_hours` is also made.
    """
    with report_views(engine, read, query) as (seen, _):
        yield seen


@contextmanager
def report_views(
    engine: SqlEngine, read: EventSource, query: ReportQuery
) -> Iterator[tuple[EventsSeen, Show]]:
    """Make the same views as `events_view`. Yield facts about the events, and a function that prepares a report."""
    part = None
    if read.rollups and query.since < read.rollups.before:
        part = ExpiredPart(as_spark(engine).spark, read.rollups, query)
    try:
        seen, kinds = _looked_over(engine, read, query)
        seen = _with_hours(seen, part.seen()) if part else seen
        _check_queues(engine, read, query, seen, part)
        if not seen.events:
            raise PipelineError(_nothing(engine, read, query))
        engine.exact = seen.events <= EXACT_ROWS
        engine.make(_PLAIN, _with_first_wait(kinds), keep=read.dear)
        engine.make("events", "SELECT * FROM events_plain")
        engine.make(HOURS, no_hours(engine.exact))
        with _many_sketches(engine):
            yield seen, partial(_show, engine, query, part, engine.exact)
    finally:
        engine.drop(HOURS, "events", _PLAIN, _CHOSEN, _READ)


def _show(
    engine: SqlEngine, query: ReportQuery, part: ExpiredPart | None, exact: bool, report: Report
) -> tuple[ReportQuery, list[str]]:
    if part is None:
        return query, []
    spark = as_spark(engine).spark
    asked, some, hours, notes = part.shown(report, spark.table(_PLAIN))
    engine.open("events", some)
    # The hours have sketches of their values, to be merged with others.
    engine.exact = exact and hours is None
    if hours is None:
        engine.make(HOURS, no_hours(engine.exact))
    else:
        engine.open(HOURS, hours)
    return asked, notes


@contextmanager
def _many_sketches(engine: SqlEngine) -> Iterator[None]:
    if not isinstance(engine, SparkEngine):
        yield
        return
    conf = engine.spark.conf
    before = conf.get(_SKETCHES)
    conf.set(_SKETCHES, MAX_SKETCHES)
    try:
        yield
    finally:
        conf.set(_SKETCHES, before or "128")


def _with_hours(seen: EventsSeen, hours: Sequence[SeenHours]) -> EventsSeen:
    """Add the figures of rollup_hourly for expired days. Late events of these days count twice."""
    if not hours:
        return seen
    first = min(hour.first for hour in hours)
    return EventsSeen(
        seen.events + sum(hour.events for hour in hours),
        min(first, seen.first) if seen.events else first,
        seen.last if seen.events else max(hour.last for hour in hours),
        tuple(sorted({*seen.queues, *(hour.queue for hour in hours)})),
    )


#: Kinds of events that change what the first run of a message waits for.
_SNOOZED, _REVIVED = "snoozed", "revived"


def _looked_over(
    engine: SqlEngine, read: EventSource, query: ReportQuery
) -> tuple[EventsSeen, set[str]]:
    """Make a view of the query's events. Return facts about the events, and which of `snoozed` and `revived` occur."""
    engine.open(_READ, read.between(query.since, query.until))
    args: dict[str, Any] = {"since": query.since, "until": query.until}
    chosen = (
        "SELECT * EXCEPT (queue, base_queue), base_queue AS queue FROM events_read "
        "WHERE finished_at >= :since AND finished_at < :until"
    )
    if query.source:
        chosen += " AND startswith(queue, :source)"
        args["source"] = sourced(query.source, "")
    if query.queues:
        names = {f"queue{number}": name for number, name in enumerate(query.queues)}
        marks = ", ".join(f":{name}" for name in names)
        chosen += f" AND (queue IN ({marks}) OR base_queue IN ({marks}))"
        args |= names
    engine.make(_CHOSEN, chosen, args)
    rows = engine.rows(
        "SELECT queue, count(*) AS events, min(finished_at) AS first, max(finished_at) AS last, "
        "count_if(kind = 'snoozed') AS snoozed, count_if(kind = 'revived') AS revived "
        "FROM events_chosen GROUP BY queue"
    )
    nothing = datetime.fromtimestamp(0, UTC)
    seen = EventsSeen(
        sum(row["events"] for row in rows),
        min((row["first"] for row in rows), default=nothing),
        max((row["last"] for row in rows), default=nothing),
        tuple(sorted(row["queue"] for row in rows)),
    )
    return seen, {kind for kind in (_SNOOZED, _REVIVED) if any(row[kind] for row in rows)}


def _with_first_wait(kinds: Set[str]) -> str:
    """Return SQL for the view `events`, with joins only for the given kinds of events."""
    rows, life, revived_at, is_first = (
        "events_chosen",
        "queue, mid",
        "timestamp_seconds(0)",
        FIRST_RUN,
    )
    if _REVIVED in kinds:
        rows, revived_at = f"({statement('events_revived')})", "revived_at"
        life += ", revived_at"
    if _SNOOZED in kinds:
        text = statement("events_snoozed").replace("{life}", life).replace("{rows}", rows)
        rows, is_first = (
            f"({text})",
            f"{FIRST_RUN} AND (snoozed_at IS NULL OR started_at < snoozed_at)",
        )
    parts = {"{rows}": rows, "{revived_at}": revived_at, "{is_first}": is_first}
    text = statement("events")
    for name, part in parts.items():
        text = text.replace(name, part)
    return text


def _check_queues(
    engine: SqlEngine,
    read: EventSource,
    query: ReportQuery,
    seen: EventsSeen,
    part: ExpiredPart | None,
) -> None:
    missing = [name for name in query.queues if base_of(name) not in seen.queues]
    if missing:
        engine.open(_READ, read.between(None, None))
        rows = engine.rows("SELECT DISTINCT queue, base_queue FROM events_read")
        told = {name for row in rows for name in row.values()}
        known = sorted(told | (part.queues() if part else set()))
        for name in missing:
            if name not in known:
                raise ConfigError(unknown("queue", name, known))


def _nothing(engine: SqlEngine, read: EventSource, query: ReportQuery) -> str:
    engine.open(_READ, read.between(None, None))
    (row,) = engine.rows(
        "SELECT min(finished_at) AS first, max(finished_at) AS last FROM events_read"
    )
    of = f" of {', '.join(query.queues)}" if query.queues else ""
    none = f"no events{of} between {iso(query.since)} and {iso(query.until)}"
    if row["first"] is None:
        return f"{none}: no events have been recorded yet"
    return f"{none}; there are events from {iso(row['first'])} to {iso(row['last'])}: widen --since and --until"


def check_range(lake: Lake, query: ReportQuery) -> str:
    """Return a text about the expired part of the range, or '' if nothing has expired. This doesn't need Spark.

    Raises PipelineError if the lake has neither events nor rows of rollup_hourly for the days of the range.
    """
    delta, span = lake.table(EVENTS.name), time_span(query.since, query.until)
    days, before = sorted({file.dt for file in live_files(delta)}), ingest_state(delta).before
    gone, counted = "", False
    if before > span.first_day:
        files = live_files(lake.table(ROLLUP.name), span.first_day, span.last_day)
        counted = any(file.dt < before for file in files)
        gone = f"events before {before} have expired; " + (
            "rollup_hourly and job_runs replace them where possible"
            if counted
            else "rollup_hourly has none of these days, so they expired before a refresh"
        )
    if counted or any(span.first_day <= day <= span.last_day for day in days):
        return gone
    none = f"no events between {iso(query.since)} and {iso(query.until)}"
    if gone:
        raise PipelineError(f"{none}: {gone}")
    if not days:
        raise PipelineError(f"{none}: no events have been recorded yet")
    raise PipelineError(
        f"{none}; there are events from {days[0]} to {days[-1]}: widen --since and --until"
    )


class EarlierRows(NamedTuple):
    """The rows of the earlier range in a comparison.

    Attributes:
        pairs: For each row of the later range, the matching row, or None.
    """

    pairs: Sequence[Row | None]
    rows: Sequence[Row]


@dataclass(frozen=True)
class ReportResult:
    """The answer of a report.

    Attributes:
        earlier: The result to compare with.
        notes: Remarks on this answer.
        more: Whether the limit left out rows.
    """

    report: Report
    rows: Sequence[Row]
    notes: Sequence[str] = field(default=())
    more: bool = False
    earlier: EarlierRows | None = None


def answer(engine: SqlEngine, report: Report, query: ReportQuery, limit: int = 0) -> list[Row]:
    """Return the rows of the report's statement, up to a limit; 0 returns all."""
    args = {name: query.values[name] for name in report.parameters}
    return engine.rows(f"{report.sql}\nLIMIT {limit}" if limit else report.sql, args)


def make_report(engine: SqlEngine, report: Report, query: ReportQuery) -> ReportResult:
    """Compute the report."""
    # A time line or the input of the Python part must be complete.
    whole = bool(report.raw) or report.chart.kind == "lines"
    limit = 0 if whole else query.limit
    rows = answer(engine, report, query, limit + 1 if limit else 0)
    if rows and report.name in _GOES_ON:
        return _GOES_ON[report.name](engine, report, query, rows)
    more = bool(limit) and len(rows) > limit
    return ReportResult(report, rows[:limit] if more else rows, more=more)


def judge(report: Report, query: ReportQuery, rows: Sequence[Row]) -> ReportResult:
    """Decide whether each job became slower or faster. The result lists slower jobs first."""
    enough = [row for row in rows if min(row["n_before"], row["n_after"]) >= MIN_COUNT]
    judged = [_judged(row, query) for row in rows]
    judged.sort(key=lambda row: (_ORDER[row["verdict"]], -abs(row["change"] or 0), row["job"]))
    name = query.at_name or "the middle of the range, because it contains no mark"
    notes = [
        f"Before and after {iso(query.compared_at)} ({name}), {len(enough):,} of {len(rows):,} jobs with {MIN_COUNT} "
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
    if min(row["n_before"], row["n_after"]) < MIN_COUNT:
        return judged
    delta = difference(
        *(
            MedianSample(row[f"{side}_us"], row[f"{side}_low"], row[f"{side}_high"])
            for side in ("before", "after")
        )
    )
    least = query.min_change * row["before_us"]
    verdict = SLOWER if delta.low > least else FASTER if delta.high < -least else SAME
    return judged | {"verdict": verdict, "low_us": delta.low, "high_us": delta.high}


def _capacity(
    engine: SqlEngine, report: Report, query: ReportQuery, rows: list[Row]
) -> ReportResult:
    pools, notes = sized(engine.each, query, rows)
    return ReportResult(report, pools, notes)


_GOES_ON: Mapping[str, Callable[[SqlEngine, Report, ReportQuery, list[Row]], ReportResult]] = {
    registry.CAPACITY.name: _capacity,
    registry.REGRESSIONS.name: lambda _, report, query, rows: judge(report, query, rows),
}


def answers(
    engine: SqlEngine,
    read: EventSource,
    reports: Sequence[Report],
    query: ReportQuery,
    began: Callable[[Report], object] = lambda _: None,
) -> tuple[list[ReportResult], EventsSeen]:
    """Run each report; return the answers and facts about the range. Call `began` before each report."""
    results = []
    with report_views(engine, read, query) as (seen, show):
        for report in reports:
            began(report)
            asked, notes = show(report)
            result = make_report(engine, report, asked)
            results.append(replace(result, notes=[*notes, *result.notes]))
    return results, seen
