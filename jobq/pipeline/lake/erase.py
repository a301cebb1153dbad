"""Erase messages from the lake: rewrite files without the erased rows, and delete old files and log entries.

Hashes of the erased ids stay in the lake, so that an ingest doesn't bring the messages back.

1. `selected` finds the message ids, topic messages and quarantine entries to erase.
2. `begin` commits their tombstones. After that, an ingest skips these messages.
3. `finish` rewrites each file that has rows with tombstones, deletes the old files and log entries, and records how
   many rows of each table were erased.

If a process dies after `begin`, the erasure is unfinished. The next `finish` completes it, using only the tombstones.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jobq.errors import ConfigError, LakeError, PipelineError
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import upkeep
from jobq.pipeline.lake.commit import (
    OVERTAKEN,
    CommitConflictError,
    Drop,
    commit_files,
    last_batch_again,
    record_of,
    taken_back,
)
from jobq.pipeline.lake.conditions import Condition, Sought, moment
from jobq.pipeline.lake.files import (
    COMPACTED,
    INGESTED,
    DataFile,
    DataFileWriter,
    LiveFile,
    live_files,
    row_groups,
    write_rows,
)
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.rollup import OPEN_FOLDER
from jobq.pipeline.lake.store import LakeStore, lake_errors, remove_files
from jobq.pipeline.lake.tables import (
    AUDIT,
    DEAD,
    ERASED,
    EVENTS,
    JOB_RUNS,
    QUARANTINE,
    ROLLUP,
    TABLES,
    TOPICS,
)
from jobq.pipeline.lake.tombstones import (
    AUDIT_TEXTS,
    NAMED,
    TombstoneFiles,
    Tombstones,
    hash_of,
    names_of_rows,
    tombstone_files,
)
from jobq.pipeline.schema import bases

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: Approximate bytes of files per unit, and maximum number of units between two commits.
UNIT_BYTES = 64 * 1024 * 1024
UNITS = 16
#: Tables to search for erased messages. Rows are erased, except in the audit log, whose rows lose only the mids.
SWEPT = (*NAMED, AUDIT.name)
#: Tables with contents, which `--arg` searches.
SEARCHED = (DEAD.name, TOPICS.name, QUARANTINE.name)


class Erasable(NamedTuple):
    """A message or entry to erase.

    Attributes:
        kind: `mid`, `message` of a topic, or `entry` of the quarantine.
        queue: Queue or topic; None for all queues.
    """

    kind: str
    queue: str | None
    name: str


@dataclass
class Selection:
    """The messages and entries to erase, and the number of their rows in each table.

    Attributes:
        unsearched: Number of messages whose content could not be searched, by table.
    """

    names: set[Erasable] = field(default_factory=set)
    unsearched: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)


class _SearchUnit(NamedTuple):
    table: str
    store: LakeStore
    files: tuple[LiveFile, ...]
    sought: Sought


class _EraseUnit(NamedTuple):
    table: str
    store: LakeStore
    files: tuple[LiveFile, ...]
    tombstones: TombstoneFiles | Tombstones


class _Searched(NamedTuple):
    names: tuple[Erasable, ...] = ()
    unsearched: int = 0
    failed: str = ""


class _Rewritten(NamedTuple):
    """A file with rows to erase, and the new files that contain its other rows."""

    old: LiveFile
    new: tuple[DataFile, ...]
    rows: int


class _RewriteResult(NamedTuple):
    files: tuple[_Rewritten, ...] = ()
    failed: str = ""


def selected(lake: Lake, engine: Engine, mids: Iterable[str], sought: Sought) -> Selection:
    """Select the messages and entries to erase: all `mids`, and everything with a row that matches `sought`.

    Mids are selected even if the lake doesn't have them. A queue's message is selected if one of its rows in events,
    job_runs or dead matches. If `sought` has an argument, only the tables in SEARCHED are searched.
    """
    chosen = Selection({Erasable("mid", sought.queue, mid) for mid in mids})
    if not sought.conditions and sought.argument is None:
        return chosen
    _check_columns(sought.conditions)
    for name in NAMED:
        names = {column.name for column in TABLES[name].columns}
        if any(condition.column not in names for condition in sought.conditions) or (
            sought.argument is not None and name not in SEARCHED
        ):
            continue
        files = live_files(lake.table(name))
        units = [_SearchUnit(name, lake.below(name), some, sought) for some in _grouped(files)]
        for answer in engine.run_units(_search, units, sum(file.rows for file in files)):
            if answer.failed:
                raise PipelineError(answer.failed)
            chosen.names.update(answer.names)
            if answer.unsearched:
                chosen.unsearched[name] += answer.unsearched
    return chosen


def _check_columns(conditions: Sequence[Condition]) -> None:
    columns = [column for name in NAMED for column in TABLES[name].columns]
    known = {column.name: column.type for column in columns if column.type != "map"}
    for condition in conditions:
        if condition.column not in known:
            raise ConfigError(
                f"column {condition.column!r} can't be in a condition, because no table has it or it contains maps; "
                f"use one of {', '.join(sorted(known))}"
            )
        if known[condition.column] == "timestamp":
            for text in condition.values:
                moment(condition.column, text)


def _grouped(files: Iterable[LiveFile]) -> Iterator[tuple[LiveFile, ...]]:
    some: list[LiveFile] = []
    size = 0
    for file in files:
        some.append(file)
        size += file.size
        if size >= UNIT_BYTES:
            yield tuple(some)
            some, size = [], 0
    if some:
        yield tuple(some)


def _search(unit: _SearchUnit) -> _Searched:
    kind, queue, parts = NAMED[unit.table]
    columns = {queue, *parts, *unit.sought.columns()}
    matches: set[Erasable] = set()
    unsearched = 0
    try:
        for file in unit.files:
            for rows in row_groups(unit.store, file, TABLES[unit.table], sorted(columns)):
                mask, skipped = unit.sought.mask(rows, queue)
                unsearched += skipped
                rows = rows.filter(mask)
                # A message has one id in all partitions of its queue.
                queues = bases(rows[queue]) if kind == "mid" else rows[queue]
                names = zip(queues.to_pylist(), names_of_rows(unit.table, rows).to_pylist())
                matches.update(Erasable(kind, *name) for name in names if name[1] is not None)
    except LakeError as error:
        return _Searched(failed=str(error))
    return _Searched(tuple(matches), unsearched)


def begin(lake: Lake, chosen: Iterable[Erasable], what: str) -> str:
    """Commit tombstones, and return the erasure's id.

    Args:
        what: Describes the request, without the values in it.
    """
    files = tombstone_files(lake)
    salt = files.load().salt if files else b""
    salt, erasure, at = salt or os.urandom(32), uuid.uuid4().hex, datetime.now(UTC)
    common = {"erasure": erasure, "at": at, "salt": salt}
    _append(lake, [{**common, "kind": "begun", "note": what}, *_tombstones(chosen, common)])
    return erasure


def _tombstones(chosen: Iterable[Erasable], common: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {**common, "kind": kind, "queue": queue, "hash": hash_of(common["salt"], kind, name)}
        for kind, queue, name in sorted(chosen, key=str)
    ]


def _append(lake: Lake, rows: list[dict[str, Any]]) -> None:
    files = write_rows(lake.below(ERASED.name), ERASED, pa.Table.from_pylist(rows, ERASED.schema()))
    delta = lake.made(ERASED.name)
    with taken_back(lake.below(ERASED.name), files):
        commit_files(lake, ERASED.name, delta, [file.action() for file in files])


def pending(lake: Lake) -> dict[str, str]:
    """Return the notes of unfinished erasures, by id."""
    files = tombstone_files(lake)
    return files.load().begun if files else {}


def counted(lake: Lake, engine: Engine, chosen: Iterable[Erasable] | None = None) -> dict[str, int]:
    """Count the rows with tombstones, by table. With `chosen`, count the rows that erasing `chosen` would remove."""
    marks: TombstoneFiles | Tombstones | None = tombstone_files(lake)
    if chosen is not None:
        salt = os.urandom(32)
        marks = Tombstones(
            [pa.Table.from_pylist(_tombstones(chosen, {"salt": salt}), ERASED.schema())]
        )
    counts = dict.fromkeys(SWEPT, 0)
    for name in SWEPT:
        if marks is None:
            break
        files = live_files(lake.table(name))
        units = [_EraseUnit(name, lake.below(name), some, marks) for some in _grouped(files)]
        for answer in engine.run_units(_count, units, sum(file.rows for file in files)):
            if isinstance(answer, str):
                raise PipelineError(answer)
            counts[name] += answer
    return counts


def _count(unit: _EraseUnit) -> int | str:
    try:
        marks = unit.tombstones.load()
        return sum(_erased_rows(unit, marks, file) for file in unit.files)
    except LakeError as error:
        return str(error)


def finish(
    lake: Lake, engine: Engine, *, alone: Callable[[], AbstractContextManager[None]] = nullcontext,
    enough: Callable[[], bool] = lambda: False,
) -> dict[str, int] | None:  # fmt: skip
    """Complete all unfinished erasures. Return the number of erased rows by table, or None if `enough()` stops it.

    Args:
        alone: Returns a context manager, such as a RepeatedLock, for each group of files.
    """
    erased = dict.fromkeys(SWEPT, 0)
    seen: set[tuple[tuple[str, ...], str]] = set()
    for name in SWEPT:
        for rows in _rewritten(lake, engine, name, seen, alone, enough):
            erased[name] += rows
    if enough():
        return None
    with alone():
        # A bucket has no lock, so an ingest may have added files. Another erasure may also have begun. It is then
        # recorded as done too, so all files are searched for its rows.
        for name in SWEPT:
            erased[name] += sum(_rewritten(lake, engine, name, seen, nullcontext, enough))
        if enough():
            return None
        if pending(lake):
            forget_rollups(lake)
        for name in TABLES:
            if name != ERASED.name:
                _purge(lake, name)
        at, note = datetime.now(UTC), json.dumps({"rows": erased})
        done = [{"erasure": erasure, "at": at, "kind": "done", "note": note} for erasure in pending(lake)]  # fmt: skip
        if done:
            _append(lake, done)
    return erased


def _rewritten(
    lake: Lake, engine: Engine, name: str, seen: set[tuple[tuple[str, ...], str]],
    alone: Callable[[], AbstractContextManager[None]], enough: Callable[[], bool],
) -> Iterator[int]:  # fmt: skip
    """Rewrite the files of a table, a few at a time. Yield the number of rows that each commit erased or redacted.

    Args:
        seen: Files already searched, each with the tombstone files it was compared with.
    """
    overtaken = 0
    while not enough():
        with alone():
            marks, delta = tombstone_files(lake), lake.table(name)
            if marks is None or delta is None:
                return
            files = [file for file in live_files(delta) if (marks.paths, file.path) not in seen]
            if not files:
                return
            delta = lake.made(name)
            groups = list(islice(_grouped(files), UNITS))
            units = [_EraseUnit(name, lake.below(name), some, marks) for some in groups]
            rows = sum(file.rows for some in groups for file in some)
            try:
                done = _commit(lake, name, delta, list(engine.run_units(_rewrite, units, rows)))
            except CommitConflictError:
                overtaken += 1
                if overtaken >= OVERTAKEN:
                    raise
                continue
        overtaken = 0
        seen.update((marks.paths, file.path) for some in groups for file in some)
        seen.update((marks.paths, file.path) for each in done for file in each.new)
        yield sum(each.rows for each in done)


def _commit(
    lake: Lake, name: str, delta: DeltaTable, answers: Sequence[_RewriteResult]
) -> list[_Rewritten]:
    done = [each for answer in answers for each in answer.files]
    store, new = lake.below(name), [file for each in done for file in each.new]
    failed = next((answer.failed for answer in answers if answer.failed), "")
    if failed:
        remove_files(store, [file.path for file in new])
        raise PipelineError(failed)
    if done:
        actions: list[Any] = [
            *upkeep.removal(each.old for each in done),
            *(file.action() for file in new),
        ]
        with taken_back(store, new):
            # Entries of the audit log stay, without the erased mids.
            rows = 0 if name == AUDIT.name else sum(each.rows for each in done)
            commit_files(lake, name, delta, actions, drop=Drop(erased=rows))
    return done


def _rewrite(unit: _EraseUnit) -> _RewriteResult:
    done: list[_Rewritten] = []
    try:
        marks = unit.tombstones.load()
        for file in unit.files:
            rows = _erased_rows(unit, marks, file)
            if rows:
                done.append(_Rewritten(file, tuple(_written(unit, marks, file)), rows))
    except LakeError as error:
        remove_files(unit.store, [new.path for each in done for new in each.new])
        return _RewriteResult(failed=str(error))
    return _RewriteResult(tuple(done))


def _erased_rows(unit: _EraseUnit, marks: Tombstones, file: LiveFile) -> int:
    """Count the file's rows that have a tombstone or, in the audit log and the quarantine, mention an erased mid."""
    if unit.table == AUDIT.name:
        columns = ["log", "queue", *AUDIT_TEXTS]
    else:
        _, queue, parts = NAMED[unit.table]
        columns = [queue, *parts, *(["content"] if unit.table == QUARANTINE.name else [])]
    masks = (
        marks.mask(unit.table, rows)
        for rows in row_groups(unit.store, file, TABLES[unit.table], columns)
    )
    return sum(pc.sum(mask.cast(pa.int64())).as_py() for mask in masks if mask is not None)


