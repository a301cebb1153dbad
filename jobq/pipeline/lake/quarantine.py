"""Entries that are no event records: kept with their bytes and the reason, each once.

They are committed before the batch they came with. Should that batch's own commit not follow, it is made
again and finds its bad entries kept already: the table has its own places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jobq.pipeline import offsets
from jobq.pipeline.decode import Bad
from jobq.pipeline.lake.commit import commit, state_of, taken_back
from jobq.pipeline.lake.files import Writer
from jobq.pipeline.lake.live import live, tables
from jobq.pipeline.lake.place import Lake
from jobq.pipeline.lake.tables import QUARANTINE
from jobq.pipeline.offsets import START, Place


def keep(lake: Lake, bad: Sequence[tuple[str, Bad]], remade: Sequence[str]) -> int:
    """Keep those that aren't there yet; how many that were. remade: queues whose ids began anew."""
    delta = lake.made(QUARANTINE.name)
    state = state_of(delta, QUARANTINE.app)
    there = _kept(lake, remade) if any(queue in remade for queue, _ in bad) else set()
    new = [
        (queue, one) for queue, one in bad
        if ((queue, one.id.decode()) not in there if queue in remade
            else offsets.parsed(one.id.decode()) > _upto(state.places, queue))
    ]  # fmt: skip
    if not new:
        return 0
    writer = Writer(lake.below(QUARANTINE.name), QUARANTINE)
    writer.add(_rows(new))
    # By id: entries of an unknown version come before all others of their chunk.
    new.sort(key=lambda found: offsets.parsed(found[1].id.decode()))
    places = {queue: Place(one.id.decode(), 0) for queue, one in new}
    files, after = writer.finish(), state.following(places, len(new), {})
    with taken_back(lake.below(QUARANTINE.name), files):
        commit(lake, QUARANTINE.name, delta, [file.action() for file in files], after)
    return len(new)


def entries(lake: Lake) -> Iterator[tuple[str, int]]:
    """Of each entry its queue, and when it was written, epoch ms."""
    files = live(lake.table(QUARANTINE.name))
    for rows in tables(lake.below(QUARANTINE.name), files, ["queue", "entry_id"]):
        for row in rows.to_pylist():
            yield row["queue"], offsets.parsed(row["entry_id"])[0]


def _upto(places: object, queue: str) -> tuple[int, int]:
    assert isinstance(places, dict)
    return offsets.parsed(places[queue].id if queue in places else START)


def _kept(lake: Lake, queues: Sequence[str]) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    files = live(lake.table(QUARANTINE.name))
    for rows in tables(lake.below(QUARANTINE.name), files, ["queue", "entry_id"]):
        some = rows.filter(pc.is_in(rows["queue"], pa.array(queues, pa.string())))
        found |= {(row["queue"], row["entry_id"]) for row in some.to_pylist()}
    return found


def _rows(bad: Sequence[tuple[str, Bad]]) -> pa.Table:
    now = datetime.now(UTC)
    columns: list[list[Any]] = [
        [queue for queue, _ in bad],
        [one.id.decode() for _, one in bad],
        [one.version.decode("utf-8", "backslashreplace") for _, one in bad],
        [one.value for _, one in bad],
        [one.reason for _, one in bad],
        [now] * len(bad),
    ]
    schema = QUARANTINE.schema()
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
