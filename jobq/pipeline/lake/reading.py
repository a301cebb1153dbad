"""Read a lake's tables as DataFrames, or row by row in order.

Spark's own Parquet reader reads a folder, and `format("jobq_lake")` reads a bucket. A DataFrame is a snapshot of the
files that the table had when the DataFrame was made. Files that a compaction replaced stay readable until vacuum.

`ArchivedRows` yields the rows of one topic or queue in order. Arrow sorts each day in memory. If a day is
too large, Spark sorts all rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from jobq.durations import counted
from jobq.errors import LakeError
from jobq.pipeline.lake.files import (
    LAST_DAY,
    LiveFile,
    files_by_day,
    live_files,
    rows_of_files,
)
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.store import LakeStore, lake_errors
from jobq.pipeline.lake.tables import (
    DEAD,
    EVENTS,
    JOB_RUNS,
    QUARANTINE,
    RESTORED,
    ROLLUP,
    TABLES,
    LakeTable,
    from_lake,
    stored_for,
)
from jobq.pipeline.options import EngineName, Moment, parsed_moment
from jobq.pipeline.schema import BASE_QUEUE, DERIVED, EVENT_COLUMNS, Columns, ddl, is_of, struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TimeSpan(NamedTuple):
    """The time from `since` (included) to `until` (excluded). None means no limit."""

    since: datetime | None = None
    until: datetime | None = None

    @property
    def first_day(self) -> str:
        """First day of the span, YYYY-MM-DD; '' if the span has no start."""
        return self.since.date().isoformat() if self.since else ""

    @property
    def last_day(self) -> str:
        """Last day of the span, YYYY-MM-DD."""
        return (
            (self.until - timedelta(microseconds=1)).date().isoformat() if self.until else LAST_DAY
        )


def time_span(since: Moment = None, until: Moment = None) -> TimeSpan:
    """Make a span from datetimes, days or ISO texts. Times without a time zone are UTC."""
    return TimeSpan(_instant("since", since), _instant("until", until))


def _instant(name: str, value: Moment) -> datetime | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return parsed_moment(name, value)
    if not isinstance(value, datetime):
        return datetime.combine(value, time(), UTC)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def read(
    spark: SparkSession,
    lake: Lake,
    table: str = "events",
    since: Moment = None,
    until: Moment = None,
) -> DataFrame:
    """Return a table's rows as a DataFrame, as `jobq.pipeline.lake.read` describes."""
    delta, span = lake.table(table), time_span(since, until)
    known = TABLES[table]
    files = live_files(delta, span.first_day, span.last_day)
    _check_all_there(lake, known, files)
    if lake.store.is_local:
        rows = _viewed(known, view(known), _parquet(spark, lake, known, files))
    else:
        rows = _from_bucket(spark, lake, table, span)
    return _within(rows, known, span)


def of_files(
    spark: SparkSession, lake: Lake, table: LakeTable, files: Sequence[LiveFile]
) -> DataFrame:
    """Return the rows of these files of a table, with a column `file` for the file's name.

    Events have the columns that `read` returns. Other tables have their stored columns.
    """
    columns = EVENT_COLUMNS if table is EVENTS else table.columns
    store, schema = (
        lake.below(table.name),
        struct(columns).add("dt", "date").add("file", "string"),
    )
    if not files:
        return spark.createDataFrame([], schema)
    _check_all_there(lake, table, files)
    if lake.store.is_local:
        rows = _parquet(spark, lake, table, files)
        named = rows.selectExpr("*", "regexp_extract(_metadata.file_path, '[^/]+$', 0) AS file")
        return _viewed(table, columns, named, "file")
    units = spark.createDataFrame(
        [(*file,) for file in files],
        "path STRING, size BIGINT, rows BIGINT, dt STRING, low_us BIGINT, high_us BIGINT",
    )
    return units.repartition(len(files)).mapInArrow(partial(_rows_of, store, table.name), schema)


