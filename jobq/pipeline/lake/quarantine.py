"""Store each invalid entry of an event stream exactly once, with its bytes and the reason.

The task that reads invalid entries writes them into files. The driver commits these files first, and then the batch. If
the batch's commit fails, the batch is repeated. The offsets in the quarantine table then show which entries are already
stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jobq.pipeline import offsets
from jobq.pipeline.decode import BadEntry
from jobq.pipeline.lake.commit import commit_batch, state_of
from jobq.pipeline.lake.files import DataFile, LiveFile, live_files, rows_of_files, write_rows
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.reading import stored_rows
from jobq.pipeline.lake.store import LakeStore
from jobq.pipeline.lake.tables import QUARANTINE
from jobq.pipeline.offsets import LogOffset


class Quarantine(NamedTuple):
    """State of the quarantine table. Tasks use this state to skip entries that are already stored.

    Attributes:
        upto: Id of each queue's latest stored entry.
        remade: Queues whose streams were recreated. Their stored entries are in `files`.
    """

    store: LakeStore
    upto: Mapping[str, str]
    remade: frozenset[str] = frozenset()
    files: tuple[LiveFile, ...] = ()

    def of(self, queues: Collection[str]) -> Quarantine:
        """Return the state for only these queues."""
        remade = self.remade.intersection(queues)
        upto = {queue: self.upto[queue] for queue in queues if queue in self.upto}
        return Quarantine(self.store, upto, remade, self.files if remade else ())


class KeptEntries(NamedTuple):
    """Files that a task wrote, their number of rows, and the latest id of each queue in them."""

    files: tuple[DataFile, ...] = ()
    rows: int = 0
    places: Mapping[str, str] = {}


def quarantine_of(lake: Lake, remade: Iterable[str]) -> Quarantine:
    """Return the state of the quarantine table. `remade` names queues with recreated streams."""
    delta, again = lake.table(QUARANTINE.name), frozenset(remade)
    places = state_of(lake, QUARANTINE).places
    files = tuple(live_files(delta)) if again else ()
    upto = {queue: place.id for queue, place in places.items()}
    return Quarantine(lake.below(QUARANTINE.name), upto, again, files)


def written(there: Quarantine, bad: Sequence[tuple[str, BadEntry]]) -> KeptEntries:
    """Write invalid entries into new files, except entries that the quarantine table already has."""
    known = _kept(there) if any(queue in there.remade for queue, _ in bad) else set()
    new = [
        (queue, entry) for queue, entry in bad
        if ((queue, entry.id.decode()) not in known if queue in there.remade
            else offsets.parsed_id(entry.id.decode()) > offsets.parsed_id(there.upto.get(queue, offsets.START)))
    ]  # fmt: skip
    if not new:
        return KeptEntries()
    # Sort by id, because the decoder returns a chunk's entries of an unknown version first.
    new.sort(key=lambda pair: offsets.parsed_id(pair[1].id.decode()))
    places = {queue: entry.id.decode() for queue, entry in new}
    return KeptEntries(tuple(write_rows(there.store, QUARANTINE, _rows(new))), len(new), places)


def commit(lake: Lake, kept: Iterable[KeptEntries]) -> None:
    """Commit the files that tasks wrote. On a conflict, delete the files and raise CommitConflictError."""
    kept = [part for part in kept if part.rows]
    if not kept:
        return
    places: dict[str, LogOffset] = {}
    for part in kept:
        for queue, entry_id in part.places.items():
            last = places.get(queue, LogOffset())
            places[queue] = max(last, LogOffset(entry_id), key=lambda at: offsets.parsed_id(at.id))
    state = state_of(lake, QUARANTINE)
    rows, files = sum(part.rows for part in kept), [file for part in kept for file in part.files]
    commit_batch(lake, QUARANTINE, files, state.following(places, rows, {}))


def entries(lake: Lake) -> Iterator[tuple[str, int]]:
    """Yield each entry's queue and the time when the entry was written, epoch ms."""
    for rows in stored_rows(lake, QUARANTINE, ["queue", "entry_id"]):
        for row in rows.to_pylist():
            yield row["queue"], offsets.parsed_id(row["entry_id"])[0]


def _kept(there: Quarantine) -> set[tuple[str, str]]:
    known: set[tuple[str, str]] = set()
    remade = pa.array(sorted(there.remade), pa.string())
    for rows in rows_of_files(there.store, there.files, ["queue", "entry_id"]):
        some = rows.filter(pc.is_in(rows["queue"], remade))
        known |= {(row["queue"], row["entry_id"]) for row in some.to_pylist()}
    return known


def _rows(bad: Sequence[tuple[str, BadEntry]]) -> pa.Table:
    now = datetime.now(UTC)
    rows = [
        {
            "queue": queue, "entry_id": entry.id.decode(), "content": entry.value, "reason": entry.reason,
            "version": entry.version.decode("utf-8", "backslashreplace"), "seen_at": now,
        } for queue, entry in bad
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, QUARANTINE.schema())
