"""Keep entries that are not event records, with their bytes and the reason, each once.

They are committed before the batch they came with. If the batch's own commit fails, the batch is repeated and its bad
entries are found in the table already: the table has offsets of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from jobq.pipeline import offsets
from jobq.pipeline.decode import BadEntry
from jobq.pipeline.lake.commit import IngestState, commit_batch, state_of
from jobq.pipeline.lake.files import write_rows
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.reading import stored_rows
from jobq.pipeline.lake.tables import QUARANTINE
from jobq.pipeline.offsets import LogOffset


def keep_bad(lake: Lake, bad: Sequence[tuple[str, BadEntry]], remade: Sequence[str]) -> int:
    """Store the entries that the table doesn't have; return their number. remade: queues whose ids began anew."""
    state = state_of(lake.table(QUARANTINE.name), QUARANTINE.app)
    there = _kept(lake, remade) if any(queue in remade for queue, _ in bad) else set()
    new = [
        (queue, one) for queue, one in bad
        if ((queue, one.id.decode()) not in there if queue in remade
            else offsets.parsed_id(one.id.decode()) > _upto(state, queue))
    ]  # fmt: skip
    if not new:
        return 0
    # Ordered by id: entries of an unknown version come first in their chunk.
    new.sort(key=lambda found: offsets.parsed_id(found[1].id.decode()))
    places = {queue: LogOffset(one.id.decode(), 0) for queue, one in new}
    files = write_rows(lake.below(QUARANTINE.name), QUARANTINE, _rows(new))
    commit_batch(lake, QUARANTINE, files, state.following(places, len(new), {}))
    return len(new)


def entries(lake: Lake) -> Iterator[tuple[str, int]]:
    """Yield the queue of each entry and the time when it was written, epoch ms."""
    for rows in stored_rows(lake, QUARANTINE, ["queue", "entry_id"]):
        for row in rows.to_pylist():
            yield row["queue"], offsets.parsed_id(row["entry_id"])[0]


def _upto(state: IngestState, queue: str) -> tuple[int, int]:
    return offsets.parsed_id(state.places.get(queue, LogOffset()).id)


def _kept(lake: Lake, queues: Sequence[str]) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for rows in stored_rows(lake, QUARANTINE, ["queue", "entry_id"]):
        some = rows.filter(pc.is_in(rows["queue"], pa.array(queues, pa.string())))
        found |= {(row["queue"], row["entry_id"]) for row in some.to_pylist()}
    return found


def _rows(bad: Sequence[tuple[str, BadEntry]]) -> pa.Table:
    now = datetime.now(UTC)
    rows = [
        {
            "queue": queue, "entry_id": one.id.decode(), "content": one.value, "reason": one.reason,
            "version": one.version.decode("utf-8", "backslashreplace"), "seen_at": now,
        } for queue, one in bad
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, QUARANTINE.schema())
