"""The module where Spark finds `format("jobq_lake")`, which reads a lake's tables with deltalake on executors.

This format serves lakes in buckets, because Spark itself reads buckets only with extra jars. Importing this module
doesn't import jobq.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType


class LakeDataSource(DataSource):
    """Spark's data source for tables of a lake: see docs/data/ingest.md."""

    @classmethod
    def name(cls) -> str:
        return "jobq_lake"

    def schema(self) -> StructType:
        """Return the schema of the option `table`."""
        from jobq.pipeline.lake.source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from jobq.pipeline.lake.source import reader

        return reader(self.options)


DefaultSource = LakeDataSource
