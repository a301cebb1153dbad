"""List the data files of a lake's tables, and write new files.

A data file belongs to its table once a commit names it. Vacuum deletes uncommitted files.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobq.pipeline.lake.store import LakeStore, lake_errors, remove_files
from jobq.pipeline.lake.tables import LakeTable

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction


EPOCH = date(1970, 1, 1)


class FileFormat(NamedTuple):
    """Settings for writing files.

    Attributes:
        group: Number of rows of a row group; larger groups compress better and take more memory.
    """

    prefix: str
    level: int
    group: int


INGESTED = FileFormat("part", 3, 100_000)
COMPACTED = FileFormat("compact", 9, 500_000)


#: Also start a new row group after this many bytes, so that large contents don't fill the memory.
GROUP_BYTES = 256 * 1024 * 1024


class DataFile(NamedTuple):
    """A new file, not yet committed.

    Attributes:
        low and high: Lowest and highest value of the column `day_of`, epoch µs.
    """

    path: str
    size: int
    rows: int
    dt: str
    low: int
    high: int
    day_of: str

    def action(self, *, data_change: bool = True) -> AddAction:
        """Return the action that adds the file.

        Args:
            data_change: Whether its rows are new to the table.
        """
        from deltalake.transaction import AddAction

        bounds = {"minValues": {self.day_of: _stamp(self.low)},
                  "maxValues": {self.day_of: _stamp(self.high + 999)}}  # fmt: skip
        stats = json.dumps({"numRecords": self.rows, **bounds})
        now = time.time_ns() // 1_000_000
        return AddAction(self.path, self.size, {"dt": self.dt}, now, data_change, stats)


class DataFileWriter:
    """Writes rows into one file per day. As a context manager, it deletes its files after an error."""

    def __init__(self, store: LakeStore, table: LakeTable, form: FileFormat = INGESTED) -> None:
        self._store, self._table, self._form = store, table, form
        self._days: dict[int, _DayFile] = {}

    def __enter__(self) -> DataFileWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            for day in self._days.values():
                day.abandon()

    def add(self, rows: pa.Table) -> None:
        """Add rows with the table's columns, without `dt`."""
        for day, part in _rows_by_day(rows, self._table.day_of):
            if day not in self._days:
                self._days[day] = _DayFile(self._store, self._table, day, self._form)
            self._days[day].add(part)

    def finish(self) -> list[DataFile]:
        """Close the files and return them for the commit."""
        return [day.finish() for day in self._days.values()]


def write_rows(
    store: LakeStore, table: LakeTable, rows: pa.Table, form: FileFormat = INGESTED
) -> list[DataFile]:
    """Write the rows into new files. If an error occurs, delete these files."""
    with DataFileWriter(store, table, form) as writer:
        writer.add(rows)
        return writer.finish()


class _DayFile:
    def __init__(self, store: LakeStore, table: LakeTable, day: int, form: FileFormat) -> None:
        self._store, self._table, self._group = store, table, form.group
        self.dt = (EPOCH + timedelta(days=day)).isoformat()
        self.path = f"dt={self.dt}/{form.prefix}-{uuid.uuid4()}.zstd.parquet"
        self._waiting: list[pa.Table] = []
        self._rows = self._nwaiting = self._nbytes = 0
        self._low, self._high = 2**63 - 1, -(2**63)
        with lake_errors(store):
            files = store.files()
            if store.is_local:
                files.create_dir(f"dt={self.dt}", recursive=True)
            self._writer = pq.ParquetWriter(
                self.path, table.schema(), filesystem=files, compression="zstd",
                compression_level=form.level, **table.encodings(),
            )  # fmt: skip

    def add(self, rows: pa.Table) -> None:
        bounds: Any = pc.min_max(rows[self._table.day_of].cast(pa.int64())).as_py()
        self._low, self._high = min(self._low, bounds["min"]), max(self._high, bounds["max"])
        self._waiting.append(rows)
        self._nwaiting += rows.num_rows
        self._nbytes += rows.nbytes
        self._rows += rows.num_rows
        if self._nwaiting >= self._group or self._nbytes >= GROUP_BYTES:
            self._flush()

    def finish(self) -> DataFile:
        if self._waiting:
            self._flush()
        with lake_errors(self._store):
            self._writer.close()
            self._store.settle(self.path)
            size = self._store.files().get_file_info(self.path).size
        return DataFile(
            self.path, size, self._rows, self.dt, self._low, self._high, self._table.day_of
        )

    def abandon(self) -> None:
        try:
            self._writer.close()
        except OSError:
            pass  # the disk is full, and the file is deleted anyway
        remove_files(self._store, [self.path])

    def _flush(self) -> None:
        whole, self._waiting = pa.concat_tables(self._waiting), []
        self._nwaiting = self._nbytes = 0
        with lake_errors(self._store):
            self._writer.write_table(whole, row_group_size=max(whole.num_rows, 1))


