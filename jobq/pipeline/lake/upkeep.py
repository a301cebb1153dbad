"""Compact the files of many batches, delete unused files, drop old days, and set marks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jobq.errors import ConfigError, JobqError
from jobq.pipeline.engine import Engine, gc_off, raise_first
from jobq.pipeline.lake.commit import (
    OVERTAKEN,
    CommitConflictError,
    Drop,
    commit_files,
    forget_offsets,
    last_batch_again,
    record_of,
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
from jobq.pipeline.lake.tables import EVENTS, JOB_RUNS, MARKS, ROLLUP, TABLES, LakeTable

if TYPE_CHECKING:
    from deltalake.transaction import RemoveAction

TARGET = 128 * 1024 * 1024
#: Approximate maximum number of rows in a group of files, which one process sorts in memory.
GROUP_ROWS = 2_000_000
#: A compact file smaller than a full file divided by this number is compacted again, with other files.
SMALL = 4
#: Tables whose own refresh replaces their files.
_REFRESHED = (JOB_RUNS.name, ROLLUP.name)
#: Minimum age for vacuum in a bucket, because an ingest may still be writing a younger file.
MIN_S = 3600.0


class Compacted(NamedTuple):
    """Result of compacting a day.

    Attributes:
        engine: local or spark.
    """

    table: str
    dt: str
    rows: int
    files_before: int
    files: int
    bytes_before: int
    bytes: int
    engine: str = "local"

    def plus(self, other: Compacted) -> Compacted:
        """Add the figures of two parts of the same day."""
        return other._replace(
            rows=self.rows + other.rows, files_before=self.files_before + other.files_before,
            files=self.files + other.files, bytes_before=self.bytes_before + other.bytes_before,
            bytes=self.bytes + other.bytes,
        )  # fmt: skip


def removal(files: Iterable[LiveFile], *, data_change: bool = True) -> list[RemoveAction]:
    """Return the actions that remove files."""
    from deltalake.transaction import RemoveAction

    now = time.time_ns() // 1_000_000
    return [RemoveAction(file.path, data_change, now, file.size, {"dt": file.dt}) for file in files]


def compact(
    lake: Lake, names: Iterable[str] = tuple(TABLES), *, engine: Engine | None = None, target: int = TARGET,
    on_compacted: Callable[[Compacted], None] = lambda _: None, enough: Callable[[], bool] = lambda: False,
    alone: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[Compacted]:  # fmt: skip
    """Sort the rows of uncompacted files, and join small files of the same day. Each group of files has its own commit.

    Args:
        target: Approximate size of a new file in bytes.
        alone: Returns a context manager, such as a RepeatedLock, for each step. A step compacts one
            group of files per core.
        enough: Called before each step. If it returns true, compaction stops.
    """
    compaction = _Compaction(lake, engine or Engine("local"), target)
    done: list[Compacted] = []
    for name in names:
        if name not in _REFRESHED:
            for compacted in compaction.table(TABLES[name], enough, alone):
                done.append(compacted)
                on_compacted(compacted)
    return done


class FileGroup(NamedTuple):
    """Files of one day that a task sorts and joins.

    Attributes:
        per_file: Maximum number of rows in a new file.
    """

    table: str
    store: LakeStore
    files: tuple[LiveFile, ...]
    per_file: int


class WrittenFiles(NamedTuple):
    """The new files of a group.

    Attributes:
        failed: Class and message of the error. After an error, `files` is empty.
    """

    files: tuple[DataFile, ...] = ()
    failed: tuple[str, str] | None = None


def rewritten(group: FileGroup) -> WrittenFiles:
    """Write the rows of a group, in the table's order, into new files. A JobqError is returned in the result."""
    table, written = TABLES[group.table], list[DataFile]()
    try:
        with gc_off():
            rows = pa.concat_tables(rows_of_files(group.store, group.files, table=table))
            places = _sorted_places(rows, table)
            for first in range(0, rows.num_rows, group.per_file):
                part = rows.take(places.slice(first, group.per_file))
                written += write_rows(group.store, table, part, COMPACTED)
        return WrittenFiles(tuple(written))
    except JobqError as error:
        remove_files(group.store, [file.path for file in written])
        return WrittenFiles(failed=(type(error).__name__, str(error)))