def _written(unit: _EraseUnit, marks: Tombstones, file: LiveFile) -> list[DataFile]:
    """Copy a file's rows, except erased rows, into new files in the same order."""
    prefix = file.path.rpartition("/")[2].partition("-")[0]
    form = (COMPACTED if file.is_compact else INGESTED)._replace(prefix=prefix)
    table = TABLES[unit.table]
    with DataFileWriter(unit.store, table, form) as writer:
        for rows in row_groups(unit.store, file, table):
            writer.add(marks.kept(unit.table, rows))
        return writer.finish()


def forget_rollups(lake: Lake) -> None:
    """Delete the saved state of the rollups, so that the next refresh recomputes them from the remaining events.

    Expired days keep their rows, because they can't be recomputed.
    """
    kept_from = record_of(lake.table(EVENTS.name), EVENTS.app).before
    for table in (ROLLUP, JOB_RUNS):
        delta = lake.table(table.name)
        if delta is None:
            continue
        state = record_of(delta, table.app)
        days = {day: rows for day, rows in state.facts.get("days", {}).items() if day < kept_from}
        after = replace(state, batch=state.batch + 1, facts={"days": days} if days else {})
        commit_files(lake, table.name, delta, [], after)
    _empty(lake.below(JOB_RUNS.name), OPEN_FOLDER)


