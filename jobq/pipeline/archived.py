"""Rows of a lake's table in order, for one topic or queue: by Arrow a day at a time, or by Spark when days are big."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobq.pipeline.lake.live import by_day, live
from jobq.pipeline.lake.store import told
from jobq.pipeline.lake.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jobq.pipeline.lake.live import Live
    from jobq.pipeline.lake.place import Lake
    from jobq.pipeline.lake.span import Span

When = Literal["auto", "always", "never"]
#: Compressed bytes of a day that one process still sorts in its memory.
BIG = 256 * 1024 * 1024
STEP = 2_000


class Summary(NamedTuple):
    """What there is: rows, the first and last of the order, their times in epoch us; nbytes of content, 0 unasked."""

    rows: int
    nbytes: int
    first: Any = None
    last: Any = None
    first_us: int = 0
    last_us: int = 0


@dataclass(frozen=True)
class Archive:
    """Rows of `table` of which `column` is `name`, within `asked`, ordered by its time's day, then `order`.

    Read by this process, they are those that the table had when it was first asked.
    """

    lake: Lake
    table: str
    column: str
    name: str
    order: tuple[str, ...]
    asked: Span

    @property
    def at(self) -> str:
        """The column that says when."""
        return TABLES[self.table].day_of

    @cached_property
    def days(self) -> list[list[Live]]:
        """The files that may hold some, day by day."""
        files = live(self.lake.table(self.table), self.asked.first_day, self.asked.last_day)
        return list(by_day(files).values())

    def is_big(self, when: When) -> bool:
        """Whether Spark is to read it."""
        return when == "always" or (
            when == "auto" and any(sum(one.size for one in day) > BIG for day in self.days)
        )

    def rows(self, spark: Callable[[], SparkSession] | None = None) -> Iterator[dict[str, Any]]:
        """The rows, times as epoch us. spark: makes the session that reads; None: this process does."""
        if spark is not None:
            frame = self._frame(spark()).orderBy("_day", *self.order).drop("_day")
            # A partition is fetched while the one before is sent, and in order.
            yield from (row.asDict() for row in frame.toLocalIterator(prefetchPartitions=True))
            return
        for day in self.days:
            found = self._day(day).sort_by([(name, "ascending") for name in self.order])
            for start in range(0, found.num_rows, STEP):
                yield from found.slice(start, STEP).to_pylist()

    def summary(
        self, spark: Callable[[], SparkSession] | None = None, *, sized: bool = False
    ) -> Summary:
        """What `rows` will give. sized: with nbytes, for which all content is read."""
        if spark is not None:
            return self._summary(self._frame(spark()), sized)
        done = Summary(0, 0)
        columns = (self.order[-1], self.at, self.column, *(("content",) if sized else ()))
        for day in self.days:
            done = _plus(done, self._day(day, columns), self.order[-1], self.at)
        return done

    def _day(self, day: list[Live], columns: tuple[str, ...] | None = None) -> pa.Table:
        store = self.lake.below(self.table)
        opened, found = store.files(), []
        wanted = None if columns is None else list(columns)
        for one in day:
            with told(store), opened.open_input_file(one.path) as source:
                for batch in pq.ParquetFile(source).iter_batches(columns=wanted):
                    found.append(self._chosen(pa.Table.from_batches([batch])))
        names = columns or tuple(c.name for c in TABLES[self.table].columns)
        schema = pa.schema([TABLES[self.table].schema().field(name) for name in names])
        whole = pa.concat_tables(
            [one.select(names).cast(schema) for one in found] or [schema.empty_table()]
        )
        return _plain(whole)

    def _chosen(self, rows: pa.Table) -> pa.Table:
        chosen = pc.equal(rows[self.column], pa.scalar(self.name))
        at = rows[self.at]
        if self.asked.since is not None:
            chosen = pc.and_(chosen, pc.greater_equal(at, pa.scalar(self.asked.since, at.type)))
        if self.asked.until is not None:
            chosen = pc.and_(chosen, pc.less(at, pa.scalar(self.asked.until, at.type)))
        return rows.filter(chosen)

    def _frame(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql import functions as f

        from jobq.pipeline.lake.reading import read

        rows = read(spark, self.lake, self.table, self.asked.since, self.asked.until)
        rows = rows.where(f.col(self.column) == self.name)
        times = [c.name for c in TABLES[self.table].columns if c.type == "timestamp"]
        for name in times:
            rows = rows.withColumn(name, f.unix_micros(name))
        return rows.withColumnRenamed("dt", "_day")

    def _summary(self, rows: DataFrame, sized: bool) -> Summary:
        from pyspark.sql import functions as f

        key = self.order[-1]
        row = rows.agg(
            f.count("*").alias("rows"),
            (f.sum(f.length("content")) if sized else f.lit(0)).alias("nbytes"),
            f.min(key).alias("first"), f.max(key).alias("last"),
            f.min(self.at).alias("first_us"), f.max(self.at).alias("last_us"),
        ).first()  # fmt: skip
        assert row is not None
        return Summary(**{name: value or 0 for name, value in row.asDict().items()})


def _plus(done: Summary, rows: pa.Table, key: str, at: str) -> Summary:
    if not rows.num_rows:
        return done
    keys: Any = pc.min_max(rows[key]).as_py()
    times: Any = pc.min_max(rows[at]).as_py()
    sized = "content" in rows.column_names
    nbytes = (pc.sum(pc.binary_length(rows["content"])).as_py() or 0) if sized else 0
    first, first_us = (done.first, done.first_us) if done.rows else (keys["min"], times["min"])
    return Summary(
        done.rows + rows.num_rows, done.nbytes + nbytes, first, keys["max"], first_us, times["max"]
    )


def _plain(rows: pa.Table) -> pa.Table:
    """Times as epoch us: what they were, without a zone to get wrong."""
    for index, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            rows = rows.set_column(index, field.name, rows.column(index).cast(pa.int64()))
    return rows
