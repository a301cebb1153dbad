"""Compute the tables job_runs and rollup_hourly from events with Spark. They stay when events expire.

A day is computed again when it has more events than at the last time. So late events reach older days, and nothing is
counted twice. Strings are grouped by, never aggregated, so that Spark hashes instead of sorting. The SQL reads the
temporary view `lake_events`, which has the columns of the view `events`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from jobq.events import KINDS
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake.commit import IngestState, commit_files, state_of
from jobq.pipeline.lake.files import (
    COMPACTED,
    INGESTED,
    DataFile,
    DataFileWriter,
    files_by_day,
    live_files,
)
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.reading import read
from jobq.pipeline.lake.store import LakeStore
from jobq.pipeline.lake.tables import EVENTS, JOB_RUNS, ROLLUP, ROLLUP_COLUMNS, TABLES, LakeTable
from jobq.pipeline.lake.upkeep import removal
from jobq.pipeline.sessions import words_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


#: Size of the KLL sketches: the error of a quantile is below a tenth of a percent of rank.
K = 2000
_KINDS = ",\n  ".join(
    f"count_if(kind = '{c.name}') AS {c.name}" for c in ROLLUP_COLUMNS if c.name in KINDS
)


def _total(column: str) -> str:
    """Return SQL for a sum: 0 without rows, and the largest BIGINT on overflow, as hostile records can cause."""
    return f"coalesce(try_sum({column}), CASE WHEN count({column}) = 0 THEN 0L ELSE 9223372036854775807L END)"


HOURLY = f"""
SELECT date_trunc('HOUR', finished_at) AS hour, queue, job,
  count(*) AS nevents,
  {_KINDS},
  count(run_us) AS runs,
  {_total("run_us")} AS run_us,
  {_total("cpu_us")} AS cpu_us,
  coalesce(sum(CAST(bytes AS BIGINT)), 0L) AS bytes,
  max(rss_kib) AS rss_kib,
  CASE WHEN count(run_us) > 0 THEN kll_sketch_agg_bigint(run_us, {K}) END AS run_us_sketch,
  CASE WHEN count(wait_ms) > 0 THEN kll_sketch_agg_bigint(wait_ms, {K}) END AS wait_ms_sketch,
  dt
FROM lake_events
GROUP BY dt, date_trunc('HOUR', finished_at), queue, job
"""  # noqa: S608  # nosec B608

#: For an event without an enqueue time: how many earlier days may have its message's other events.
LOOK_BACK_DAYS = 7

#: Events with the time at which their message was enqueued: their own, else the newest earlier one of the message's
#: other events. Partitioned by mid first: a sort compares first bytes, and those of queue names are mostly equal.
LIVES = """
SELECT * EXCEPT (lives), to_date(coalesce(life_at, finished_at)) AS enqueued_day FROM (
  SELECT *, coalesce(enqueued_at, array_max(filter(lives, at -> at <= finished_at))) AS life_at FROM (
    SELECT *, collect_set(enqueued_at) OVER (PARTITION BY mid, queue) AS lives
    FROM lake_events WHERE mid IS NOT NULL
  )
)
"""

# The newest event's kind is packed as a number behind its position in the stream: text would force a sort.
# Kinds of a later jobq count in nevents alone. Without a known kind `newest` is null, and so is the outcome.
_CODES = " ".join(f"WHEN '{kind}' THEN {number}L" for number, kind in enumerate(KINDS))
_NAMES = ", ".join(f"'{kind}'" for kind in KINDS)
_NEWEST = (
    "max(unix_millis(entry_at) * 1048576L + least(CAST(entry_seq AS BIGINT), 65535L) * 16L"
    f" + CASE kind {_CODES} END)"
)

JOB_RUNS_SQL = f"""
WITH runs AS (
  SELECT enqueued_day, queue, mid, life_at,
    max(xxhash64(job)) FILTER (WHERE job IS NOT NULL) AS job_hash,
    min(finished_at) AS first_event, max(finished_at) AS last_at, min(started_at) AS started_at,
    {_NEWEST} AS newest,
    count_if(kind IN ('done', 'retry', 'dead', 'crashed', 'recovered')) AS attempts,
    count_if(kind = 'retry') AS retries, count_if(kind IN ('crashed', 'recovered')) AS ncrashes,
    count_if(kind = 'done') AS done, {_total("run_us")} AS run_us, {_total("cpu_us")} AS cpu_us,
    max(rss_kib) AS rss_kib,
    count(*) AS nevents
  FROM lake_lives GROUP BY enqueued_day, queue, mid, life_at
),
jobs AS (SELECT DISTINCT job, xxhash64(job) AS job_hash FROM lake_events WHERE job IS NOT NULL)
SELECT queue, mid, jobs.job, life_at AS enqueued_at, coalesce(life_at, first_event) AS first_at, started_at, last_at,
  CASE WHEN newest IS NOT NULL THEN element_at(array({_NAMES}), CAST(newest % 16L AS INT) + 1) END AS outcome,
  attempts, retries, ncrashes, done,
  CASE WHEN started_at IS NOT NULL AND life_at IS NOT NULL
    THEN greatest(0L, unix_millis(started_at) - unix_millis(life_at)) END AS wait_ms,
  run_us, cpu_us, rss_kib, nevents, enqueued_day AS dt
