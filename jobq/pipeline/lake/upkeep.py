"""Upkeep: compact what many batches left behind, delete unused files, drop old days, set marks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jobq.errors import ConfigError, LakeError
from jobq.pipeline.lake.commit import (
    OVERTAKEN,
    CommitConflictError,
    Drop,
    commit_files,
    last_batch_again,
    taken_back,
)
from jobq.pipeline.lake.files import (
    COMPACTED,
    DataFile,
    LiveFile,
    files_by_day,
    live_files,
    rows_of_files,
    write_rows,
)
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.reading import stored_rows
from jobq.pipeline.lake.store import LakeStore, lake_errors, remove_files
from jobq.pipeline.lake.tables import MARKS, TABLES, LakeTable

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import RemoveAction

TARGET = 128 * 1024 * 1024
#: A day with more rows is sorted in parts: some queues, topics or hours at a time.
IN_MEMORY = 4_000_000
#: The least age for vacuum in a bucket: a younger file may still be in the making.
LEAST_S = 3600.0


class Compacted(NamedTuple):
    """The result of compacting one day."""

    table: str
    dt: str
    rows: int
    files_before: int
    files: int
    bytes_before: int
    bytes: int


def removal(files: Iterable[LiveFile], *, data_change: bool = True) -> list[RemoveAction]:
    """Return the actions that remove files."""
    from deltalake.transaction import RemoveAction

    now = time.time_ns() // 1_000_000
    return [RemoveAction(one.path, data_change, now, one.size, {"dt": one.dt}) for one in files]


def compact(
    lake: Lake, names: Iterable[str] = tuple(TABLES), *, target: int = TARGET,
    on_compacted: Callable[[Compacted], None] = lambda one: None, enough: Callable[[], bool] = lambda: False,
    alone: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[Compacted]:  # fmt: skip
    """Sort and join the files of every day that isn't compact; one commit per day.

    alone: a context entered for each of those days, such as a RepeatedLock. Stop between two days if `enough()`.
    """
    done: list[Compacted] = []
    for name in names:
        for day, files in files_by_day(live_files(lake.table(name))).items():
            if enough():
                return done
            if _are_compact(files):
                continue
            with alone():
                one = _day(lake, name, day, target)
            if one:
                done.append(one)
                on_compacted(one)
    return done


def _day(lake: Lake, name: str, day: str, target: int) -> Compacted | None:
    # List the files again from the version that the commit is based on: others may have changed the day.
    delta = lake.made(name)
    files = live_files(delta, day, day)
    return None if _are_compact(files) else _compact(lake, delta, TABLES[name], files, target)


def _are_compact(files: Iterable[LiveFile]) -> bool:
    return all(one.is_compact for one in files)


def _compact(
    lake: Lake, delta: DeltaTable, table: LakeTable, files: list[LiveFile], target: int
) -> Compacted:
    store, size = lake.below(table.name), sum(one.size for one in files)
    rows = sum(one.rows for one in files)
    written = _written(store, table, files, max(1, rows * target // max(1, size)))
    actions: list[Any] = [
        *removal(files, data_change=False),
        *(f.action(data_change=False) for f in written),
    ]
    with taken_back(store, written):
        commit_files(lake, table.name, delta, actions)
    return Compacted(
        table.name, files[0].dt, rows, len(files), len(written), size, sum(f.size for f in written)
    )


def _written(
    store: LakeStore, table: LakeTable, files: Sequence[LiveFile], per_file: int
) -> list[DataFile]:
    """Write new files of `per_file` rows each. If the disk is full, delete them all."""
    written: list[DataFile] = []
    try:
        for part in _sorted_parts(store, table, files):
            for first in range(0, part.num_rows, per_file):
                written += write_rows(store, table, part.slice(first, per_file), COMPACTED)
    except LakeError:
        remove_files(store, [one.path for one in written])
        raise
    return written


def _sorted_parts(
    store: LakeStore, table: LakeTable, files: Sequence[LiveFile]
) -> Iterable[pa.Table]:
    order: list[Any] = [(name, "ascending") for name in table.sort]
    if sum(one.rows for one in files) <= IN_MEMORY:
        yield pa.concat_tables(rows_of_files(store, files, table=table)).sort_by(order)
        return
    first = table.sort[0]
    for values in _together(pa.concat_tables(rows_of_files(store, files, [first]))):
        some = [
            part.filter(pc.is_in(part[first], values))
            for part in rows_of_files(store, files, table=table)
        ]
        yield pa.concat_tables(some).sort_by(order)


def _together(names: pa.Table) -> Iterable[pa.Array[Any]]:
    """Yield groups of neighbouring values of one column that fit into memory together; a larger one alone."""
    [column] = names.column_names
    counts = names.group_by(column).aggregate([([], "count_all")]).sort_by(column)
    some: list[Any] = []
    rows = 0
    for row in counts.to_pylist():
        value, count = row[column], row["count_all"]
        if some and rows + count > IN_MEMORY:
            yield pa.array(some, names[column].type)
            some, rows = [], 0
        some.append(value)
        rows += count
    yield pa.array(some, names[column].type)


def vacuum(lake: Lake, older_s: float) -> dict[str, int]:
    """Delete files that no version younger than `older_s` names; return their number by table.

    deltalake takes whole hours; `older_s` is rounded up.
    """
    if not lake.store.is_local and older_s < LEAST_S:
        raise ConfigError(
            f"older={older_s:g}s would take files that an ingest is writing just now; take 1h or more"
        )
    gone = {}
    for name, table in TABLES.items():
        delta = lake.table(name)
        if delta is None:
            continue
        with lake_errors(lake.below(name)):
            gone[name] = len(
                delta.vacuum(
                    retention_hours=math.ceil(older_s / 3600), dry_run=False, full=True,
                    enforce_retention_duration=False, commit_properties=last_batch_again(delta, table.app),
                )
            )  # fmt: skip
    return gone


class Expired(NamedTuple):
    """The result of expiring one table."""

    table: str
    days: int
    rows: int
    before: str


def expire(
    lake: Lake, older_s: float, names: Iterable[str] = ("events",), *, now: datetime | None = None
) -> list[Expired]:
    """Drop the days that are completely older. The next vacuum deletes their files. Rollups stay."""
    now = now or datetime.now(UTC)
    # No day is older than 1970.
    oldest = now - timedelta(seconds=min(older_s, now.timestamp()))
    before, last = oldest.date().isoformat(), (oldest.date() - timedelta(days=1)).isoformat()
    return [_expired(lake, name, before, last) for name in names]


def _expired(lake: Lake, name: str, before: str, last: str) -> Expired:
    overtaken = 0
    while True:
        delta = lake.table(name)
        files = live_files(delta, until=last)
        done = Expired(name, len(files_by_day(files)), sum(one.rows for one in files), before)
        if delta is None or not files:
            return done
        try:
            commit_files(lake, name, delta, removal(files), drop=Drop(done.rows, before))
            return done
        except CommitConflictError:
            overtaken += 1
            if overtaken >= OVERTAKEN:
                raise


def mark(lake: Lake, name: str, at: datetime | None = None) -> datetime:
    """Record that `name` happened, now or at a time; return that time."""
    if not name.strip() or len(name) > 200 or not name.isprintable():
        raise ConfigError(f"mark {name!r} has no use; take 1 to 200 printable characters")
    at = at or datetime.now(UTC)
    rows = pa.Table.from_pylist([{"name": name, "at": at}], MARKS.schema())
    files = write_rows(lake.below(MARKS.name), MARKS, rows)
    commit_files(lake, MARKS.name, lake.made(MARKS.name), [file.action() for file in files])
    return at


def marks(lake: Lake) -> list[tuple[str, datetime]]:
    """Return all marks, oldest first. Of a repeated name, reports take the newest."""
    rows = [
        (row["name"], row["at"].astimezone(UTC))
        for found in stored_rows(lake, MARKS)
        for row in found.to_pylist()
    ]
    return sorted(rows, key=lambda row: (row[1], row[0]))
