"""`format("jobq_lake")`: the reader behind pyspark_jobq_lake. One partition per some files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from jobq.errors import ConfigError
from jobq.pipeline.lake.live import Live, live, tables
from jobq.pipeline.lake.place import Lake
from jobq.pipeline.lake.reading import view
from jobq.pipeline.lake.span import Span, span
from jobq.pipeline.lake.store import Store
from jobq.pipeline.lake.tables import EVENTS, TABLES, Table, from_lake
from jobq.pipeline.options import Options, unknown
from jobq.pipeline.schema import struct

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

OPTIONS = ("path", "table", "since", "until", "storageOptions")
#: Bytes of files that share a partition.
SHARE = 64 * 1024 * 1024


def schema_of(options: Mapping[str, str]) -> StructType:
    """The columns of the table asked for."""
    return struct(view(_table(Options(options, OPTIONS)))).add("dt", "date")


def reader(options: Mapping[str, str]) -> DataSourceReader:
    """Its reader."""
    given = Options(options, OPTIONS)
    text = given.text("storageOptions")
    try:
        storage = json.loads(text) if text else {}
    except json.JSONDecodeError as error:
        raise ConfigError(f"storageOptions is no JSON: {error}") from error
    lake, table = Lake.open(given.text("path") or None, storage), _table(given)
    return LakeReader(
        lake.below(table.name), table.name, span(given.text("since"), given.text("until"))
    )


def _table(options: Options) -> Table:
    name = options.text("table", EVENTS.name)
    if name not in TABLES:
        raise ConfigError(unknown("table", name, TABLES))
    return TABLES[name]


class Files(InputPartition):
    """Some files of the table."""

    def __init__(self, files: Sequence[Live]) -> None:
        super().__init__(0)
        self.files = tuple(files)


class LakeReader(DataSourceReader):
    """Reads files where the tasks run; which ones is settled when the DataFrame is made."""

    def __init__(self, store: Store, table: str, asked: Span) -> None:
        self._store, self._name, self._asked = store, table, asked
        self._files = live(_delta(store), asked.first_day, asked.last_day)

    def partitions(self) -> list[InputPartition]:
        """Files together up to a share of bytes."""
        found: list[InputPartition] = []
        some: list[Live] = []
        for one in self._files:
            some.append(one)
            if sum(file.size for file in some) >= SHARE:
                found.append(Files(some))
                some = []
        return [*found, Files(some)] if some or not found else found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition's files."""
        assert isinstance(partition, Files)
        table = TABLES[self._name]
        for file in partition.files:
            for rows in tables(self._store, [file]):
                yield from _viewed(table, rows, file.dt).to_batches(max_chunksize=50_000)


def _viewed(table: Table, rows: pa.Table, day: str) -> pa.Table:
    from datetime import date

    import pyarrow as pa

    found = from_lake(rows) if table is EVENTS else rows
    days = pa.repeat(pa.scalar(date.fromisoformat(day), pa.date32()), found.num_rows)
    return found.append_column("dt", days)


def _delta(store: Store) -> Any:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return DeltaTable(store.uri, storage_options=dict(store.options) or None)
    except TableNotFoundError:
        return None
