"""Compute reports from the rollups of a lake, for days with expired events.

rollup_hourly has whole hours, so an hour that is only partly in the range is left out. job_runs has a row per message,
with the times of its first run and its end. In the view `events`, each row becomes an event at one of these times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from jobq.client.names import base_of
from jobq.pipeline.lake.tables import JOB_RUNS, ROLLUP, sourced
from jobq.pipeline.report.query import HOUR_S, ReportQuery, iso, zone_of
from jobq.pipeline.report.registry import Report
from jobq.pipeline.schema import DERIVED, columns_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Name of the view with rows of rollup_hourly, for hours whose events have expired.
HOURS = "rollup_hours"
_HOUR = timedelta(seconds=HOUR_S)
_NOTHING = tuple(
    f"CAST(NULL AS {type_}) AS {name}"
    for name, type_ in (
        ("run_us", "BIGINT"), ("cpu_us", "BIGINT"), ("rss_kib", "INT"), ("error", "STRING"),
        ("fingerprint", "STRING"), ("key", "STRING"),
    )
)  # fmt: skip
#: A message's first run, as the event of that attempt.
_FIRST_RUN = (
    "queue", "'done' AS kind", "mid", "job", "1 AS attempt", "enqueued_at", "started_at",
    "first_ended_at AS finished_at", *_NOTHING, "CAST(NULL AS STRING) AS flow", "CAST(NULL AS STRING) AS step",
    "wait_ms AS first_wait_ms", "enqueued_at AS arrived_at",
)  # fmt: skip
#: The end of a flow's message, as its event. The event of a cancelled message doesn't have the enqueue time.
_END = (
    "queue", "CASE WHEN done > 0 THEN 'done' ELSE outcome END AS kind", "mid", "job", "1 AS attempt",
    "CASE WHEN outcome <> 'cancelled' THEN enqueued_at END AS enqueued_at",
    "CASE WHEN outcome <> 'cancelled' THEN started_at END AS started_at",
    "last_at AS finished_at", *_NOTHING, f"{DERIVED['flow']} AS flow", f"{DERIVED['step']} AS step",
    "CAST(NULL AS BIGINT) AS first_wait_ms", "enqueued_at AS arrived_at",
)  # fmt: skip


class RollupSource(NamedTuple):
    """The rollups of a lake.

    Attributes:
        before: Events before this time have expired.
        nexpired: Number of expired events.
        table: Returns a table's rows from `since` to `until`. If `since` is None, the range begins with the first row.
    """

    before: datetime
    nexpired: int
    table: Callable[[str, datetime | None, datetime], DataFrame]


class SeenHours(NamedTuple):
    """Number of events of a queue in rollup_hourly, and their first and last hour."""

    queue: str
    events: int
    first: datetime
    last: datetime


def no_hours(exact: bool) -> str:
    """Return SQL that makes an empty view HOURS.

    Args:
        exact: Whether the sketch columns contain lists of exact values.
    """
    columns = (
        f"sequence(0L, 0L) AS {name}"
        if exact and name.endswith("_sketch")
        else f"CAST(NULL AS {type_}) AS {name}"
        for name, type_ in columns_ddl(ROLLUP.columns)
    )
    # The optimizer knows that this is empty, unlike an empty list.
    return f"SELECT {', '.join(columns)} WHERE false"


def whole_hours(query: ReportQuery, before: datetime) -> ReportQuery | None:
    """Return the query for only the complete hours before this time, or None if there are none."""
    since, until = -(-query.since.timestamp() // HOUR_S), query.until
    first = datetime.fromtimestamp(since * HOUR_S, UTC)
    if until <= before:
        until = datetime.fromtimestamp(until.timestamp() // HOUR_S * HOUR_S, UTC)
    if first >= min(before, until):
        return None
    return replace(query, since=first, until=until, at=None, at_name="", least_bucket_s=HOUR_S)


def has_whole_hours(zone: str, since: datetime, until: datetime) -> bool:
    """Return whether the zone's offset from UTC is a whole number of hours throughout the range."""
    known, at = zone_of(zone), since
    while at < until:
        if (at.astimezone(known).utcoffset() or timedelta()) % _HOUR:
            return False
        at += _HOUR
    return True


