"""`format("jobq")`: what Spark asks of a data source, handed to the parts that do it.

Spark finds the class by itself, in `pyspark_jobq`. Here nothing but names is imported before it is needed:
driver and executors each load what they use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jobq.errors import ConfigError
from jobq.pipeline.options import unknown
from jobq.pipeline.reading.request import CORRUPT, columns_of, requested, view_of
from jobq.pipeline.schema import VIEWS, Columns, struct

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


def register(spark: SparkSession) -> None:
    """Make `format("jobq")` known to a session; only needed where Spark's own look-up is switched off."""
    from pyspark_jobq import JobqDataSource

    spark.dataSource.register(JobqDataSource)


def schema_of(options: Mapping[str, str]) -> StructType:
    """The schema of what the options ask for; the first place that refuses bad ones."""

    return struct(columns_of(options))


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The batch reader."""
    from jobq.pipeline.reading.readers import JobqReader

    return JobqReader(requested(options, _columns(options, schema, stream=False)))


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The streaming reader."""
    from jobq.pipeline.reading.readers import JobqStreamReader

    return JobqStreamReader(requested(options, _columns(options, schema, stream=True), stream=True))


def _columns(options: Mapping[str, str], schema: StructType, stream: bool) -> Columns:
    """The columns of a schema, which may be the user's own: some of the view's, with their types."""

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
                f"not {field.dataType.simpleString()}; give its type, or no schema"
            )
        columns.append(column)
    return tuple(columns)