def _empty(store: LakeStore, folder: str) -> None:
    from pyarrow.fs import FileSelector, FileType

    opened = store.files()
    with lake_errors(store):
        for info in opened.get_file_info(
            FileSelector(folder, allow_not_found=True, recursive=True)
        ):
            if info.type == FileType.File:
                opened.delete_file(info.path)


def _purge(lake: Lake, name: str) -> None:
    """Delete the files and log entries that only earlier versions of a table need."""
    delta, table = lake.table(name), TABLES[name]
    if delta is None:
        return
    store = lake.below(name)
    with lake_errors(store):
        # In a bucket, files in no commit may belong to an ingest that is running.
        delta.vacuum(
            retention_hours=0, dry_run=False, full=store.is_local, enforce_retention_duration=False,
            commit_properties=last_batch_again(delta, table.app),
        )  # fmt: skip
        commit_files(lake, name, lake.made(name), [], drop=Drop())
        delta = lake.made(name)
        delta.create_checkpoint()
        _forget_log(store, delta.version())


def _forget_log(store: LakeStore, version: int) -> None:
    """Delete log entries before this version, because it has a checkpoint."""
    from pyarrow.fs import FileSelector, FileType

    opened = store.files()
    for info in opened.get_file_info(FileSelector("_delta_log", recursive=True)):
        number = info.base_name.partition(".")[0]
        if info.type == FileType.File and number.isdigit() and int(number) < version:
            opened.delete_file(info.path)
