"""The module where Spark finds `format("jobq_lake")`: a lake's tables, read on executors through deltalake.

It is for buckets: Spark itself needs jars to read those. It imports pyspark alone, and jobq when it is used.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType


class LakeDataSource(DataSource):
    """A table of jobq's lake: see docs/data/ingest.md."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "jobq_lake"

    def schema(self) -> StructType:
        """Return the schema of the option `table`."""
        from jobq.pipeline.lake.source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of `spark.read`."""
        from jobq.pipeline.lake.source import reader

        return reader(self.options)


DefaultSource = LakeDataSource