def _sorted_places(rows: pa.Table, table: LakeTable) -> pa.Array[Any]:
    """Return the row indices that put the rows into the table's order.

    If an event has no job, use the job from another event of the same message. This keeps the message's events close
    together, so that equal mids compress well.
    """
    keys: dict[str, Any] = {name: rows[name] for name in table.sort}
    if table is EVENTS:
        job = rows["job"].combine_chunks()
        named, nameless = rows.select(["mid", "job"]).filter(pc.is_valid(job)), pc.is_null(job)
        jobs: Any = named["job"].take(pc.index_in(rows["mid"].filter(nameless), named["mid"]))
        keys["job"] = pc.replace_with_mask(job, nameless, jobs.combine_chunks())
    order: list[Any] = [(name, "ascending") for name in table.sort]
    return pc.sort_indices(pa.table(keys), order)


class _Compaction:
    def __init__(self, lake: Lake, engine: Engine, target: int) -> None:
        self._lake, self._engine, self._target = lake, engine, target

    def table(
        self, table: LakeTable, enough: Callable[[], bool], alone: Callable[[], AbstractContextManager[None]]
    ) -> Iterator[Compacted]:  # fmt: skip
        """Compact a table. Yield a result for each day.

        If other processes change files during the compaction, the compaction is repeated.
        """
        for _ in range(OVERTAKEN):
            groups = self._groups(table, live_files(self._lake.table(table.name)))
            rows = sum(file.rows for group in groups for file in group.files)
            width, nlost = self._engine.width(rows), 0
            days: dict[str, Compacted] = {}
            for first in range(0, len(groups), width):
                if enough():
                    break
                some = groups[first : first + width]
                with alone():
                    for part in self._some(table, some, rows):
                        days[part.dt] = days[part.dt].plus(part) if part.dt in days else part
                        nlost += not part.rows
                left = {group.files[0].dt for group in groups[first + width :]}
                yield from (days.pop(day) for day in sorted(days.keys() - left) if days[day].rows)
            yield from (compacted for compacted in days.values() if compacted.rows)
            if not nlost or enough():
                return
        raise CommitConflictError(
            f"other processes keep changing {self._lake.below(table.name).uri}; try again"
        )

    def _groups(self, table: LakeTable, files: Sequence[LiveFile]) -> list[FileGroup]:
        """Divide each day's uncompacted or small files into groups, in order of time."""
        groups: list[list[LiveFile]] = []
        for day in files_by_day(files).values():
            todo = [file for file in day if not file.is_compact or self._is_small(file)]
            if all(file.is_compact for file in todo) and len(todo) < 2:
                continue
            groups.append([])
            size = rows = 0
            for file in sorted(todo, key=lambda file: (file.low_us, file.path)):
                size, rows = size + file.size, rows + file.rows
                if groups[-1] and (size > self._target or rows > GROUP_ROWS):
                    groups.append([])
                    size, rows = file.size, file.rows
                groups[-1].append(file)
        store = self._lake.below(table.name)
        return [
            FileGroup(table.name, store, tuple(group), self._per_file(group))
            for group in groups
            if len(group) > 1 or not group[0].is_compact
        ]

    def _is_small(self, live_file: LiveFile) -> bool:
        return live_file.size * SMALL < self._target and live_file.rows * SMALL < GROUP_ROWS

    def _per_file(self, group: Sequence[LiveFile]) -> int:
        size = sum(file.size for file in group)
        return max(1, sum(file.rows for file in group) * self._target // max(1, size))

    def _some(
        self, table: LakeTable, groups: Sequence[FileGroup], rows: int
    ) -> Iterator[Compacted]:
        """Rewrite and commit groups. If another process has changed a group's files, yield a result without rows."""
        delta = self._lake.made(table.name)
        there = {file.path for file in live_files(delta)}
        todo = [group for group in groups if there.issuperset(file.path for file in group.files)]
        yield from (_nothing_of(group) for group in groups if group not in todo)
        results = list(self._engine.run_units(rewritten, todo, rows))
        try:
            raise_first([result.failed for result in results])
        except JobqError:
            store = self._lake.below(table.name)
            remove_files(store, [file.path for result in results for file in result.files])
            raise
        for group, result in zip(todo, results, strict=True):
            yield self._committed(table, group, result.files, self._engine.chosen(rows))

    def _committed(
        self, table: LakeTable, group: FileGroup, files: Sequence[DataFile], engine: str
    ) -> Compacted:
        delta = self._lake.made(table.name)
        there = {file.path for file in live_files(delta, group.files[0].dt, group.files[0].dt)}
        if not there.issuperset(file.path for file in group.files):
            remove_files(group.store, [file.path for file in files])
            return _nothing_of(group)
        actions: list[Any] = [
            *removal(group.files, data_change=False),
            *(file.action(data_change=False) for file in files),
        ]
        try:
            with taken_back(group.store, files):
                commit_files(self._lake, table.name, delta, actions)
        except CommitConflictError:
            return _nothing_of(group)
        return Compacted(
            table.name, group.files[0].dt, sum(file.rows for file in group.files), len(group.files), len(files),
            sum(file.size for file in group.files), sum(file.size for file in files), engine,
        )  # fmt: skip


def _nothing_of(group: FileGroup) -> Compacted:
    return Compacted(group.table, group.files[0].dt, 0, 0, 0, 0, 0)


def vacuum(lake: Lake, older_s: float) -> dict[str, int]:
    """Delete files that no version of the last `older_s` seconds uses; return their number by table.

    deltalake accepts only whole hours, so `older_s` is rounded up.
    """
    if not lake.store.is_local and older_s < MIN_S:
        raise ConfigError(
            f"older={older_s:g}s would delete files that an ingest is writing; it must be at least 1h"
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
        delta = lake.made(name)
        gone[name] += forget_offsets(lake.below(name), record_of(delta, table.app), older_s)
    return gone


class Expired(NamedTuple):
    """The result of expiring one table."""

    table: str
    days: int
    rows: int
    before: str


def expire(
    lake: Lake, older_s: float, names: Iterable[str] = ("events",), *, now: datetime | None = None,
    first: Callable[[str], object] = lambda before: None,
) -> list[Expired]:  # fmt: skip
    """Drop the rows of days that ended more than `older_s` seconds ago. A later vacuum deletes the files.

    Expiring `events` doesn't remove rows from the rollups.

    Args:
        first: Called with the first remaining day, before events are dropped. If the call fails, no events are dropped.
    """
    now = now or datetime.now(UTC)
    # Days before 1970 don't exist.
    oldest = now - timedelta(seconds=min(older_s, now.timestamp()))
    before, last = oldest.date().isoformat(), (oldest.date() - timedelta(days=1)).isoformat()
    return [
        _expired(lake, name, before, last, first if name == EVENTS.name else _nothing_first)
        for name in names
    ]


def _nothing_first(before: str) -> None:
    """Do nothing, because no rollup counts the rows of this table."""


def _expired(
    lake: Lake, name: str, before: str, last: str, first: Callable[[str], object]
) -> Expired:
    overtaken = 0
    while True:
        delta = lake.table(name)
        files = live_files(delta, until=last)
        done = Expired(name, len(files_by_day(files)), sum(file.rows for file in files), before)
        if delta is None or not files:
            return done
        # Files added after this listing aren't dropped.
        first(before)
        try:
            commit_files(lake, name, delta, removal(files), drop=Drop(done.rows, before))
            return done
        except CommitConflictError:
            overtaken += 1
            if overtaken >= OVERTAKEN:
                raise


def mark(lake: Lake, name: str, at: datetime | None = None) -> datetime:
    """Store a mark, such as a deployment, with its name and its time (by default now). Return the time."""
    if not name.strip() or len(name) > 200 or not name.isprintable():
        raise ConfigError(f"mark {name!r} is invalid; use 1 to 200 printable characters")
    at = at or datetime.now(UTC)
    rows = pa.Table.from_pylist([{"name": name, "at": at}], MARKS.schema())
    files = write_rows(lake.below(MARKS.name), MARKS, rows)
    commit_files(lake, MARKS.name, lake.made(MARKS.name), [file.action() for file in files])
    return at


def marks(lake: Lake) -> list[tuple[str, datetime]]:
    """Return all marks, oldest first. If a name is repeated, reports use its latest mark."""
    rows = [
        (row["name"], row["at"].astimezone(UTC))
        for stored in stored_rows(lake, MARKS)
        for row in stored.to_pylist()
    ]
    return sorted(rows, key=lambda row: (row[1], row[0]))