def _rows_of(
    store: LakeStore, name: str, units: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read the files of a partition, in an executor."""
    table = TABLES[name]
    for unit in units:
        for row in unit.to_pylist():
            live_file = LiveFile(**row)
            for stored in rows_of_files(store, [live_file], table=table):
                rows = from_lake(stored) if table is EVENTS else stored
                day = pa.scalar(datetime.fromisoformat(live_file.dt).date(), pa.date32())
                rows = rows.append_column("dt", pa.repeat(day, rows.num_rows))
                file = pa.scalar(live_file.path.rpartition("/")[2])
                rows = rows.append_column("file", pa.repeat(file, rows.num_rows))
                yield from rows.to_batches(max_chunksize=50_000)


def stored_rows(
    lake: Lake,
    table: LakeTable,
    columns: Sequence[str] | None = None,
    since: str = "",
    until: str = LAST_DAY,
) -> Iterator[pa.Table]:
    """Yield the stored rows of each file of a table, from the day `since` to `until`, without Spark."""
    files = live_files(lake.table(table.name), since, until)
    return rows_of_files(lake.below(table.name), files, columns, table)


def event_rows(lake: Lake, columns: Sequence[str], span: TimeSpan) -> pa.Table:
    """Return some columns of the view of events as an Arrow table, without Spark."""
    files = live_files(lake.table(EVENTS.name), span.first_day, span.last_day)
    _check_all_there(lake, EVENTS, files)
    rows = _dataset_rows(lake, EVENTS, files, stored_for(columns), _in_span(EVENTS, span))
    return from_lake(rows, columns)


def _dataset_rows(
    lake: Lake, table: LakeTable, files: Sequence[LiveFile], columns: Sequence[str], chosen: Any
) -> pa.Table:
    store, schema, paths = lake.below(table.name), table.schema(), [file.path for file in files]
    if not paths:
        return schema.empty_table().select(list(columns))
    with lake_errors(store):
        rows = ds.dataset(paths, schema, format="parquet", filesystem=store.files())
        return rows.to_table(list(columns), filter=chosen)


def _in_span(table: LakeTable, span: TimeSpan) -> Any:
    at, type_ = pc.field(table.day_of), table.schema().field(table.day_of).type
    chosen = pc.is_valid(at)
    if span.since is not None:
        chosen &= at >= pa.scalar(span.since, type_)
    if span.until is not None:
        chosen &= at < pa.scalar(span.until, type_)
    return chosen


def view(table: LakeTable) -> Columns:
    """Return the columns that `read` returns for a table, without `dt`."""
    if table in (DEAD, QUARANTINE, JOB_RUNS, ROLLUP):
        return (*table.columns, BASE_QUEUE)
    return EVENT_COLUMNS if table is EVENTS else table.columns


def _check_all_there(lake: Lake, table: LakeTable, files: Sequence[LiveFile]) -> None:
    """Raise LakeError if a file is missing, because Spark silently skips missing files in a folder."""
    store = lake.below(table.name)
    with lake_errors(store):
        opened = store.files()
        folders = (
            fs.FileSelector(path, allow_not_found=True)
            for path in {os.path.dirname(file.path) for file in files}
        )
        there = {info.path for folder in folders for info in opened.get_file_info(folder)}
    gone = [file.path for file in files if file.path not in there]
    if gone:
        raise LakeError(
            f"{table.name}: {counted(len(gone), 'file')} missing from the lake, such as {store.uri}/{gone[0]}; "
            "retry if a vacuum has just run, else restore the files: 'jobq lake check' lists them"
        )


def _parquet(
    spark: SparkSession, lake: Lake, table: LakeTable, files: Sequence[LiveFile]
) -> DataFrame:
    store = lake.below(table.name)
    if not files:
        return spark.createDataFrame([], struct(table.columns).add("dt", "date"))
    # Brackets and stars in the folder's name aren't patterns.
    reader = spark.read.schema(f"{ddl(table.columns)}, dt DATE").option("__globPaths__", "false")
    paths = [os.path.join(store.uri, file.path) for file in files]
    return reader.option("basePath", store.uri).parquet(*paths)


def _viewed(table: LakeTable, columns: Columns, rows: DataFrame, *more: str) -> DataFrame:
    if table is EVENTS:
        rows = rows.selectExpr("*", *(f"{text} AS {name}" for name, text in RESTORED.items()))
    texts = (f"`{c.name}`" if c.in_lake else f"{DERIVED[c.name]} AS {c.name}" for c in columns)
    return rows.selectExpr(*texts, "dt", *more)


def _from_bucket(spark: SparkSession, lake: Lake, table: str, span: TimeSpan) -> DataFrame:
    reader = spark.read.format("jobq_lake").option("path", lake.store.uri).option("table", table)
    if lake.store.options:
        reader = reader.option("storageOptions", json.dumps(dict(lake.store.options)))
    for name, value in span._asdict().items():
        if value is not None:
            reader = reader.option(name, value.isoformat())
    return reader.load()


def _within(rows: DataFrame, table: LakeTable, span: TimeSpan) -> DataFrame:
    from pyspark.sql import functions as f

    at = f.col(table.day_of)
    if span.since is not None:
        rows = rows.where(at >= f.lit(span.since))
    if span.until is not None:
        rows = rows.where(at < f.lit(span.until))
    return rows


#: A day with more compressed bytes is sorted by Spark.
BIG_DAY_BYTES = 256 * 1024 * 1024
ROWS_AT_ONCE = 2_000


class ArchiveSummary(NamedTuple):
    """Summary of archived rows.

    Attributes:
        nbytes: Total size of the contents.
        first, last: Keys of the first and last row.
        first_us, last_us: Times of the first and last row, epoch µs.
    """

    rows: int
    nbytes: int
    first: Any = None
    last: Any = None
    first_us: int = 0
    last_us: int = 0


@dataclass(frozen=True)
class ArchivedRows:
    """The rows of `table` where `column` is `name`, within `span`, ordered by day, then by `order`.

    A queue's rows include its partitions' rows. Without Spark, the rows are a snapshot of the table at the first read.
    """

    lake: Lake
    table: str
    column: str
    name: str
    order: tuple[str, ...]
    span: TimeSpan

    @property
    def at(self) -> str:
        """The name of the column with the time."""
        return TABLES[self.table].day_of

    @cached_property
    def days(self) -> list[list[LiveFile]]:
        """The files that may contain the rows, grouped by day."""
        files = live_files(self.lake.table(self.table), self.span.first_day, self.span.last_day)
        return list(files_by_day(files).values())

    def is_big(self, when: EngineName) -> bool:
        """Return whether Spark should read the rows. With `auto`, Spark reads them if a day is too large."""
        return when == "spark" or (
            when == "auto"
            and any(sum(file.size for file in day) > BIG_DAY_BYTES for day in self.days)
        )

    def rows(self, spark: Callable[[], SparkSession] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the rows, with times as epoch µs.

        Args:
            spark: Returns the session that reads the rows. Without a session, this process reads them.
        """
        if spark is not None:
            frame = self._frame(spark()).orderBy("_day", *self.order).drop("_day")
            # Spark fetches the next partition while one is sent; the order is kept.
            yield from (row.asDict() for row in frame.toLocalIterator(prefetchPartitions=True))
            return
        for day in self.days:
            table = self._day(day).sort_by([(name, "ascending") for name in self.order])
            for start in range(0, table.num_rows, ROWS_AT_ONCE):
                yield from table.slice(start, ROWS_AT_ONCE).to_pylist()

    def summary(
        self, spark: Callable[[], SparkSession] | None = None, *, sized: bool = False
    ) -> ArchiveSummary:
        """Summarize the rows.

        Args:
            sized: Also add up the bytes of contents, which requires reading all contents.
        """
        if spark is not None:
            return self._summary(self._frame(spark()), sized)
        done = ArchiveSummary(0, 0)
        columns = (self.order[-1], self.at, self.column, *(("content",) if sized else ()))
        for day in self.days:
            done = _summed(done, self._day(day, columns), self.order[-1], self.at)
        return done

    def _day(self, day: list[LiveFile], columns: tuple[str, ...] | None = None) -> pa.Table:
        table = TABLES[self.table]
        named = pc.field(self.column) == self.name
        if self.column == "queue":
            named |= pc.starts_with(pc.field("queue"), f"{self.name}/")
        names = columns or table.schema().names
        rows = _dataset_rows(self.lake, table, day, names, _in_span(table, self.span) & named)
        return _times_as_us(rows.filter(is_of(self.column, rows[self.column], [self.name])))

    def _frame(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql import functions as f

        rows = read(spark, self.lake, self.table, self.span.since, self.span.until)
        named = f.col(self.column) == self.name
        if self.column == "queue":
            named |= f.col(BASE_QUEUE.name) == self.name
        rows = rows.where(named)
        times = [c.name for c in TABLES[self.table].columns if c.type == "timestamp"]
        for name in times:
            rows = rows.withColumn(name, f.unix_micros(name))
        return rows.withColumnRenamed("dt", "_day")

    def _summary(self, rows: DataFrame, sized: bool) -> ArchiveSummary:
        from pyspark.sql import functions as f

        key = self.order[-1]
        row = rows.agg(
            f.count("*").alias("rows"),
            (f.sum(f.length("content")) if sized else f.lit(0)).alias("nbytes"),
            f.min(key).alias("first"), f.max(key).alias("last"),
            f.min(self.at).alias("first_us"), f.max(self.at).alias("last_us"),
        ).first()  # fmt: skip
        assert row is not None
        return ArchiveSummary(**{name: value or 0 for name, value in row.asDict().items()})


def _summed(done: ArchiveSummary, rows: pa.Table, key: str, at: str) -> ArchiveSummary:
    if not rows.num_rows:
        return done
    keys: Any = pc.min_max(rows[key]).as_py()
    times: Any = pc.min_max(rows[at]).as_py()
    sized = "content" in rows.column_names
    nbytes = (pc.sum(pc.binary_length(rows["content"])).as_py() or 0) if sized else 0
    first, first_us = (done.first, done.first_us) if done.rows else (keys["min"], times["min"])
    return ArchiveSummary(
        done.rows + rows.num_rows, done.nbytes + nbytes, first, keys["max"], first_us, times["max"]
    )


def _times_as_us(rows: pa.Table) -> pa.Table:
    for index, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            rows = rows.set_column(index, field.name, rows.column(index).cast(pa.int64()))
    return rows
