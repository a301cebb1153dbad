"""Statistics of a lake, and a check of its files against its commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.parquet as pq

from jobq.client.connection import Client
from jobq.pipeline import offsets
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import erase
from jobq.pipeline.lake.commit import state_of, states
from jobq.pipeline.lake.files import LiveFile, files_by_day, live_files, rows_of_files
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.store import LakeStore
from jobq.pipeline.lake.tables import DEAD, ERASED, EVENTS, QUARANTINE, TABLES, TOPICS, LakeTable
from jobq.pipeline.offsets import parsed_id
from jobq.queue.directory import queue_names

if TYPE_CHECKING:
    from deltalake import DeltaTable


#: The columns that identify a row of a table.
KEYS = {
    EVENTS.name: ("queue", "finished_at", "entry_ms", "entry_seq"), TOPICS.name: ("topic", "index", "at"),
    DEAD.name: ("queue", "dead_id"), QUARANTINE.name: ("queue", "entry_id"),
}  # fmt: skip


class TableStats(NamedTuple):
    """The figures of one table. lost: entries trimmed before they were read, by queue or topic."""

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
    """The result of one check. level: ok, note or fail."""

    level: str
    table: str
    text: str


def stats(lake: Lake) -> list[TableStats]:
    """Return the figures of each table."""
    found = []
    for name, table in TABLES.items():
        delta = lake.table(name)
        if delta is None:
            continue
        files, state = live_files(delta), state_of(delta, table.app)
        rows, size = sum(one.rows for one in files), sum(one.size for one in files)
        found.append(
            TableStats(
                name, rows, len(files), size, round(size / rows, 2) if rows else 0.0,
                files[0].dt if files else "", files[-1].dt if files else "", state.batch, state.expired,
                dict(state.lost),
            )
        )  # fmt: skip
    return found


class QueueBacklog(NamedTuple):
    """How far the lake is behind one queue's events. dropped: how many of them were trimmed."""

    queue: str
    id: str
    n: int
    backlog: int
    dropped: int


def backlog(
    lake: Lake,
    client: Client,
    tolerating: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> list[QueueBacklog]:
    """Return the backlog of each queue. tolerating: a context per queue; an error it swallows skips the queue."""

    places = state_of(lake.table(EVENTS.name), EVENTS.app).places
    found = []
    for queue in sorted({*queue_names(client), *places}):
        now = None
        with tolerating(queue):
            now = offsets.events_tail(client, offsets.events_key(client.namespace, queue))
        if now is None:
            continue
        place = places.get(queue, offsets.LogOffset())
        if offsets.is_remade(place, now):
            place = now.oldest
        # A failover may have lost entries that were read already.
        place = place._replace(n=min(place.n, now.n))
        gone = max(0, min(now.n, now.dropped) - place.n) if queue in places else 0
        behind = now.n - place.n if queue in places else now.length
        found.append(QueueBacklog(queue, place.id, place.n, behind, gone))
    return found


def check(lake: Lake) -> Iterator[LakeFinding]:
    """Check every file and every commit."""
    for name, table in TABLES.items():
        delta = lake.table(name)
        if delta is None:
            continue
        files = live_files(delta)
        yield from _files(lake.below(name), table, files)
        if name in KEYS:
            yield from _unique(lake.below(name), table, files)
            yield from _commits(delta, table, sum(one.rows for one in files))
    yield from _erasures(lake, Engine("local"))


def _erasures(lake: Lake, engine: Engine) -> Iterator[LakeFinding]:
    remedy = "run 'jobq lake erase --resume'"
    for _ in erase.pending(lake):
        text = f"an erasure was begun and isn't done; {remedy}"
        yield LakeFinding("fail", ERASED.name, text)
    for name, rows in erase.counted(lake, engine).items():
        if rows:
            yield LakeFinding("fail", name, f"{rows:,} rows are erased ones; {remedy}")


def _files(store: LakeStore, table: LakeTable, files: Sequence[LiveFile]) -> Iterator[LakeFinding]:
    opened, wrong = store.files(), 0
    for one in files:
        try:
            with opened.open_input_file(one.path) as source:
                rows = pq.ParquetFile(source).metadata.num_rows
        except (OSError, ValueError) as error:
            wrong += 1
            yield LakeFinding("fail", table.name, f"{one.path} can't be read: {error}")
            continue
        if rows != one.rows:
            wrong += 1
            yield LakeFinding(
                "fail", table.name, f"{one.path} has {rows:,} rows, its commit says {one.rows:,}"
            )
    if not wrong:
        total = sum(one.rows for one in files)
        yield LakeFinding("ok", table.name, f"{len(files):,} files with {total:,} rows")


def _unique(store: LakeStore, table: LakeTable, files: Sequence[LiveFile]) -> Iterator[LakeFinding]:
    import pyarrow as pa

    keys, doubled = list(KEYS[table.name]), 0
    for day, some in files_by_day(files).items():
        try:
            rows = pa.concat_tables(rows_of_files(store, some, keys))
        except Exception:  # noqa: S112 - a file that can't be read is reported already
            continue
        counted = rows.num_rows - rows.group_by(keys).aggregate([]).num_rows
        doubled += counted
        if counted:
            yield LakeFinding(
                "fail", table.name, f"{day}: {counted:,} rows are there more than once"
            )
    if not doubled:
        yield LakeFinding("ok", table.name, f"no two rows have the same {', '.join(keys)}")


def _commits(delta: DeltaTable, table: LakeTable, rows: int) -> Iterator[LakeFinding]:
    state = state_of(delta, table.app)
    if state.rows - state.expired - state.erased != rows:
        erased = f", and {state.erased:,} were erased" if state.erased else ""
        yield LakeFinding(
            "fail", table.name,
            f"{rows:,} rows, but {state.rows:,} were committed and {state.expired:,} expired{erased}",
        )  # fmt: skip
    wrong = list(_backwards(delta))
    yield from (LakeFinding("fail", table.name, text) for text in wrong)
    if not wrong and state.batch:
        yield LakeFinding("ok", table.name, f"{state.batch:,} batches, offsets only ever forward")
    for name, number in state.lost.items():
        yield LakeFinding(
            "note", table.name, f"{name}: {number:,} entries were dropped before they were read"
        )


def _backwards(delta: DeltaTable) -> Iterator[str]:
    """Yield commits whose offsets are before those of an earlier commit, although no stream was recreated."""
    for before, after in pairwise(states(delta)):
        if after.batch != before.batch + 1:
            yield f"batch {after.batch} follows batch {before.batch}"
        remade = set(after.facts.get("remade", ()))
        for name in before.places.keys() & after.places.keys() - remade:
            was, now = before.places[name], after.places[name]
            # Compared by id alone: a server that lost entries after they were read has a lower count.
            if parsed_id(now.id) < parsed_id(was.id):
                yield f"batch {after.batch}: {name} goes back from {was} to {now}"
