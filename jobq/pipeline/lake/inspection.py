"""What a lake holds, and whether it holds what its commits say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq

from jobq.pipeline import offsets
from jobq.pipeline.lake.commit import KEY, state_of
from jobq.pipeline.lake.live import Live, by_day, live, tables
from jobq.pipeline.lake.place import Lake
from jobq.pipeline.lake.store import Store
from jobq.pipeline.lake.tables import DEAD, EVENTS, QUARANTINE, TABLES, TOPICS, Table
from jobq.pipeline.offsets import from_plain, parsed

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from jobq.client.connection import Client

#: What no two rows of a table have in common.
KEYS = {
    EVENTS.name: ("queue", "finished_at", "entry_ms", "entry_seq"), TOPICS.name: ("topic", "index", "at"),
    DEAD.name: ("queue", "dead_id"), QUARANTINE.name: ("queue", "entry_id"),
}  # fmt: skip


class Stats(NamedTuple):
    """One table in numbers. lost: entries dropped before they were read, by queue or topic."""

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


class Finding(NamedTuple):
    """One thing that was looked at. level: ok, note or fail."""

    level: str
    table: str
    text: str


def stats(lake: Lake) -> list[Stats]:
    """The tables there are."""
    found = []
    for name, table in TABLES.items():
        delta = lake.table(name)
        if delta is None:
            continue
        files, state = live(delta), state_of(delta, table.app)
        rows, size = sum(one.rows for one in files), sum(one.size for one in files)
        found.append(
            Stats(
                name, rows, len(files), size, round(size / rows, 2) if rows else 0.0,
                files[0].dt if files else "", files[-1].dt if files else "", state.batch, state.expired,
                dict(state.lost),
            )
        )  # fmt: skip
    return found


class Backlog(NamedTuple):
    """How far the lake is behind one queue's events. dropped: of those the ones no longer there."""

    queue: str
    id: str
    n: int
    backlog: int
    dropped: int


def backlog(
    lake: Lake,
    client: Client,
    tolerating: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> list[Backlog]:
    """What is still to be read, by queue. tolerating: entered for each; what it doesn't raise leaves that one out."""
    from jobq.queue.directory import queue_names

    places = state_of(lake.table(EVENTS.name), EVENTS.app).places
    found = []
    for queue in sorted({*queue_names(client), *places}):
        now = None
        with tolerating(queue):
            now = offsets.tail(client, offsets.events_key(client.namespace, queue))
        if now is None:
            continue
        place = places.get(queue, offsets.Place())
        if offsets.is_remade(place, now):
            place = now.oldest
        # A failover may have lost entries that were read already.
        place = place._replace(n=min(place.n, now.n))
        gone = max(0, min(now.n, now.dropped) - place.n) if queue in places else 0
        behind = now.n - place.n if queue in places else now.length
        found.append(Backlog(queue, place.id, place.n, behind, gone))
    return found


def check(lake: Lake) -> Iterator[Finding]:
    """Look at every file and every commit there is."""
    for name, table in TABLES.items():
        delta = lake.table(name)
        if delta is None:
            continue
        files = live(delta)
        yield from _files(lake.below(name), table, files)
        if name in KEYS:
            yield from _unique(lake.below(name), table, files)
            yield from _commits(delta, table, sum(one.rows for one in files))


def _files(store: Store, table: Table, files: Sequence[Live]) -> Iterator[Finding]:
    opened, wrong = store.files(), 0
    for one in files:
        try:
            with opened.open_input_file(one.path) as source:
                rows = pq.ParquetFile(source).metadata.num_rows
        except (OSError, ValueError) as error:
            wrong += 1
            yield Finding("fail", table.name, f"{one.path} can't be read: {error}")
            continue
        if rows != one.rows:
            wrong += 1
            yield Finding(
                "fail", table.name, f"{one.path} has {rows:,} rows, its commit says {one.rows:,}"
            )
    if not wrong:
        total = sum(one.rows for one in files)
        yield Finding("ok", table.name, f"{len(files):,} files with {total:,} rows")


def _unique(store: Store, table: Table, files: Sequence[Live]) -> Iterator[Finding]:
    import pyarrow as pa

    keys, doubled = list(KEYS[table.name]), 0
    for day, some in by_day(files).items():
        try:
            rows = pa.concat_tables(tables(store, some, keys))
        except Exception:  # noqa: S112 - a file that can't be read was told already
            continue
        counted = rows.num_rows - rows.group_by(keys).aggregate([]).num_rows
        doubled += counted
        if counted:
            yield Finding("fail", table.name, f"{day}: {counted:,} rows are there more than once")
    if not doubled:
        yield Finding("ok", table.name, f"no two rows have the same {', '.join(keys)}")


def _commits(delta: DeltaTable, table: Table, rows: int) -> Iterator[Finding]:
    state = state_of(delta, table.app)
    if state.rows - state.expired != rows:
        yield Finding(
            "fail", table.name,
            f"{rows:,} rows, but {state.rows:,} were committed and {state.expired:,} expired",
        )  # fmt: skip
    wrong = list(_backwards(delta))
    yield from (Finding("fail", table.name, text) for text in wrong)
    if not wrong and state.batch:
        yield Finding("ok", table.name, f"{state.batch:,} batches, offsets only ever forward")
    for name, number in state.lost.items():
        yield Finding(
            "note", table.name, f"{name}: {number:,} entries were dropped before they were read"
        )


def _backwards(delta: DeltaTable) -> Iterator[str]:
    """Commits whose offsets lie before those of an earlier one, though no stream was made anew."""
    batch, places = 0, from_plain({})
    for commit in reversed(delta.history()):
        found: Any = commit.get(KEY)
        # Upkeep says the last batch again; a batch that came meanwhile may have gone before it.
        if not isinstance(found, dict) or found["batch"] <= batch:
            continue
        if batch and found["batch"] != batch + 1:
            yield f"batch {found['batch']} follows batch {batch}"
        now, remade = from_plain(found["places"]), found["facts"].get("remade", ())
        for name in places.keys() & now.keys() - set(remade):
            # By id alone: a server that lost entries, all of them read already, counts on from fewer.
            if parsed(now[name].id) < parsed(places[name].id):
                yield f"batch {found['batch']}: {name} goes back from {places[name]} to {now[name]}"
        batch, places = found["batch"], now