FROM runs LEFT JOIN jobs ON runs.job_hash = jobs.job_hash
"""  # noqa: S608  # nosec B608

#: The schema of what a writing partition returns: the fields of DataFile.
_WRITTEN = (
    "path STRING, size BIGINT, rows BIGINT, dt STRING, low BIGINT, high BIGINT, day_of STRING"
)


def stale(lake: Lake, table: LakeTable = ROLLUP) -> dict[str, int]:
    """Return the days with more events than the table was computed from, and their number of events.

    An expired day that got late events has fewer: its rows stay as they are.
    """
    made = _made_of(lake, table)
    return {day: rows for day, rows in _counts(lake).items() if made.get(day, 0) < rows}


def _made_of(lake: Lake, table: LakeTable) -> dict[str, int]:
    found: dict[str, int] = state_of(lake.table(table.name), table.app).facts.get("days", {})
    return found


def _counts(lake: Lake) -> dict[str, int]:
    days = files_by_day(live_files(lake.table(EVENTS.name)))
    return {day: sum(file.rows for file in files) for day, files in days.items()}


def refresh(lake: Lake, spark: SparkSession) -> dict[str, int]:
    """Bring both tables up to date; return the rows written by table."""
    return {ROLLUP.name: _hourly(lake, spark), JOB_RUNS.name: _runs(lake, spark)}


def refreshed_at(lake: Lake) -> float:
    """Return the time of the last refresh, epoch seconds; 0 before the first."""
    return float(state_of(lake.table(ROLLUP.name), ROLLUP.app).facts.get("at", 0.0))


def _hourly(lake: Lake, spark: SparkSession) -> int:
    days = stale(lake, ROLLUP)
    if not days:
        return 0
    _view(lake, spark, min(days), max(days)).where(_in("dt", days)).createOrReplaceTempView(
        "lake_events"
    )
    rows = spark.sql(HOURLY).coalesce(1).sortWithinPartitions("dt", *ROLLUP.sort)
    return _replace(lake, ROLLUP, rows, days, days)


def _runs(lake: Lake, spark: SparkSession) -> int:
    days = stale(lake, JOB_RUNS)
    if not days:
        return 0
    _lives(lake, spark, min(days))
    touched = spark.table("lake_lives").where(_in("dt", days)).select("enqueued_day").distinct()
    enqueued_day = sorted(row["enqueued_day"].isoformat() for row in touched.collect())
    if not enqueued_day:
        return _replace(lake, JOB_RUNS, None, [], days)
    _lives(lake, spark, min(enqueued_day[0], min(days)))
    spark.table("lake_lives").where(_in("enqueued_day", enqueued_day)).createOrReplaceTempView(
        "lake_lives"
    )
    rows = _with_older(lake, spark, spark.sql(JOB_RUNS_SQL), enqueued_day)
    rows = rows.repartition("dt").sortWithinPartitions("dt", *JOB_RUNS.sort)
    return _replace(lake, JOB_RUNS, rows, enqueued_day, days)


def _lives(lake: Lake, spark: SparkSession, since: str) -> None:
    start = date.fromisoformat(since) - timedelta(days=LOOK_BACK_DAYS)
    _view(lake, spark, start.isoformat()).createOrReplaceTempView("lake_events")
    spark.sql(LIVES).createOrReplaceTempView("lake_lives")


def _with_older(
    lake: Lake, spark: SparkSession, rows: DataFrame, enqueued_day: list[str]
) -> DataFrame:
    """Add the rows of messages of days whose events have expired."""
    days, made = _counts(lake), _made_of(lake, JOB_RUNS)
    oldest = min(days, default="")
    gone = [day for day in enqueued_day if day < oldest or days.get(day, 0) < made.get(day, 0)]
    if not gone:
        return rows
    from pyspark.sql import functions as f

    old = read(spark, lake, JOB_RUNS.name).where(_in("dt", gone)).alias("old")
    new = rows.select("queue", "mid", "enqueued_at").alias("new")
    same = [f.col(f"old.{name}").eqNullSafe(f.col(f"new.{name}")) for name in new.columns]
    return rows.unionByName(old.join(new, same, "left_anti"))


def _view(lake: Lake, spark: SparkSession, first: str, last: str | None = None) -> DataFrame:
    end = None if last is None else date.fromisoformat(last)
    until = None if end in (None, date.max) else end + timedelta(days=1)
    return read(spark, lake, EVENTS.name, since=date.fromisoformat(first), until=until)


def _in(column: str, days: Iterable[str]) -> str:
    listed = ", ".join(f"DATE'{day}'" for day in sorted(days))
    return f"{column} IN ({listed})"


def _replace(
    lake: Lake, table: LakeTable, rows: DataFrame | None, days: Iterable[str], made: dict[str, int]
) -> int:
    """Replace the rows of these days in one commit, with the number of events they were computed from."""
    store = lake.below(table.name)
    delta = lake.made(table.name)
    state = state_of(delta, table.app)
    written: list[DataFile] = []
    if rows is not None:
        answers = rows.mapInArrow(partial(_write_rows, store, table.name), _WRITTEN).collect()
        written = [DataFile(*answer) for answer in answers]
    old = [one for one in live_files(delta) if one.dt in set(days)]
    known = {**state.facts.get("days", {}), **made}
    total = sum(one.rows for one in written)
    after = IngestState(batch=state.batch + 1, rows=total, facts={"days": known, "at": time.time()})
    actions: list[Any] = [*removal(old), *(one.action() for one in written)]
    commit_files(lake, table.name, delta, actions, after)
    return total


def _write_rows(
    store: LakeStore, name: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write one partition's rows and return its files."""
    import pyarrow as pa

    table = TABLES[name]
    with DataFileWriter(store, table, INGESTED._replace(prefix=COMPACTED.prefix)) as writer:
        for batch in batches:
            rows = pa.Table.from_batches([batch]).select(table.schema().names)
            writer.add(rows.cast(table.schema()))
        columns = list(zip(*writer.finish()))
    if columns:
        yield pa.RecordBatch.from_arrays([pa.array(c) for c in columns], list(DataFile._fields))


class RollupTimer:
    """Refresh the rollups during an ingest, at most every `every_s` seconds (0: never), if there are new events.

    A refresh that fails is reported and tried again later. Events don't depend on it.
    """

    def __init__(self, lake: Lake, every_s: float, told: Callable[[str], None]) -> None:
        self._lake, self._every_s, self._told = lake, every_s, told
        self._next = 0.0

    def refresh(self, engine: Engine, enough: Callable[[], bool]) -> None:
        """Refresh if it is time. After a failure, close the engine's session: its JVM may have died."""
        if not self._every_s or enough() or time.time() < self._next:
            return

        self._next = refreshed_at(self._lake) + self._every_s
        if time.time() < self._next or not stale(self._lake):
            return
        self._next = time.time() + self._every_s
        try:
            refresh(self._lake, engine.spark())
        except Exception as error:  # Spark, its JVM and storage raise many classes
            engine.close()
            self._told(
                f"job_runs and rollup_hourly stay as they were, next try in {self._every_s:g} s: {words_of(error)}"
            )
