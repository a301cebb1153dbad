"""Compute the tables job_runs and rollup_hourly from events with Spark. The tables keep their rows when events expire.

A refresh reads the event files added since the last refresh, and adds their events to both tables. So its cost depends
on the number of new events, not on the size of the lake.

For job_runs, a message's events are divided into segments, in stream order. A segment ends with the message's final
event, such as `done`, or before a pause of more than LOOK_BACK_DAYS. Events with the same enqueue time are one life of
the message. An event without an enqueue time belongs to the segment's latest life that began before the event. The
events of unfinished segments are kept in the folder `_open` of job_runs, and the next refresh recomputes their rows.
All other rows are complete. If a late event, such as a second `done`, belongs to an older life, a refresh adds the
event to the existing row.

If the version of the last refresh is unknown, or if the log or a file is gone, the table is computed from all events.
Statements group by strings but never aggregate strings, so that Spark hashes instead of sorting.
"""

from __future__ import annotations

import math
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from jobq.events import KINDS
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake.commit import (
    BatchRecord,
    OffsetsUntoldError,
    commit_files,
    record_of,
    taken_back,
)
from jobq.pipeline.lake.files import (
    COMPACTED,
    INGESTED,
    DataFile,
    DataFileWriter,
    LiveFile,
    added_files,
    files_by_day,
    live_files,
)
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.reading import of_files
from jobq.pipeline.lake.store import LakeStore, lake_errors, remove_files
from jobq.pipeline.lake.tables import EVENTS, JOB_RUNS, ROLLUP, ROLLUP_COLUMNS, TABLES, LakeTable
from jobq.pipeline.lake.upkeep import removal
from jobq.pipeline.schema import EVENT_COLUMNS, Columns, arrow_schema, ddl
from jobq.pipeline.sessions import words_of

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession


#: Size of the KLL sketches: the error of a quantile is below a tenth of a percent of rank.
K = 2000
#: Rows of events for one task of a shuffle. Four tasks for 50 million rows ran a JVM with 1 GB of heap out of memory;
#: 48 tasks did not.
ROWS_PER_TASK = 1_000_000
SHUFFLE_TASKS = "spark.sql.shuffle.partitions"
_COUNTS = [c.name for c in ROLLUP_COLUMNS if c.name in KINDS]
_KINDS = ",\n  ".join(f"count_if(kind = '{name}') AS {name}" for name in _COUNTS)


def _total(column: str) -> str:
    """Return SQL that sums a column. An empty sum is 0, and an overflow is replaced by the largest BIGINT."""
    return f"coalesce(try_sum({column}), CASE WHEN count({column}) = 0 THEN 0L ELSE 9223372036854775807L END)"


#: Kinds of failed attempts.
_FAILED = "'retry', 'dead', 'crashed', 'recovered'"

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
  {_total("CASE WHEN kind = 'done' THEN run_us END")} AS done_us,
  {_total(f"CASE WHEN kind IN ({_FAILED}) THEN run_us END")} AS failed_us,
  dt
FROM {{events}}
GROUP BY dt, date_trunc('HOUR', finished_at), queue, job
"""  # noqa: S608  # nosec B608

_SUMS = ",\n  ".join(
    f"{_total(name)} AS {name}"
    for name in ("nevents", *_COUNTS, "runs", "run_us", "cpu_us", "bytes", "done_us", "failed_us")
)
#: Merges the rows of rollup_hourly for the same hour, queue and job.
HOURLY_MERGED = f"""
SELECT hour, queue, job, {_SUMS}, max(rss_kib) AS rss_kib,
  CASE WHEN count(run_us_sketch) > 0 THEN kll_merge_agg_bigint(run_us_sketch, {K}) END AS run_us_sketch,
  CASE WHEN count(wait_ms_sketch) > 0 THEN kll_merge_agg_bigint(wait_ms_sketch, {K}) END AS wait_ms_sketch,
  dt
