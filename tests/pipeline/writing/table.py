"""DataFrames without Spark: a schema, rows as Arrow batches, and the writers' objects called as tasks would."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from jobq.pipeline.writing import writer
from jobq.pipeline.writing.writer import PartitionOrigin, PartitionWritten


def schema_of(**columns: Any) -> StructType:
    """name="string", at="timestamp", or types of pyspark."""
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, kind)
    return schema


def batches_of(
    schema: StructType, rows: list[tuple[Any, ...]], size: int = 100
) -> list[pa.RecordBatch]:
    """The rows as Spark would hand them over."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    named = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return [
        pa.RecordBatch.from_pylist(named[at : at + size], schema=arrow)
        for at in range(0, len(named), size)
    ]


class Write:
    """One `save()`: rows in partitions, each attempt called by hand."""

    def __init__(self, url: str, schema: StructType, **options: str) -> None:
        self.schema = schema
        self.writer = writer.batch_writer({"url": url, **options}, schema, False)

    def attempt(
        self, rows: list[tuple[Any, ...]], partition: int = 0, batches: Any = None, **stream: str
    ) -> PartitionWritten:
        """One task's attempt at a partition; query= and batch= within a stream."""
        one = self.writer
        given = batches if batches is not None else batches_of(self.schema, rows)
        position = PartitionOrigin(partition, **stream)
        return writer.write_partition(one.settings, self.schema, iter(given), position)

    def save(self, *partitions: list[tuple[Any, ...]]) -> list[PartitionWritten]:
        """Every partition once, and the commit."""
        done = [self.attempt(rows, number) for number, rows in enumerate(partitions)]
        self.writer.commit(done)
        return done
