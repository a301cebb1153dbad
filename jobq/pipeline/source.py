"""Make readers for Spark's `format("jobq")`.

Spark finds the data source in the module `pyspark_jobq`. The readers are imported only when they are needed, because
they load pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jobq.errors import ConfigError
from jobq.pipeline.gateway import told_without_traceback
from jobq.pipeline.options import unknown
from jobq.pipeline.reading.request import CORRUPT, check_options, columns_of, requested, view_of
from jobq.pipeline.schema import VIEWS, Columns, struct

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


def register(spark: SparkSession) -> None:
    """Register `format("jobq")` in a session.

    Call this if Spark doesn't find the data source by itself, for example in modules sent with --py-files.
    """
    from pyspark_jobq import JobqDataSource

    spark.dataSource.register(JobqDataSource)


@told_without_traceback()
def schema_of(options: Mapping[str, str]) -> StructType:
    """Return the schema that the options name. Raises ConfigError for bad options."""

    columns = columns_of(options)
    check_options(options)
    return struct(columns)


@told_without_traceback()
def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Make the batch reader."""
    from jobq.pipeline.reading.readers import JobqReader

    return JobqReader(requested(options, _columns(options, schema, stream=False)))


@told_without_traceback()
def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Make the streaming reader."""
    from jobq.pipeline.reading.readers import JobqStreamReader

    return JobqStreamReader(requested(options, _columns(options, schema, stream=True), stream=True))


def _columns(options: Mapping[str, str], schema: StructType, stream: bool) -> Columns:
    """Return the view's columns for the fields of `schema`. Raises ConfigError for unknown columns and wrong types."""

    view = view_of(options, stream)
    known = {column.name: column for column in (*VIEWS[view], CORRUPT)}
    columns = []
    for field in schema.fields:
        column = known.get(field.name)
        if column is None:
            raise ConfigError(unknown(f"column of view {view!r}", field.name, known))
        if struct((column,))[0].dataType != field.dataType:
            raise ConfigError(
                f"column {column.name!r} of view {view!r} is {column.type}, "
                f"not {field.dataType.simpleString()}; pass that type, or leave out the schema"
            )
        columns.append(column)
    return tuple(columns)