FROM {{hours}}
GROUP BY dt, hour, queue, job
"""  # noqa: S608  # nosec B608

#: A longer pause of a message separates its segments. Open events are kept twice as long, because a queue may be
#: read that much later than the others.
LOOK_BACK_DAYS = 7
#: Kinds of a message's last event.
ENDS = ("done", "dead", "cancelled", "expired", "evicted")
_ENDS = ", ".join(f"'{kind}'" for kind in ENDS)

#: Events with their message's life, and whether that life may get more events. Partitioned by mid first, because a sort
#: compares the first bytes, which queue names mostly share.
LIVES = f"""
SELECT * EXCEPT (lives, begins, ended, last_entry, last_segment),
  coalesce(enqueued_at, array_max(filter(lives, at -> at <= finished_at))) AS life_at,
  NOT ended AND segment = last_segment
    AND last_entry >= (SELECT least(max(entry_at), now()) FROM {{events}}) - INTERVAL {2 * LOOK_BACK_DAYS} DAYS
    AS is_open
FROM (
  SELECT *, collect_set(enqueued_at) OVER one AS lives, bool_or(kind IN ({_ENDS})) OVER one AS ended,
    max(entry_at) OVER one AS last_entry, max(segment) OVER (PARTITION BY mid, queue) AS last_segment
  FROM (
    SELECT *, sum(begins) OVER ordered AS segment
    FROM (
      SELECT *, CASE WHEN lag(kind) OVER ordered IN ({_ENDS})
        OR entry_at > lag(entry_at) OVER ordered + INTERVAL {LOOK_BACK_DAYS} DAYS THEN 1 ELSE 0 END AS begins
      FROM {{events}} WHERE mid IS NOT NULL
      WINDOW ordered AS (PARTITION BY mid, queue ORDER BY entry_at, entry_seq, finished_at, kind)
    )
    WINDOW ordered AS (PARTITION BY mid, queue ORDER BY entry_at, entry_seq, finished_at, kind)
  )
  WINDOW one AS (PARTITION BY mid, queue, segment)
)
"""  # noqa: S608  # nosec B608

# The latest event's kind is packed as a number after its position in the stream, because text would force a sort.
# Kinds of a later jobq count only in nevents. Without a known kind `newest` is null, and so is the outcome.
_CODES = " ".join(f"WHEN '{kind}' THEN {number}L" for number, kind in enumerate(KINDS))
_NAMES = ", ".join(f"'{kind}'" for kind in KINDS)
_NEWEST = (
    "max(unix_millis(entry_at) * 1048576L + least(CAST(entry_seq AS BIGINT), 65535L) * 16L"
    f" + CASE kind {_CODES} END)"
)
#: Condition for a message's first attempt. It isn't the first run if the message ran before and was snoozed.
FIRST_RUN = "kind IN ('done', 'retry', 'dead', 'crashed', 'snoozed') AND attempt = 1"
_WAITED = """CASE WHEN started_at IS NOT NULL AND enqueued_at IS NOT NULL
    THEN greatest(0L, unix_millis(started_at) - unix_millis(enqueued_at)) END AS wait_ms"""

#: Computes a row per life; its open and its other segments have separate rows. Without a life, each segment has a row.
JOB_RUNS_SQL = f"""
WITH runs AS (
  SELECT queue, mid, life_at AS enqueued_at, is_open, CASE WHEN life_at IS NULL THEN segment END AS apart,
    max(xxhash64(job)) FILTER (WHERE job IS NOT NULL) AS job_hash,
    min(finished_at) AS first_event, max(finished_at) AS last_at, min(started_at) AS started_at,
    {_NEWEST} AS newest,
    count_if(kind IN ('done', 'retry', 'dead', 'crashed', 'recovered')) AS attempts,
    count_if(kind = 'retry') AS retries, count_if(kind IN ('crashed', 'recovered')) AS ncrashes,
    count_if(kind = 'done') AS done, {_total("run_us")} AS run_us, {_total("cpu_us")} AS cpu_us,
    max(rss_kib) AS rss_kib, count(*) AS nevents, count_if(kind = 'snoozed') AS snoozes,
    min(finished_at) FILTER (WHERE {FIRST_RUN} AND started_at IS NOT NULL) AS first_ended_at
  FROM {{lives}} GROUP BY queue, mid, life_at, is_open, apart
),
jobs AS (SELECT DISTINCT job, xxhash64(job) AS job_hash FROM {{events}} WHERE job IS NOT NULL)
SELECT queue, mid, jobs.job, enqueued_at, coalesce(enqueued_at, first_event) AS first_at, started_at, last_at,
  CASE WHEN newest IS NOT NULL THEN element_at(array({_NAMES}), CAST(newest % 16L AS INT) + 1) END AS outcome,
  attempts, retries, ncrashes, done, {_WAITED},
  run_us, cpu_us, rss_kib, nevents, snoozes, first_ended_at, is_open, to_date(coalesce(enqueued_at, first_event)) AS dt
