"""Data files of a table: zstd Parquet below dt=YYYY-MM-DD/, written wherever the rows are.

A file counts once a commit names it. What was written and never committed is in nobody's way and goes with
the next vacuum.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobq.pipeline.lake.store import Store, remove, told
from jobq.pipeline.lake.tables import Table

if TYPE_CHECKING:
    from deltalake.transaction import AddAction

#: Rows that are gathered before they become a row group; more compress better and take more memory.
GROUP = 100_000
LEVEL = 3
EPOCH = date(1970, 1, 1)


class Written(NamedTuple):
    """A file that waits for its commit. `low` and `high`: bounds of the table's `day_of`, epoch µs."""

    path: str
    size: int
    rows: int
    dt: str
    low: int
    high: int
    day_of: str

    def action(self, *, data_change: bool = True) -> AddAction:
        """It as a commit names it. data_change: rows are new, not only in another place."""
        from deltalake.transaction import AddAction

        bounds = {"minValues": {self.day_of: _stamp(self.low)},
                  "maxValues": {self.day_of: _stamp(self.high + 999)}}  # fmt: skip
        stats = json.dumps({"numRecords": self.rows, **bounds})
        now = time.time_ns() // 1_000_000
        return AddAction(self.path, self.size, {"dt": self.dt}, now, data_change, stats)


class Writer:
    """Writes rows into one file per day. Finish it, or abandon it."""

    def __init__(
        self, store: Store, table: Table, *, level: int = LEVEL, group: int = GROUP, prefix: str = "part"
    ) -> None:  # fmt: skip
        self._store, self._table, self._level, self._group = store, table, level, group
        self._prefix = prefix
        self._days: dict[int, _Day] = {}

    def add(self, rows: pa.Table) -> None:
        """Take rows with the table's columns, `dt` left out."""
        for day, part in _by_day(rows, self._table.day_of):
            if day not in self._days:
                self._days[day] = _Day(
                    self._store, self._table, day, self._level, self._group, self._prefix
                )
            self._days[day].add(part)

    def finish(self) -> list[Written]:
        """Close the files; what a commit needs of each."""
        return [day.finish() for day in self._days.values()]

    def abandon(self) -> None:
        """Delete what was written."""
        for day in self._days.values():
            day.abandon()


class _Day:
    """The file of one day."""

    def __init__(
        self, store: Store, table: Table, day: int, level: int, group: int, prefix: str
    ) -> None:
        self._store, self._table, self._group = store, table, group
        self.dt = (EPOCH + timedelta(days=day)).isoformat()
        self.path = f"dt={self.dt}/{prefix}-{uuid.uuid4()}.zstd.parquet"
        self._waiting: list[pa.Table] = []
        self._rows = self._nwaiting = 0
        self._low, self._high = 2**63 - 1, -(2**63)
        with told(store):
            files = store.files()
            if store.is_local:
                files.create_dir(f"dt={self.dt}", recursive=True)
            self._writer = pq.ParquetWriter(
                self.path, table.schema(), filesystem=files, compression="zstd",
                compression_level=level, **table.encodings(),
            )  # fmt: skip

    def add(self, rows: pa.Table) -> None:
        bounds: Any = pc.min_max(rows[self._table.day_of].cast(pa.int64())).as_py()
        self._low, self._high = min(self._low, bounds["min"]), max(self._high, bounds["max"])
        self._waiting.append(rows)
        self._nwaiting += rows.num_rows
        self._rows += rows.num_rows
        if self._nwaiting >= self._group:
            self._flush()

    def finish(self) -> Written:
        if self._waiting:
            self._flush()
        with told(self._store):
            self._writer.close()
            self._store.settle(self.path)
            size = self._store.files().get_file_info(self.path).size
        return Written(
            self.path, size, self._rows, self.dt, self._low, self._high, self._table.day_of
        )

    def abandon(self) -> None:
        try:
            self._writer.close()
        except OSError:
            pass  # the disk is full, and it's going anyway
        remove(self._store, [self.path])

    def _flush(self) -> None:
        whole, self._waiting, self._nwaiting = pa.concat_tables(self._waiting), [], 0
        with told(self._store):
            self._writer.write_table(whole, row_group_size=max(whole.num_rows, 1))


def _by_day(rows: pa.Table, day_of: str) -> Iterator[tuple[int, pa.Table]]:
    if not rows.num_rows:
        return
    days: Any = rows[day_of].cast(pa.date32()).cast(pa.int32())
    found: list[Any] = pc.unique(days).to_pylist()
    for day in found:
        yield day, rows if len(found) == 1 else rows.filter(pc.equal(days, day))


def _stamp(micros: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros // 1000 * 1000)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"