def _rows_by_day(rows: pa.Table, day_of: str) -> Iterator[tuple[int, pa.Table]]:
    if not rows.num_rows:
        return
    days: Any = rows[day_of].cast(pa.date32()).cast(pa.int32())
    unique_days: list[Any] = pc.unique(days).to_pylist()
    for day in unique_days:
        yield day, rows if len(unique_days) == 1 else rows.filter(pc.equal(days, day))


def _stamp(micros: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros // 1000 * 1000)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


#: The latest possible day.
LAST_DAY = "9999-12-31"


class LiveFile(NamedTuple):
    """A current file of the table, as the table's log describes it.

    Attributes:
        dt: The file's partition, YYYY-MM-DD.
        low_us and high_us: Bounds of the time that determines the day, epoch µs; if the log has no bounds, the whole
            day.
    """

    path: str
    size: int
    rows: int
    dt: str
    low_us: int = 0
    high_us: int = 0

    @property
    def is_compact(self) -> bool:
        """Return whether a compaction or a rollup wrote the file."""
        return self.path.rpartition("/")[2].startswith(COMPACTED.prefix)


def live_files(delta: DeltaTable | None, since: str = "", until: str = LAST_DAY) -> list[LiveFile]:
    """Return the files of the days from `since` to `until`, both included, ordered by day."""
    if delta is None:
        return []
    table = pa.table(delta.get_add_actions())
    columns = ["path", "size_bytes", "num_records", "partition", "min", "max"]
    rows = table.select([name for name in columns if name in table.column_names]).to_pylist()
    files = (_live_file(row) for row in rows)
    return sorted((file for file in files if since <= file.dt <= until), key=lambda file: file.dt)


def _live_file(row: Mapping[str, Any]) -> LiveFile:
    dt = str(row["partition"]["dt"])
    first = (date.fromisoformat(dt) - EPOCH) // timedelta(microseconds=1)
    low, high = (
        [at for at in (row.get(name) or {}).values() if isinstance(at, datetime)]
        for name in ("min", "max")
    )
    return LiveFile(
        unquote(row["path"]), row["size_bytes"], row["num_records"] or 0, dt,
        _micros(low[0]) if len(low) == 1 else first,
        _micros(high[0]) if len(high) == 1 else first + timedelta(days=1) // timedelta(microseconds=1) - 1,
    )  # fmt: skip


def _micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def added_files(delta: DeltaTable, store: LakeStore, since: int) -> list[LiveFile] | None:
    """Return the files with new rows from commits after the version `since`.

    Files from compactions are left out. Returns None if a commit replaced rows or is missing from the log.
    """
    files: list[LiveFile] = []
    opened = store.files()
    for version in range(since + 1, delta.version() + 1):
        try:
            with opened.open_input_stream(f"_delta_log/{version:020d}.json") as stream:
                actions = [json.loads(line) for line in bytes(stream.read()).splitlines()]
        except FileNotFoundError:
            return None
        adds = [action["add"] for action in actions if action.get("add", {}).get("dataChange")]
        if adds and any(action.get("remove", {}).get("dataChange") for action in actions):
            return None
        files += map(_added, adds)
    return files if since <= delta.version() else None


def _added(action: dict[str, Any]) -> LiveFile:
    rows = json.loads(action.get("stats") or "{}").get("numRecords", 0)
    return LiveFile(
        unquote(action["path"]), action["size"], rows, action["partitionValues"]["dt"], 0, 0
    )


def files_by_day(files: Iterable[LiveFile]) -> dict[str, list[LiveFile]]:
    """Group files by day."""
    days: dict[str, list[LiveFile]] = {}
    for file in files:
        days.setdefault(file.dt, []).append(file)
    return days


def rows_of_files(
    store: LakeStore,
    files: Iterable[LiveFile],
    columns: Sequence[str] | None = None,
    table: LakeTable | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of each file as a table.

    Args:
        table: If `columns` is None, columns of this table that a file lacks are added as nulls.
    """
    opened = store.files()
    for file in files:
        with lake_errors(store), opened.open_input_file(file.path) as source:
            rows = pq.ParquetFile(source).read(None if columns is None else list(columns))
        yield rows if columns is not None or table is None else _completed(rows, table.schema())


def rows_of_paths(store: LakeStore, paths: Iterable[str]) -> Iterator[pa.Table]:
    """Yield the rows of each file as a table."""
    return rows_of_files(store, [LiveFile(path, 0, 0, "") for path in paths])


def row_groups(
    store: LakeStore, file: LiveFile, table: LakeTable, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yield a file's rows, one row group at a time, with the table's columns or only `columns`."""
    wanted = (
        table.schema() if columns is None else pa.schema(table.schema().field(c) for c in columns)
    )
    with lake_errors(store), store.files().open_input_file(file.path) as source:
        opened = pq.ParquetFile(source)
        there = [name for name in wanted.names if name in opened.schema_arrow.names]
        for number in range(opened.num_row_groups):
            yield _completed(opened.read_row_group(number, there), wanted)


def _completed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    if rows.schema.names == schema.names:
        return rows
    known = set(rows.schema.names)
    columns = [
        rows[field.name] if field.name in known else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
