"""Where Spark looks for `format("jobq_lake")`: a lake's tables, read on executors through deltalake.

For a bucket: Spark itself would need jars to read that. It imports pyspark alone, and jobq when it is used.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType


class LakeDataSource(DataSource):
    """A table of jobq's lake: see docs/guides/spark/ingest.md."""

    @classmethod
    def name(cls) -> str:
        """What `format()` takes."""
        return "jobq_lake"

    def schema(self) -> StructType:
        """By the option `table`."""
        from jobq.pipeline.lake.source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        from jobq.pipeline.lake.source import reader

        return reader(self.options)


DefaultSource = LakeDataSource