FROM runs LEFT JOIN jobs ON runs.job_hash = jobs.job_hash
"""  # noqa: S608  # nosec B608

_ADDED = ", ".join(
    f"{_total(name)} AS {name}"
    for name in (
        "attempts",
        "retries",
        "ncrashes",
        "done",
        "run_us",
        "cpu_us",
        "nevents",
        "snoozes",
    )
)
#: Merges the rows of job_runs for the same life. `newer` is the order of their sources.
RUNS_MERGED = f"""
SELECT *, {_WAITED} FROM (
  SELECT queue, mid, max_by(job, xxhash64(job)) FILTER (WHERE job IS NOT NULL) AS job, enqueued_at, first_at,
    min(started_at) AS started_at, max(last_at) AS last_at,
    max_by(outcome, newer) FILTER (WHERE outcome IS NOT NULL) AS outcome,
    {_ADDED}, max(rss_kib) AS rss_kib,
    min(first_ended_at) AS first_ended_at, dt
  FROM {{runs}} GROUP BY queue, mid, enqueued_at, first_at, dt
)
"""  # noqa: S608  # nosec B608

#: Columns kept from the events of open segments.
OPEN_COLUMNS: Columns = tuple(
    c for c in EVENT_COLUMNS if c.name in (
        "queue", "mid", "kind", "job", "attempt", "enqueued_at", "started_at", "finished_at", "run_us", "cpu_us",
        "rss_kib", "entry_at", "entry_seq",
    )
)  # fmt: skip
#: Folder below job_runs with state for the next refresh.
OPEN_FOLDER = "_open"
_OPEN = "compact-open"
_LIFE = ["queue", "mid", "enqueued_at"]
#: If a day has more files smaller than SMALL_BYTES than this, the next refresh joins them.
MAX_FILES, SMALL_BYTES = 32, 16 * 1024 * 1024
#: Maximum number of minutes to compare with the ranges of files. With more, all files are searched.
_MAX_MINUTES = 50_000

#: Schema of a writing partition's result: the fields of DataFile.
_WRITTEN = (
    "path STRING, size BIGINT, rows BIGINT, dt STRING, low BIGINT, high BIGINT, day_of STRING"
)


class Unread(NamedTuple):
    """Event files added since a table's last refresh.

    Attributes:
        whole: True if the table's state is unknown. In that case, `files` contains all event files.
        version: The latest version of `events`.
    """

    version: int
    files: list[LiveFile]
    whole: bool


def stale(lake: Lake, table: LakeTable = ROLLUP) -> dict[str, int]:
    """Return the number of events that the table doesn't count yet, by day."""
    days: dict[str, int] = {}
    for file in _unread(lake, table, _known(lake.table(table.name), table)).files:
        days[file.dt] = days.get(file.dt, 0) + file.rows
    return days


def uncounted(lake: Lake, before: str) -> dict[str, int]:
    """For each day before `before`, return the number of events that rollup_hourly or job_runs hasn't counted.

    If the numbers of the two tables differ, the larger number is returned.
    """
    stale_days = [*stale(lake).items(), *stale(lake, JOB_RUNS).items()]
    return {day: rows for day, rows in sorted(stale_days) if day < before}


def refresh(lake: Lake, spark: SparkSession) -> dict[str, int]:
    """Update rollup_hourly and job_runs. Return the number of rows written to each table."""
    return {ROLLUP.name: _hourly(lake, spark), JOB_RUNS.name: _runs(lake, spark)}


