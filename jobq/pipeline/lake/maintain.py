"""Upkeep: compact what many batches left behind, delete what nothing refers to, drop old days."""

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
from jobq.pipeline.lake.commit import OVERTAKEN, CommitConflictError, commit, properties, taken_back
from jobq.pipeline.lake.files import Writer, Written
from jobq.pipeline.lake.live import Live, by_day, live, tables
from jobq.pipeline.lake.place import Lake
from jobq.pipeline.lake.store import Store, remove, told
from jobq.pipeline.lake.tables import TABLES, Table

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import RemoveAction

TARGET = 128 * 1024 * 1024
#: What files of a compaction are called, and how they are written.
COMPACT, LEVEL, GROUP = "compact", 9, 500_000
#: Rows of a day that are sorted in memory; above that some queues, topics or hours at a time.
IN_MEMORY = 4_000_000
#: Below this a file that somebody is just writing to a bucket could be taken for a left-over.
LEAST_S = 3600.0
EXPIRING = ("events", "topics", "dead", "quarantine")


class Compacted(NamedTuple):
    """What became of one day."""

    table: str
    dt: str
    rows: int
    files_before: int
    files: int
    bytes_before: int
    bytes: int


def removal(files: Iterable[Live], *, data_change: bool = True) -> list[RemoveAction]:
    """Files as a commit takes them out."""
    from deltalake.transaction import RemoveAction

    now = time.time_ns() // 1_000_000
    return [RemoveAction(one.path, data_change, now, one.size, {"dt": one.dt}) for one in files]


def compact(
    lake: Lake, names: Iterable[str] = tuple(TABLES), *, target: int = TARGET,
    told: Callable[[Compacted], None] = lambda one: None, enough: Callable[[], bool] = lambda: False,
    alone: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[Compacted]:  # fmt: skip
    """Sort and join the files of every day that has some from single batches; one commit per day.

    alone: entered for each of those days, as `lock.Turns`.
    """
    done: list[Compacted] = []
    for name in names:
        for day, files in by_day(live(lake.table(name))).items():
            if enough():
                return done
            if _are_compact(files):
                continue
            with alone():
                one = _day(lake, name, day, target)
            if one:
                done.append(one)
                told(one)
    return done


def _day(lake: Lake, name: str, day: str, target: int) -> Compacted | None:
    # Listed again from what the commit is based on: others may have worked on that day meanwhile.
    delta = lake.made(name)
    files = live(delta, day, day)
    return None if _are_compact(files) else _compact(lake, delta, TABLES[name], files, target)


def _are_compact(files: Iterable[Live]) -> bool:
    return all(_is_compact(one) for one in files)


def _is_compact(file: Live) -> bool:
    return file.path.rpartition("/")[2].startswith(COMPACT)


def _compact(
    lake: Lake, delta: DeltaTable, table: Table, files: list[Live], target: int
) -> Compacted:
    store, size = lake.below(table.name), sum(one.size for one in files)
    rows = sum(one.rows for one in files)
    written = _written(store, table, files, max(1, rows * target // max(1, size)))
    actions: list[Any] = [
        *removal(files, data_change=False),
        *(f.action(data_change=False) for f in written),
    ]
    with taken_back(store, written):
        commit(lake, table.name, delta, actions)
    return Compacted(
        table.name, files[0].dt, rows, len(files), len(written), size, sum(f.size for f in written)
    )


def _written(store: Store, table: Table, files: Sequence[Live], per_file: int) -> list[Written]:
    """New files of so many rows each; none of them when there is no room for all."""
    written: list[Written] = []
    try:
        for part in _sorted_parts(store, table, files):
            for first in range(0, part.num_rows, per_file):
                written += _file(store, table, part.slice(first, per_file))
    except LakeError:
        remove(store, [one.path for one in written])
        raise
    return written


def _file(store: Store, table: Table, rows: pa.Table) -> list[Written]:
    writer = Writer(store, table, level=LEVEL, group=GROUP, prefix=COMPACT)
    try:
        writer.add(rows)
        return writer.finish()
    except LakeError:
        writer.abandon()
        raise


def _sorted_parts(store: Store, table: Table, files: Sequence[Live]) -> Iterable[pa.Table]:
    order: list[Any] = [(name, "ascending") for name in table.sort]
    if sum(one.rows for one in files) <= IN_MEMORY:
        yield pa.concat_tables(tables(store, files)).sort_by(order)
        return
    first = table.sort[0]
    for values in _together(pa.concat_tables(tables(store, files, [first]))):
        some = [part.filter(pc.is_in(part[first], values)) for part in tables(store, files)]
        yield pa.concat_tables(some).sort_by(order)


def _together(names: pa.Table) -> Iterable[pa.Array[Any]]:
    """Neighbours in the order of one column, as many as have not more rows than fit; a larger one alone."""
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
    """Delete files that no version younger than that refers to, and left-overs as old; how many, by table.

    deltalake knows whole hours: what is between two counts as the longer.
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
        with told(lake.below(name)):
            gone[name] = len(
                delta.vacuum(
                    retention_hours=math.ceil(older_s / 3600), dry_run=False, full=True,
                    enforce_retention_duration=False, commit_properties=properties(delta, table.app),
                )
            )  # fmt: skip
    return gone


class Expired(NamedTuple):
    """What was dropped of one table."""

    table: str
    days: int
    rows: int
    before: str


def expire(
    lake: Lake, older_s: float, names: Iterable[str] = ("events",), *, now: datetime | None = None
) -> list[Expired]:
    """Drop the days that are older as a whole; their files go with the next vacuum. Rollups stay."""
    now = now or datetime.now(UTC)
    # No day is older than 1970.
    oldest = now - timedelta(seconds=min(older_s, now.timestamp()))
    before, last = oldest.date().isoformat(), (oldest.date() - timedelta(days=1)).isoformat()
    return [_expired(lake, name, before, last) for name in names]


def _expired(lake: Lake, name: str, before: str, last: str) -> Expired:
    overtaken = 0
    while True:
        delta = lake.table(name)
        files = live(delta, until=last)
        done = Expired(name, len(by_day(files)), sum(one.rows for one in files), before)
        if delta is None or not files:
            return done
        try:
            commit(lake, name, delta, removal(files), expired=done.rows, before=before)
            return done
        except CommitConflictError:
            overtaken += 1
            if overtaken >= OVERTAKEN:
                raise