class ExpiredPart:
    """The part of a query's range whose events have expired."""

    def __init__(self, spark: SparkSession, rollups: RollupSource, query: ReportQuery) -> None:
        self._spark, self._rollups, self._query = spark, rollups, query
        self._before = rollups.before
        self._upto = min(rollups.before, query.until)

    def seen(self) -> list[SeenHours]:
        """Return each queue's number of expired events, and their first and last hour, from rollup_hourly."""
        from pyspark.sql import functions as f

        whole = whole_hours(self._query, self._before)
        if whole is None:
            return []
        rows = self._hours(whole).groupBy("queue")
        figures = rows.agg(
            f.sum("nevents").alias("events"),
            f.min("hour").alias("first"),
            f.max("hour").alias("last"),
        )
        return [SeenHours(**row) for row in figures.toArrow().to_pylist()]

    def queues(self) -> set[str]:
        rows = self._rollups.table(ROLLUP.name, None, self._before).select("queue").distinct()
        names = {row["queue"] for row in rows.toArrow().to_pylist()}
        return names | {base_of(name) for name in names}

    def shown(
        self, report: Report, plain: DataFrame
    ) -> tuple[ReportQuery, DataFrame, DataFrame | None, list[str]]:
        """Return the query, events and hourly rows for a report, and notes about its figures.

        Args:
            plain: The lake's events in the range. Late events of expired days are included, although the rollups also
                count these events.
        """
        from pyspark.sql import functions as f

        recent = plain.where(f.col("finished_at") >= f.lit(self._before))
        if report.rollup == "hours":
            return self._from_hours(report, plain, recent)
        if not report.rollup:
            return self._query, plain, None, [self._left_out(f"the rollups have no {report.lacks}")]
        if report.rollup == "flows":
            rows = self._chosen(JOB_RUNS.name).where("startswith(mid, '~')")
            rows = rows.where("outcome IN ('done', 'dead', 'cancelled', 'expired')")
            rows = self._within(rows, "last_at").selectExpr(*_END)
            note = f"{self._comes_from(JOB_RUNS.name)} {report.lacks}".rstrip()
            return self._query, recent.unionByName(rows.where("flow IS NOT NULL")), None, [note]
        return self._from_runs(report, recent)

    def _from_runs(
        self, report: Report, recent: DataFrame
    ) -> tuple[ReportQuery, DataFrame, DataFrame | None, list[str]]:
        from pyspark.sql import functions as f

        runs = self._chosen(JOB_RUNS.name)
        known = self._within(runs.where("wait_ms IS NOT NULL"), "first_ended_at")
        # A run after a snooze isn't the first, even if the snooze has expired, but a run after a later revival is.
        snoozed = runs.where(f.col("first_ended_at") < f.lit(self._before)).where("snoozes > 0")
        life = ["queue", "mid", "enqueued_at"]
        earlier = snoozed.select(*life).distinct().withColumn("ran", f.lit(True))
        names = recent.columns
        recent = recent.join(earlier, life, "left").withColumn(
            "first_wait_ms",
            f.expr("CASE WHEN ran IS NULL OR arrived_at > enqueued_at THEN first_wait_ms END"),
        )
        events = recent.select(*names).unionByName(known.selectExpr(*_FIRST_RUN))
        note = f"{self._comes_from(JOB_RUNS.name)} {report.lacks}".rstrip()
        return self._query, events, None, [note]

    def _from_hours(
        self, report: Report, plain: DataFrame, recent: DataFrame
    ) -> tuple[ReportQuery, DataFrame, DataFrame | None, list[str]]:
        whole = whole_hours(self._query, self._before)
        if whole is None:
            why = "rollup_hourly has whole hours only, and this range has none before that"
            return self._query, plain, None, [self._left_out(why)]
        if report.follows_zone and not has_whole_hours(whole.zone, whole.since, self._upto):
            why = f"rollup_hourly has UTC hours, which differ from the hours of {whole.zone}; choose another --zone"
            return self._query, plain, None, [self._left_out(why)]
        hours = self._hours(whole)
        notes = [self._comes_from(ROLLUP.name) + _cut(self._query, whole)]
        if self._uncounted > 0:
            notes.append(
                f"{self._uncounted:,} of the {self._rollups.nexpired:,} expired events were never counted in "
                "rollup_hourly, so figures of some days are too low."
            )
        return whole, recent, hours, notes

    @cached_property
    def _uncounted(self) -> int:
        from pyspark.sql import functions as f

        rows = self._rollups.table(ROLLUP.name, None, self._before)
        row = rows.agg(f.sum("nevents").alias("events")).toArrow().to_pylist()[0]
        return self._rollups.nexpired - (row["events"] or 0)

    def _hours(self, whole: ReportQuery) -> DataFrame:
        rows = self._rollups.table(ROLLUP.name, whole.since, min(self._before, whole.until))
        return of_queues(rows, self._query)

    def _chosen(self, table: str) -> DataFrame:
        return of_queues(self._rollups.table(table, None, self._upto), self._query)

    def _within(self, rows: DataFrame, column: str) -> DataFrame:
        from pyspark.sql import functions as f

        at = f.col(column)
        return rows.where((at >= f.lit(self._query.since)) & (at < f.lit(self._upto)))

    def _comes_from(self, table: str) -> str:
        gone, upto = iso(self._before), iso(self._upto)
        return f"Events before {gone} have expired; figures before {upto} come from {table}."

    def _left_out(self, why: str) -> str:
        what = (
            "the range has no figures"
            if self._query.until <= self._before
            else "the figures begin at that time"
        )
        return f"Events before {iso(self._before)} have expired, and {why}; {what}."


def _cut(query: ReportQuery, whole: ReportQuery) -> str:
    """Return a sentence about the incomplete hours that `whole` leaves out, or ''."""
    cuts = []
    if whole.since > query.since:
        cuts.append(f"begin at {iso(whole.since)}, not at {iso(query.since)}")
    if whole.until < query.until:
        cuts.append(f"end at {iso(whole.until)}, not at {iso(query.until)}")
    return f" Only whole hours are stored, so the figures {' and '.join(cuts)}." if cuts else ""


def of_queues(rows: DataFrame, query: ReportQuery) -> DataFrame:
    """Return the rows of the query's queues. For rows of a partition, `queue` becomes the name of the whole queue."""
    from pyspark.sql import functions as f

    base = f.col("base_queue")
    if query.source:
        rows = rows.where(f.startswith("queue", f.lit(sourced(query.source, ""))))
    if query.queues:
        rows = rows.where(f.col("queue").isin(*query.queues) | base.isin(*query.queues))
    return rows.withColumn("queue", base).drop("base_queue")