@contextmanager
def shuffled(spark: SparkSession, files: Iterable[LiveFile]) -> Iterator[int | None]:
    """Set the number of shuffle tasks that these files need, and yield it. Yield None if Spark chooses the number.

    A task with more rows than ROWS_PER_TASK can run the JVM out of memory. The number never falls below the session's
    setting, because Spark merges small tasks.
    """
    before = spark.conf.get(SHUFFLE_TASKS)
    if before is None or not before.isdecimal():
        yield None
        return
    number = max(int(before), math.ceil(sum(file.rows for file in files) / ROWS_PER_TASK))
    spark.conf.set(SHUFFLE_TASKS, number)
    try:
        yield number
    finally:
        spark.conf.set(SHUFFLE_TASKS, before)


def refreshed_at(lake: Lake) -> float:
    """Return the time of the last refresh, epoch seconds; 0 before the first."""
    return float(_known(lake.table(ROLLUP.name), ROLLUP).facts.get("at", 0.0))


def _known(delta: DeltaTable | None, table: LakeTable) -> BatchRecord:
    """Return the table's state after the last refresh. If the log no longer has the state, only `batch` is known."""
    try:
        return record_of(delta, table.app)
    except OffsetsUntoldError:
        assert delta is not None
        return BatchRecord(batch=delta.transaction_version(table.app) or 0)


def _unread(lake: Lake, table: LakeTable, known: BatchRecord) -> Unread:
    delta = lake.table(EVENTS.name)
    if delta is None:
        return Unread(0, [], False)
    store, since = lake.below(EVENTS.name), known.facts.get("version")
    live = live_files(delta)
    if isinstance(since, int):
        with lake_errors(store):
            added = added_files(delta, store, since)
            if added is not None and _are_there(store, added, live):
                return Unread(delta.version(), added, False)
    return Unread(delta.version(), live, True)


def _are_there(store: LakeStore, files: Iterable[LiveFile], live: Iterable[LiveFile]) -> bool:
    """Return whether all files still exist, including replaced and expired files."""
    from pyarrow.fs import FileType

    known = {file.path for file in live}
    replaced = [file.path for file in files if file.path not in known]
    if not replaced:
        return True
    return all(info.type == FileType.File for info in store.files().get_file_info(replaced))


def _hourly(lake: Lake, spark: SparkSession) -> int:
    known = _known(lake.table(ROLLUP.name), ROLLUP)
    new = _unread(lake, ROLLUP, known)
    if not new.files:
        return 0
    delta, days = lake.made(ROLLUP.name), {file.dt for file in new.files}
    if new.whole:
        # Days whose events have expired stay as they are.
        first = _first_day(lake, new)
        days = {day for day in days if day >= first}
    old = [file for file in live_files(delta) if file.dt in days]
    events = of_files(spark, lake, EVENTS, [file for file in new.files if file.dt in days])
    rows = spark.sql(HOURLY, events=events)
    if old and not new.whole:
        there = of_files(spark, lake, ROLLUP, old).drop("file")
        rows = spark.sql(HOURLY_MERGED, hours=rows.unionByName(there))
    rows = rows.coalesce(1).sortWithinPartitions("dt", *ROLLUP.sort)
    with shuffled(spark, new.files):
        written = _files_of(rows, lake.below(ROLLUP.name), ROLLUP, COMPACTED.prefix)
    _replace(lake, ROLLUP, delta, old, written, known, version=new.version)
    return sum(file.rows for file in written)


def _first_day(lake: Lake, new: Unread) -> str:
    """Return the first day whose events haven't expired."""
    try:
        before = record_of(lake.table(EVENTS.name), EVENTS.app).before
    except OffsetsUntoldError:
        before = ""
    return before or min(file.dt for file in new.files)


def _runs(lake: Lake, spark: SparkSession) -> int:
    known = _known(lake.table(JOB_RUNS.name), JOB_RUNS)
    new = _unread(lake, JOB_RUNS, known)
    if not new.files:
        return 0
    delta = lake.made(JOB_RUNS.name)
    work = _RunsRefresh(lake, spark, delta, known)
    if not new.whole and not work.can_continue():
        new = _unread(lake, JOB_RUNS, BatchRecord())
    with shuffled(spark, new.files):
        return work.roll_up(new)


