"""The module where Spark finds `format("jobq")`. Spark searches top-level modules `pyspark_…` for a `DefaultSource`.

A module that can't be imported breaks every data source written in Python. So this module imports jobq only when it is
used.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType


class JobqDataSource(DataSource):
    """Spark's data source for queues, topics and history: see docs/data/index.md."""

    @classmethod
    def name(cls) -> str:
        return "jobq"

    def schema(self) -> StructType:
        """Return the schema of the options `view` and `columns`."""
        from jobq.pipeline.source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from jobq.pipeline.source import reader

        return reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from jobq.pipeline.source import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from jobq.pipeline.writing.writer import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from jobq.pipeline.writing.writer import stream_writer

        return stream_writer(self.options, schema, overwrite)


DefaultSource = JobqDataSource
