"""job_runs and rollup_hourly: what most questions need, made of events by Spark and kept when those expire.

A day is made anew when it has more events than it had then: late events reach older days that way, and
nothing is counted twice. Strings are grouped by, never aggregated, so that Spark hashes instead of sorting.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from jobq.pipeline.lake.commit import State, commit, state_of
from jobq.pipeline.lake.files import Writer, Written
from jobq.pipeline.lake.live import by_day, live
from jobq.pipeline.lake.maintain import COMPACT, removal
from jobq.pipeline.lake.place import Lake
from jobq.pipeline.lake.reading import read
from jobq.pipeline.lake.rollup_sql import HOURLY, JOB_RUNS_SQL, LIVES, LOOK_BACK_DAYS
from jobq.pipeline.lake.store import Store
from jobq.pipeline.lake.tables import EVENTS, JOB_RUNS, ROLLUP, TABLES, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: What a writing task says of its files: the fields of Written.
_WRITTEN = (
    "path STRING, size BIGINT, rows BIGINT, dt STRING, low BIGINT, high BIGINT, day_of STRING"
)


def stale(lake: Lake, table: Table = ROLLUP) -> dict[str, int]:
    """The days whose events are more than those the table was made of, with how many there are.

    Fewer are left of a day that has expired and got late events since: its rows stay as they are.
    """
    made = _made_of(lake, table)
    return {day: rows for day, rows in _counts(lake).items() if made.get(day, 0) < rows}


def _made_of(lake: Lake, table: Table) -> dict[str, int]:
    found: dict[str, int] = state_of(lake.table(table.name), table.app).facts.get("days", {})
    return found


def _counts(lake: Lake) -> dict[str, int]:
    days = by_day(live(lake.table(EVENTS.name)))
    return {day: sum(file.rows for file in files) for day, files in days.items()}


def refresh(lake: Lake, spark: SparkSession) -> dict[str, int]:
    """Bring both tables up to date; rows written by table."""
    return {ROLLUP.name: _hourly(lake, spark), JOB_RUNS.name: _runs(lake, spark)}


def refreshed_at(lake: Lake) -> float:
    """When that was last done, epoch seconds; 0 before the first time."""
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
    touched = spark.table("lake_lives").where(_in("dt", days)).select("born").distinct()
    born = sorted(row["born"].isoformat() for row in touched.collect())
    if not born:
        return _replace(lake, JOB_RUNS, None, [], days)
    _lives(lake, spark, min(born[0], min(days)))
    spark.table("lake_lives").where(_in("born", born)).createOrReplaceTempView("lake_lives")
    rows = _with_older(lake, spark, spark.sql(JOB_RUNS_SQL), born)
    rows = rows.repartition("dt").sortWithinPartitions("dt", *JOB_RUNS.sort)
    return _replace(lake, JOB_RUNS, rows, born, days)


def _lives(lake: Lake, spark: SparkSession, since: str) -> None:
    start = date.fromisoformat(since) - timedelta(days=LOOK_BACK_DAYS)
    _view(lake, spark, start.isoformat()).createOrReplaceTempView("lake_events")
    spark.sql(LIVES).createOrReplaceTempView("lake_lives")


def _with_older(lake: Lake, spark: SparkSession, rows: DataFrame, born: list[str]) -> DataFrame:
    """With what is known of messages of days whose events have expired."""
    days, made = _counts(lake), _made_of(lake, JOB_RUNS)
    oldest = min(days, default="")
    gone = [day for day in born if day < oldest or days.get(day, 0) < made.get(day, 0)]
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
    lake: Lake, table: Table, rows: DataFrame | None, days: Iterable[str], made: dict[str, int]
) -> int:
    """One commit: the rows instead of what these days had; and of how many events that is."""
    store = lake.below(table.name)
    delta = lake.made(table.name)
    state = state_of(delta, table.app)
    written: list[Written] = []
    if rows is not None:
        answers = rows.mapInArrow(partial(_write, store, table.name), _WRITTEN).collect()
        written = [Written(*answer) for answer in answers]
    old = [one for one in live(delta) if one.dt in set(days)]
    known = {**state.facts.get("days", {}), **made}
    total = sum(one.rows for one in written)
    after = State(batch=state.batch + 1, rows=total, facts={"days": known, "at": time.time()})
    actions: list[Any] = [*removal(old), *(one.action() for one in written)]
    commit(lake, table.name, delta, actions, after)
    return total


def _write(store: Store, name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task: writes its rows, answers with its files."""
    import pyarrow as pa

    table = TABLES[name]
    writer = Writer(store, table, prefix=COMPACT)
    for batch in batches:
        rows = pa.Table.from_batches([batch]).select(table.schema().names)
        writer.add(rows.cast(table.schema()))
    columns = list(zip(*writer.finish()))
    if columns:
        yield pa.RecordBatch.from_arrays([pa.array(c) for c in columns], list(Written._fields))
