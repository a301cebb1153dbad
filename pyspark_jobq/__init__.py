"""Where Spark looks for `format("jobq")`: any top-level module `pyspark_…` with a `DefaultSource`.

One that can't be imported breaks the look-up of every data source written in Python, so this imports
pyspark alone, and jobq when it is used.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType


class JobqDataSource(DataSource):
    """jobq's queues, topics and history as DataFrames, and DataFrames into queues: see docs/guides/spark/index.md."""

    @classmethod
    def name(cls) -> str:
        """What `format()` takes."""
        return "jobq"

    def schema(self) -> StructType:
        """By the options `view` and `columns`."""
        from jobq.pipeline.source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        from jobq.pipeline.source import reader

        return reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`."""
        from jobq.pipeline.source import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """For `DataFrame.write`."""
        from jobq.pipeline.writing.writer import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """For `DataFrame.writeStream`."""
        from jobq.pipeline.writing.writer import stream_writer

        return stream_writer(self.options, schema, overwrite)


DefaultSource = JobqDataSource