class _RunsRefresh:
    def __init__(
        self, lake: Lake, spark: SparkSession, delta: DeltaTable, known: BatchRecord
    ) -> None:
        self._lake, self._spark, self._delta, self._known = lake, spark, delta, known
        self._store = lake.below(JOB_RUNS.name)
        files = live_files(delta)
        self._open = [file for file in files if _is_open(file)]
        self._closed = [file for file in files if not _is_open(file)]

    def can_continue(self) -> bool:
        """Return whether the files that the last refresh recorded still exist."""
        facts = self._known.facts
        kept = [*facts.get("events", ()), *facts.get("base", ())]
        files = [LiveFile(path, 0, 0, "") for path in kept]
        with lake_errors(self._store):
            return facts.get("open_rows") == sum(file.rows for file in self._open) and _are_there(
                self._store, files, ()
            )

    def roll_up(self, new: Unread) -> int:
        facts = {} if new.whole else self._known.facts
        events = of_files(self._spark, self._lake, EVENTS, new.files)
        events = events.select(*(c.name for c in OPEN_COLUMNS))
        if facts.get("events"):
            events = events.unionByName(self._kept(facts["events"], OPEN_COLUMNS))
        lives = self._spark.sql(LIVES, events=events).persist()
        rows = self._spark.sql(JOB_RUNS_SQL, events=events, lives=lives).persist()
        try:
            return self._write(new, lives, rows, facts.get("base", ()))
        finally:
            rows.unpersist()
            lives.unpersist()

    def _write(self, new: Unread, lives: DataFrame, rows: DataFrame, base: Sequence[str]) -> int:
        keys = rows.where("enqueued_at IS NOT NULL").select(*_LIFE).distinct()
        closed = rows.where("NOT is_open").drop("is_open")
        opened = rows.where("is_open").drop("is_open")
        older = self._base(base) if base else None
        touched, kept = self._older(new, rows, keys)
        if touched and not new.whole:
            there = of_files(self._spark, self._lake, JOB_RUNS, touched).drop("file")
            same = there.join(keys, _LIFE, "left_semi")
            older = same if older is None else older.unionByName(same)
        if older is not None:
            closed = self._merged(closed, older)
        open_keys = opened.where("enqueued_at IS NOT NULL").select(*_LIFE).distinct()
        held = self._keep(closed.join(open_keys, _LIFE, "left_semi"), JOB_RUNS.columns)
        if held:
            closed = closed.join(open_keys, _LIFE, "left_anti")
            opened = self._merged(opened, self._base(held))
        if kept is not None:
            closed = closed.unionByName(kept)
        written = self._rows_written(closed, COMPACTED.prefix)
        opened_files = self._rows_written(opened, _OPEN)
        kept_events = self._keep(
            lives.where("is_open").select(*(c.name for c in OPEN_COLUMNS)), OPEN_COLUMNS
        )
        _replace(
            self._lake, JOB_RUNS, self._delta, [*self._open, *touched], [*written, *opened_files], self._known,
            version=new.version, events=kept_events, base=held,
            open_rows=sum(opened_file.rows for opened_file in opened_files),
        )  # fmt: skip
        forget_open(self._lake, {*kept_events, *held})  # including files of killed refreshes
        return sum(opened_file.rows for opened_file in (*written, *opened_files))

    def _older(
        self, new: Unread, rows: DataFrame, keys: DataFrame
    ) -> tuple[list[LiveFile], DataFrame | None]:
        """Return the files to replace, and which of their rows to keep."""
        if new.whole:
            # Rows computed from expired events can't be recomputed.
            first, there = _first_day(self._lake, new), [*self._open, *self._closed]
            if not there:
                return [], None
            gone = of_files(self._spark, self._lake, JOB_RUNS, there).drop("file")
            gone = gone.where(f"last_at < TIMESTAMP'{first} 00:00:00Z'")
            return self._closed, gone.join(keys, _LIFE, "left_anti")
        near = self._near(rows)
        touched = _crowded(self._closed)
        if near:
            lives = of_files(self._spark, self._lake, JOB_RUNS, near).select(*_LIFE, "file")
            names = lives.join(keys, _LIFE, "left_semi").select("file").distinct().collect()
            hit = {row["file"] for row in names}
            touched |= {file for file in near if file.path.rpartition("/")[2] in hit}
        if not touched:
            return [], None
        whole = of_files(self._spark, self._lake, JOB_RUNS, sorted(touched)).drop("file")
        return sorted(touched), whole.join(keys, _LIFE, "left_anti")

    def _near(self, rows: DataFrame) -> list[LiveFile]:
        """Return the files that may already have rows for these messages. Files are selected by `first_at`."""
        lives = rows.where("enqueued_at IS NOT NULL")
        minutes = lives.selectExpr(
            "CAST(dt AS STRING) AS dt", "unix_seconds(first_at) div 60 AS minute"
        )
        pairs = minutes.distinct().limit(_MAX_MINUTES).toArrow().to_pylist()
        days: dict[str, list[int]] = {}
        for row in sorted(pairs, key=itemgetter("minute")):
            days.setdefault(row["dt"], []).append(row["minute"])
        if len(pairs) == _MAX_MINUTES:
            return self._closed
        return [
            file
            for file in self._closed
            if _has_between(days.get(file.dt, ()), file.low_us, file.high_us)
        ]

    def _merged(self, rows: DataFrame, older: DataFrame) -> DataFrame:
        """Merge each row with the older row for the same message and enqueue time."""
        both = rows.selectExpr("*", "1 AS newer").unionByName(older.selectExpr("*", "0 AS newer"))
        # Rows without a life are one segment each.
        apart = both.where("enqueued_at IS NULL").drop("newer")
        runs = both.where("enqueued_at IS NOT NULL")
        return self._spark.sql(RUNS_MERGED, runs=runs).select(*apart.columns).unionByName(apart)

    def _rows_written(self, rows: DataFrame, prefix: str) -> list[DataFile]:
        # Executors share a large day; a small day becomes one file.
        spread = rows.hint("rebalance", "dt").sortWithinPartitions("dt", *JOB_RUNS.sort)
        return _files_of(spread, self._store, JOB_RUNS, prefix)

    def _keep(self, rows: DataFrame, columns: Columns) -> list[str]:
        """Write rows into files in OPEN_FOLDER, and return the files' paths."""
        names = rows.select(*(c.name for c in columns)).mapInArrow(
            partial(_keep_rows, self._store, columns), "path STRING"
        )
        return sorted(row["path"] for row in names.collect())

    def _kept(self, paths: Sequence[str], columns: Columns) -> DataFrame:
        units = self._spark.createDataFrame([(path,) for path in paths], "path STRING")
        return units.repartition(len(paths)).mapInArrow(
            partial(_kept_rows, self._store, columns), ddl(columns)
        )

    def _base(self, paths: Sequence[str]) -> DataFrame:
        return self._kept(paths, JOB_RUNS.columns).selectExpr("*", "to_date(first_at) AS dt")


