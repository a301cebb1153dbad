"""The files that a table is made of now, and their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from jobq.pipeline.lake.store import Store, told

if TYPE_CHECKING:
    from deltalake import DeltaTable


#: No day that a date can be is after it.
LAST_DAY = "9999-12-31"


class Live(NamedTuple):
    """A file of a table, as its log describes it. dt: its partition, YYYY-MM-DD."""

    path: str
    size: int
    rows: int
    dt: str


def live(delta: DeltaTable | None, since: str = "", until: str = LAST_DAY) -> list[Live]:
    """The files of days from `since` to `until`, both included, by day."""
    if delta is None:
        return []
    found = pa.table(delta.get_add_actions()).select(
        ["path", "size_bytes", "num_records", "partition"]
    )
    files = [
        Live(unquote(row["path"]), row["size_bytes"], row["num_records"] or 0, str(row["partition"]["dt"]))
        for row in found.to_pylist()
    ]  # fmt: skip
    return sorted((one for one in files if since <= one.dt <= until), key=lambda one: one.dt)


def by_day(files: Iterable[Live]) -> dict[str, list[Live]]:
    """The same, grouped."""
    days: dict[str, list[Live]] = {}
    for one in files:
        days.setdefault(one.dt, []).append(one)
    return days


def tables(
    store: Store, files: Iterable[Live], columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """The rows, file by file."""
    opened = store.files()
    for one in files:
        with told(store), opened.open_input_file(one.path) as source:
            yield pq.ParquetFile(source).read(None if columns is None else list(columns))
