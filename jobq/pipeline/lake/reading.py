"""The lake's tables as DataFrames: a folder by Spark's own Parquet reader, a bucket by `jobq_lake`.

A DataFrame is a snapshot: it has the files that the table had when it was made. What a compaction replaces
stays readable until vacuum.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from jobq.pipeline.lake.live import live
from jobq.pipeline.lake.place import Lake
from jobq.pipeline.lake.span import Moment, Span, span
from jobq.pipeline.lake.tables import EVENTS, RESTORED, TABLES, Table
from jobq.pipeline.schema import DERIVED, EVENT_COLUMNS, Columns, ddl, struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(
    spark: SparkSession,
    lake: Lake,
    table: str = "events",
    since: Moment = None,
    until: Moment = None,
) -> DataFrame:
    """A table's rows from `since`, included, to `until`, excluded, by the time that its `dt` is the day of.

    Columns as in docs/guides/spark/ingest.md, `dt` last; `events` has those of the data source's view. A table that was
    never written has no rows.
    """
    delta, asked = lake.table(table), span(since, until)
    known = TABLES[table]
    if lake.store.is_local:
        files = live(delta, asked.first_day, asked.last_day)
        paths = [os.path.join(lake.below(table).uri, one.path) for one in files]
        rows = _viewed(known, _parquet(spark, lake, known, paths))
    else:
        rows = _from_bucket(spark, lake, table, asked)
    return _within(rows, known, asked)


def view(table: Table) -> Columns:
    """The columns that reading gives, `dt` left out."""
    return EVENT_COLUMNS if table is EVENTS else table.columns


def _parquet(spark: SparkSession, lake: Lake, table: Table, paths: list[str]) -> DataFrame:
    schema = struct(table.columns).add("dt", "date")
    if not paths:
        return spark.createDataFrame([], schema)
    # Paths are names here, whatever brackets and stars the lake's folder has.
    reader = spark.read.schema(f"{ddl(table.columns)}, dt DATE").option("__globPaths__", "false")
    return reader.option("basePath", lake.below(table.name).uri).parquet(*paths)


def _viewed(table: Table, rows: DataFrame) -> DataFrame:
    if table is not EVENTS:
        return rows
    near = rows.selectExpr("*", *(f"{text} AS {name}" for name, text in RESTORED.items()))
    columns = (
        f"{DERIVED[c.name]} AS {c.name}" if c.name in DERIVED else c.name for c in EVENT_COLUMNS
    )
    return near.selectExpr(*columns, "dt")


def _from_bucket(spark: SparkSession, lake: Lake, table: str, asked: Span) -> DataFrame:
    reader = spark.read.format("jobq_lake").option("path", lake.store.uri).option("table", table)
    if lake.store.options:
        reader = reader.option("storageOptions", json.dumps(dict(lake.store.options)))
    for name, value in asked._asdict().items():
        if value is not None:
            reader = reader.option(name, value.isoformat())
    return reader.load()


def _within(rows: DataFrame, table: Table, asked: Span) -> DataFrame:
    from pyspark.sql import functions as f

    at = f.col(table.day_of)
    if asked.since is not None:
        rows = rows.where(at >= f.lit(asked.since))
    if asked.until is not None:
        rows = rows.where(at < f.lit(asked.until))
    return rows