def forget_open(lake: Lake, needed: Set[str] = frozenset()) -> None:
    """Delete all files in OPEN_FOLDER of job_runs, except the files in `needed`."""
    from pyarrow.fs import FileSelector

    store = lake.below(JOB_RUNS.name)
    with lake_errors(store):
        infos = store.files().get_file_info(FileSelector(OPEN_FOLDER, allow_not_found=True))
    remove_files(store, {f"{OPEN_FOLDER}/{info.base_name}" for info in infos} - needed)


def _is_open(file: LiveFile) -> bool:
    return file.path.rpartition("/")[2].startswith(_OPEN)


def _crowded(files: Iterable[LiveFile]) -> set[LiveFile]:
    """Return the small files of each day that has too many small files."""
    days = files_by_day(file for file in files if file.size < SMALL_BYTES)
    return {file for some in days.values() if len(some) > MAX_FILES for file in some}


def _has_between(minutes: Sequence[int], low: int, high: int) -> bool:
    """Return whether any of the sorted minutes is between `low` and `high`, which are epoch µs."""
    index = bisect_left(minutes, low // 60_000_000)
    return index < len(minutes) and minutes[index] <= high // 60_000_000


def _replace(
    lake: Lake, table: LakeTable, delta: DeltaTable, old: Sequence[LiveFile], new: Sequence[DataFile],
    known: BatchRecord, **facts: Any,
) -> None:  # fmt: skip
    """Replace files, and store the state for the next refresh in the same commit."""
    total = sum(file.rows for file in new)
    after = BatchRecord(batch=known.batch + 1, rows=total, facts={"at": time.time(), **facts})
    actions: list[Any] = [*removal(old), *(file.action() for file in new)]
    with taken_back(lake.below(table.name), new):
        commit_files(lake, table.name, delta, actions, after)


def _files_of(rows: DataFrame, store: LakeStore, table: LakeTable, prefix: str) -> list[DataFile]:
    """Write the rows on executors; return the files for the commit."""
    answers = rows.mapInArrow(partial(_write_rows, store, table.name, prefix), _WRITTEN).collect()
    return [DataFile(*answer) for answer in answers]


def _write_rows(
    store: LakeStore, name: str, prefix: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write one partition's rows, and yield its files."""
    import pyarrow as pa

    table = TABLES[name]
    with DataFileWriter(store, table, INGESTED._replace(prefix=prefix)) as writer:
        for batch in batches:
            rows = pa.Table.from_batches([batch]).select(table.schema().names)
            writer.add(rows.cast(table.schema()))
        columns = list(zip(*writer.finish()))
    if columns:
        yield pa.RecordBatch.from_arrays([pa.array(c) for c in columns], list(DataFile._fields))


def _keep_rows(
    store: LakeStore, columns: Columns, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write a partition's rows into one file in OPEN_FOLDER, and yield the file's path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, schema = f"{OPEN_FOLDER}/{uuid.uuid4()}.zstd.parquet", arrow_schema(columns)
    writer = None
    with lake_errors(store), ExitStack() as stack:
        for batch in batches:
            if not batch.num_rows:
                continue
            if writer is None:
                files = store.files()
                if store.is_local:
                    files.create_dir(OPEN_FOLDER, recursive=True)
                writer = stack.enter_context(
                    pq.ParquetWriter(path, schema, filesystem=files, compression="zstd")
                )
            writer.write_table(pa.Table.from_batches([batch]).select(schema.names).cast(schema))
    if writer is not None:
        store.settle(path)
        yield pa.RecordBatch.from_arrays([pa.array([path])], ["path"])


def _kept_rows(
    store: LakeStore, columns: Columns, units: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read the files that `_keep_rows` wrote."""
    import pyarrow.parquet as pq

    names = [column.name for column in columns]
    for unit in units:
        for path in map(str, unit.column(0).to_pylist()):
            with lake_errors(store), store.files().open_input_file(path) as source:
                yield from pq.ParquetFile(source).iter_batches(50_000, columns=names)


class RollupTimer:
    """Refreshes the rollups during an ingest, if there are enough new events, at most every `every_s` seconds.

    If `every_s` is 0, it never refreshes. A few events don't justify starting Spark, because the rollups aren't needed
    before events expire, and `jobq lake expire` and `compact` also refresh them. A failed refresh is reported and
    retried later. Storing events doesn't depend on a refresh.
    """

    def __init__(self, lake: Lake, every_s: float, told: Callable[[str], None]) -> None:
        self._lake, self._every_s, self._told = lake, every_s, told
        self._next = 0.0

    def refresh(self, engine: Engine, enough: Callable[[], bool]) -> None:
        """Refresh the rollups if a refresh is due. After a failure, stop Spark, because its JVM may have died."""
        if not self._every_s or enough() or time.time() < self._next:
            return

        self._next = refreshed_at(self._lake) + self._every_s
        if time.time() < self._next or engine.chosen(sum(stale(self._lake).values())) == "local":
            return
        self._next = time.time() + self._every_s
        try:
            refresh(self._lake, engine.spark())
        except Exception as error:  # Spark, its JVM and storage raise many classes
            engine.close()
            self._told(
                f"job_runs and rollup_hourly were not updated, next try in {self._every_s:g} s: {words_of(error)}"
            )
