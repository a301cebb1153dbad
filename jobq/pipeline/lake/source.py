"""The reader of `format("jobq_lake")`, which pyspark_jobq_lake uses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from jobq.errors import ConfigError
from jobq.pipeline.lake.files import LiveFile, live_files, rows_of_files
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.reading import TimeSpan, time_span, view
from jobq.pipeline.lake.tables import EVENTS, TABLES, LakeTable, from_lake
from jobq.pipeline.options import SparkOptions, unknown
from jobq.pipeline.schema import BASE_QUEUE, bases, struct

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

OPTIONS = ("path", "table", "since", "until", "storageOptions")
#: Approximate bytes of files per partition.
SHARE = 64 * 1024 * 1024


def schema_of(options: Mapping[str, str]) -> StructType:
    """Return the columns of the table that the options name."""
    return struct(view(_table(SparkOptions(options, OPTIONS)))).add("dt", "date")


def reader(options: Mapping[str, str]) -> DataSourceReader:
    """Make the reader of the table that the options name."""
    given = SparkOptions(options, OPTIONS)
    text = given.text("storageOptions")
    try:
        storage = json.loads(text) if text else {}
    except json.JSONDecodeError as error:
        raise ConfigError(
            f'storageOptions is not JSON: {error}; write {{"NAME": "VALUE"}}'
        ) from error
    lake = Lake.open(given.text("path") or None, storage)
    return LakeReader(lake, _table(given), time_span(given.text("since"), given.text("until")))


def _table(options: SparkOptions) -> LakeTable:
    name = options.text("table", EVENTS.name)
    if name not in TABLES:
        raise ConfigError(unknown("table", name, TABLES))
    return TABLES[name]


class Files(InputPartition):
    """A partition: some files of the table."""

    def __init__(self, files: Sequence[LiveFile]) -> None:
        super().__init__(0)
        self.files = tuple(files)


class LakeReader(DataSourceReader):
    """Reads files in the executors. The list of files is fixed when the DataFrame is made."""

    def __init__(self, lake: Lake, table: LakeTable, span: TimeSpan) -> None:
        self._store, self._name = lake.below(table.name), table.name
        self._files = live_files(lake.table(table.name), span.first_day, span.last_day)

    def partitions(self) -> list[InputPartition]:
        """Group the files into partitions."""
        partitions: list[InputPartition] = []
        some: list[LiveFile] = []
        for next_file in self._files:
            some.append(next_file)
            if sum(file.size for file in some) >= SHARE:
                partitions.append(Files(some))
                some = []
        return [*partitions, Files(some)] if some or not partitions else partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition's files."""
        assert isinstance(partition, Files)
        table = TABLES[self._name]
        for file in partition.files:
            for rows in rows_of_files(self._store, [file], table=table):
                yield from _viewed(table, rows, file.dt).to_batches(max_chunksize=50_000)


def _viewed(table: LakeTable, rows: pa.Table, day: str) -> pa.Table:
    import pyarrow as pa

    viewed = from_lake(rows) if table is EVENTS else rows
    if table is not EVENTS and BASE_QUEUE in view(table):
        viewed = viewed.append_column(BASE_QUEUE.name, bases(viewed["queue"]))
    days = pa.repeat(pa.scalar(date.fromisoformat(day), pa.date32()), viewed.num_rows)
    return viewed.append_column("dt", days)
