"""Return statistics of a lake, and check its files against its commits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from jobq.client.connection import Client
from jobq.durations import counted
from jobq.errors import JobqError
from jobq.pipeline import offsets
from jobq.pipeline.engine import WHERE, Engine
from jobq.pipeline.lake import erase
from jobq.pipeline.lake.commit import batches, offsets_after, state_of
from jobq.pipeline.lake.files import LiveFile, files_by_day, live_files
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.store import LakeStore, lake_errors
from jobq.pipeline.lake.tables import (
    AUDIT,
    DEAD,
    ERASED,
    EVENTS,
    QUARANTINE,
    TABLES,
    TOPICS,
    LakeTable,
    of_source,
)
from jobq.pipeline.offsets import parsed_id
from jobq.queue.directory import queue_names

if TYPE_CHECKING:
    from deltalake import DeltaTable


#: The columns that identify a row of a table.
KEYS = {
    EVENTS.name: ("queue", "finished_at", "entry_ms", "entry_seq"), TOPICS.name: ("topic", "index", "at"),
    DEAD.name: ("queue", "dead_id"), QUARANTINE.name: ("queue", "entry_id"), AUDIT.name: ("log", "entry_id"),
}  # fmt: skip


class TableStats(NamedTuple):
    """Statistics about one table.

    Attributes:
        lost: Number of entries trimmed before the ingest read them, by queue or topic.
    """

    table: str
    rows: int
    files: int
    bytes: int
    bytes_per_row: float
    first_day: str
    last_day: str
    batch: int
    expired: int
    lost: dict[str, int]


class LakeFinding(NamedTuple):
    """The result of one check.

    Attributes:
        level: `ok`, `note` or `fail`.
    """

    level: str
    table: str
    text: str


def stats(lake: Lake) -> list[TableStats]:
    """Return statistics about each table of the lake."""
    figures = []
    for name, table in TABLES.items():
        delta = lake.table(name)
        if delta is None:
            continue
        files, state = live_files(delta), state_of(lake, table)
        rows, size = sum(file.rows for file in files), sum(file.size for file in files)
        figures.append(
            TableStats(
                name, rows, len(files), size, round(size / rows, 2) if rows else 0.0,
                files[0].dt if files else "", files[-1].dt if files else "", state.batch, state.expired,
                dict(state.lost),
            )
        )  # fmt: skip
    return figures


class QueueBacklog(NamedTuple):
    """How far the lake is behind a queue's event stream.

    Attributes:
        id and n: Offset after the last ingested event.
        backlog: Number of events that haven't been ingested yet.
        dropped: Number of events trimmed before they were ingested.
        overruns_in_s: Predicted seconds until the stream drops events before they are ingested. None if all events were
            ingested, or if the lake has none of the queue's events.
        behind_s: Age of the lake's latest event.
    """

    queue: str
    id: str
    n: int
    backlog: int
    dropped: int
    overruns_in_s: float | None = None
    behind_s: float | None = None


def backlog(
    lake: Lake,
    client: Client,
    tolerating: Callable[[str], AbstractContextManager[object]] = nullcontext,
    source: str = "",
) -> list[QueueBacklog]:
    """Return the backlog of each queue.

    Args:
        tolerating: Returns a context manager for each queue. If it suppresses an error, the queue is skipped.
        source: Name of the server in the lake.
    """
    places = of_source(source, state_of(lake, EVENTS).places)
    backlogs = []
    queues = sorted({*queue_names(client), *places})
    streams = [offsets.events_key(client.namespace, queue) for queue in queues]
    tails: dict[str, offsets.LogTail] = {}
    for queue, tail in zip(queues, offsets.events_tails(client, streams), strict=True):
        with tolerating(queue):
            if isinstance(tail, JobqError):
                raise tail
            tails[queue] = tail
    near = offsets.overruns(client, places, tails)
    for queue, now in tails.items():
        place = places.get(queue, offsets.LogOffset())
        if offsets.is_remade(place, now):
            place = now.oldest
        # A failover may have lost entries that were already read.
        place = place._replace(n=min(place.n, now.n))
        gone = max(0, min(now.n, now.dropped) - place.n) if queue in places else 0
        behind = now.n - place.n if queue in places else now.length
        queue_backlog = QueueBacklog(queue, place.id, place.n, behind, gone)
        if queue in near:
            seconds, lag_s = near[queue].seconds, near[queue].lag_s
            queue_backlog = queue_backlog._replace(
                overruns_in_s=round(seconds, 1), behind_s=round(lag_s, 1)
            )
        backlogs.append(queue_backlog)
    return backlogs


def check(lake: Lake, engine: Engine | None = None) -> Iterator[LakeFinding]:
    """Check every file and every commit of a lake, and yield the findings."""
    engine = engine or Engine("local")
    for name, table in TABLES.items():
        delta = lake.table(name)
        if delta is None:
            continue
        files = live_files(delta)
        store, rows = lake.below(name), sum(file.rows for file in files)
        units = [FilesToCheck(store, tuple(some)) for some in _shares(files)]
        wrong = [fault for result in engine.run_units(checked, units, rows) for fault in result]
        yield from (LakeFinding("fail", name, text) for _, text in wrong)
        if not wrong:
            where = WHERE[engine.chosen(rows)]
            yield LakeFinding(
                "ok",
                name,
                f"{counted(len(files), 'file')} with {counted(rows, 'row')}, read {where}{engine.rule}",
            )
        yield from _unknown_files(store, delta, name)
        if name in KEYS:
            unread = {path for path, _ in wrong}
            yield from _unique(engine, store, table, [f for f in files if f.path not in unread])
            yield from _commits(lake, delta, table, rows)
    yield from _erasures(lake, engine)


#: Maximum number of unknown files to name.
_NAMED = 5


def _unknown_files(store: LakeStore, delta: DeltaTable, name: str) -> Iterator[LakeFinding]:
    with lake_errors(store):
        unneeded, replaced = (
            set(
                delta.vacuum(
                    retention_hours=0, dry_run=True, full=full, enforce_retention_duration=False
                )
            )
            for full in (True, False)
        )
    paths = sorted(unneeded - replaced)
    if paths:
        named = ", ".join(paths[:_NAMED]) + (" and others" if len(paths) > _NAMED else "")
        yield LakeFinding(
            "note", name, f"{counted(len(paths), 'file')} in no commit: {named}. They come from running or "
            "interrupted writes ('jobq lake vacuum' deletes them), or their commit was lost",
        )  # fmt: skip


def _erasures(lake: Lake, engine: Engine) -> Iterator[LakeFinding]:
    remedy = "run 'jobq lake erase --resume'"
    for _ in erase.pending(lake):
        text = f"an erasure is unfinished; {remedy}"
        yield LakeFinding("fail", ERASED.name, text)
    for name, rows in erase.counted(lake, engine).items():
        if rows:
            yield LakeFinding(
                "fail", name, f"{counted(rows, 'row')} should have been erased; {remedy}"
            )


class FilesToCheck(NamedTuple):
    """Files that a task checks."""

    store: LakeStore
    files: tuple[LiveFile, ...]


#: Approximate bytes of files per task.
_SHARE = 64 * 1024 * 1024


def _shares(files: Iterable[LiveFile]) -> Iterator[list[LiveFile]]:
    some: list[LiveFile] = []
    for next_file in files:
        some.append(next_file)
        if sum(file.size for file in some) >= _SHARE:
            yield some
            some = []
    if some:
        yield some


def checked(unit: FilesToCheck) -> list[tuple[str, str]]:
    """Return the path and the problem of each file that can't be read, or whose row count differs from its commit's."""
    opened, wrong = unit.store.files(), []
    for file in unit.files:
        try:
            with opened.open_input_file(file.path) as source:
                rows = pq.ParquetFile(source).metadata.num_rows
        except (OSError, ValueError) as error:
            wrong.append((file.path, f"{file.path} can't be read: {error}"))
            continue
        if rows != file.rows:
            text = f"{file.path} has {counted(rows, 'row')}, but its commit records {file.rows:,}"
            wrong.append((file.path, text))
    return wrong


class DuplicateSearch(NamedTuple):
    """A search for rows with the same key, within one part of a day.

    Attributes:
        files: Files of the day.
        since_us and until_us: Bounds of the part, epoch µs.
    """

    table: str
    store: LakeStore
    files: tuple[LiveFile, ...]
    since_us: int
    until_us: int


def doubled(unit: DuplicateSearch) -> int | None:
    """Count the duplicate rows in one part of a day. Return None if a file can't be read.

    Grouping needs five times the memory of the rows. So the rows are divided by time and grouped in several steps.
    """
    table, keys = TABLES[unit.table], list(KEYS[unit.table])
    at, schema = pc.field(table.day_of), table.schema()
    since, until = (
        pa.scalar(us, pa.int64()).cast(schema.field(table.day_of).type)
        for us in (unit.since_us, unit.until_us)
    )
    try:
        paths = [file.path for file in unit.files]
        dataset = ds.dataset(paths, schema, format="parquet", filesystem=unit.store.files())
        columns = list(dict.fromkeys([*keys, table.day_of]))
        rows = dataset.to_table(columns, filter=(at >= since) & (at < until))
    except (OSError, ValueError):
        return None
    times = rows[table.day_of].cast(pa.int64()).to_numpy() // 1000
    # An entry can be in the quarantine twice, with two times, so all entries are grouped together.
    parts = 1 if table is QUARANTINE else math.ceil(rows.num_rows / GROUPED_ROWS)
    some = (rows.filter(pa.array(times % parts == part)) for part in range(parts))
    return rows.num_rows - sum(subset.group_by(keys).aggregate([]).num_rows for subset in some)


def _unique(
    engine: Engine, store: LakeStore, table: LakeTable, files: Sequence[LiveFile]
) -> Iterator[LakeFinding]:
    units = [
        unit for some in files_by_day(files).values() for unit in _searches(store, table, some)
    ]
    by_day: dict[str, int] = {}
    results = engine.run_units(doubled, units, sum(file.rows for file in files))
    for unit, count in zip(units, results, strict=True):
        day = unit.files[0].dt
        if count is None:
            yield LakeFinding("fail", table.name, f"{day}: a file can't be read")
        by_day[day] = by_day.get(day, 0) + (count or 0)
    for day, count in by_day.items():
        if count:
            yield LakeFinding("fail", table.name, f"{day}: {counted(count, 'duplicate row')}")
    if not any(by_day.values()):
        yield LakeFinding("ok", table.name, f"all rows differ in {', '.join(KEYS[table.name])}")


#: Approximate number of rows that a search keeps in memory, and of rows grouped together. A file's time is divided into
#: this many steps, at which a search can end.
SEARCH_ROWS, GROUPED_ROWS, _STEPS = 4_000_000, 250_000, 10


def _searches(
    store: LakeStore, table: LakeTable, files: Sequence[LiveFile]
) -> Iterator[DuplicateSearch]:
    """Divide a day into parts of about SEARCH_ROWS rows. Duplicates have the same time, so they are in one part."""
    high = max(file.high_us for file in files)
    if sum(file.rows for file in files) <= SEARCH_ROWS or table is QUARANTINE:
        # An entry can be in the quarantine twice, with two times.
        yield DuplicateSearch(table.name, store, tuple(files), *_EVER)
        return
    # Each file's rows are assumed to be evenly distributed over its time.
    ends = sorted(
        (file.low_us + (file.high_us - file.low_us) * part // _STEPS, file.rows / _STEPS)
        for file in files
        for part in range(1, _STEPS + 1)
    )
    since, rows = _EVER[0], 0.0
    for at, count in ends:
        rows += count
        if rows >= SEARCH_ROWS and since < at < high:
            yield _search(store, table, files, since, at)
            since, rows = at, 0.0
    yield _search(store, table, files, since, _EVER[1])


_EVER = (-(2**62), 2**62)


def _search(
    store: LakeStore, table: LakeTable, files: Sequence[LiveFile], since_us: int, until_us: int
) -> DuplicateSearch:
    some = [file for file in files if file.low_us < until_us and file.high_us >= since_us]
    return DuplicateSearch(table.name, store, tuple(some), since_us, until_us)


def _commits(lake: Lake, delta: DeltaTable, table: LakeTable, rows: int) -> Iterator[LakeFinding]:
    state = state_of(lake, table)
    if state.rows - state.expired - state.erased != rows:
        erased = f", and {state.erased:,} were erased" if state.erased else ""
        yield LakeFinding(
            "fail", table.name,
            f"{counted(rows, 'row')}, but {state.rows:,} were committed and {state.expired:,} expired{erased}",
        )  # fmt: skip
    wrong = list(_backwards(lake.below(table.name), delta))
    yield from (LakeFinding("fail", table.name, text) for text in wrong)
    if not wrong and state.batch:
        yield LakeFinding(
            "ok", table.name, f"{counted(state.batch, 'batch')}, offsets never go backwards"
        )
    for name, number in state.lost.items():
        yield LakeFinding(
            "note", table.name, f"{name}: {number:,} entries were dropped before they were read"
        )


def _backwards(store: LakeStore, delta: DeltaTable) -> Iterator[str]:
    """Yield a text for each commit that lowers an offset or skips a batch number.

    Only a recreated stream may have a lower offset. Offsets that are no longer stored aren't checked.
    """
    told = ((batch, offsets_after(store, batch)) for batch in batches(delta))
    for (before, then), (after, now) in pairwise(told):
        if after.batch != before.batch + 1:
            yield f"batch {after.batch} follows batch {before.batch}"
        if then is None or now is None:
            continue
        remade, was, reached = set(after.facts.get("remade", ())), then[0], now[0]
        for name in was.keys() & reached.keys() - remade:
            # Compared by id alone, because a server that lost entries after they were read has a lower count.
            if parsed_id(reached[name].id) < parsed_id(was[name].id):
                yield f"batch {after.batch}: {name} goes back from {was[name]} to {reached[name]}"
