"""Offsets found again from the rows, for a table whose log no longer tells them.

That takes a log that others rewrote, or one whose every commit was older than its retention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from jobq.errors import LakeError
from jobq.pipeline import offsets
from jobq.pipeline.lake.commit import State, commit, state_of
from jobq.pipeline.lake.live import live, tables
from jobq.pipeline.lake.place import Lake
from jobq.pipeline.lake.tables import EVENTS, TOPICS, from_lake
from jobq.pipeline.offsets import Place, parsed

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from jobq.client.connection import Client


def adopt(lake: Lake, client: Client) -> None:
    """For events and topics: commit the offsets that the rows tell, where the log doesn't."""
    for table in (EVENTS, TOPICS):
        delta = lake.table(table.name)
        if delta is None or _is_told(delta, table.app):
            continue
        ids, rows = _event_ids(lake, delta) if table is EVENTS else _topic_ids(lake, delta)
        places = {name: _place(client, table.name, name, last) for name, last in ids.items()}
        batch = (delta.transaction_version(table.app) or 0) + 1
        commit(lake, table.name, delta, [], State(batch=batch, places=places, rows=rows))


def _is_told(delta: DeltaTable, app: str) -> bool:
    try:
        state_of(delta, app)
    except LakeError:
        return False
    return True


def _place(client: Client, table: str, name: str, last: tuple[int, int]) -> Place:
    if table == TOPICS.name:
        return Place(str(last[0]), last[0])
    key = offsets.events_key(client.namespace, name)
    now, entry_id = offsets.tail(client, key), f"{last[0]}-{last[1]}"
    if parsed(now.oldest.id) >= last:
        # All of it is gone from the stream, and whatever else went with it can't be known.
        return now.oldest
    return offsets.counted(client, key, now.oldest, entry_id)


def _event_ids(lake: Lake, delta: DeltaTable) -> tuple[dict[str, tuple[int, int]], int]:
    newest: dict[str, tuple[int, int]] = {}
    rows = 0
    for stored in tables(lake.below(EVENTS.name), live(delta)):
        found = from_lake(stored)
        rows += found.num_rows
        ms = pc.divide(found["entry_at"].cast(pa.int64()), 1000)
        ids = pa.Table.from_arrays([found["queue"], ms, found["entry_seq"]], ["queue", "ms", "seq"])
        for row in ids.group_by(["queue", "ms"]).aggregate([("seq", "max")]).to_pylist():
            last = (row["ms"], row["seq_max"])
            newest[row["queue"]] = max(last, newest.get(row["queue"], last))
    return newest, rows


def _topic_ids(lake: Lake, delta: DeltaTable) -> tuple[dict[str, tuple[int, int]], int]:
    newest: dict[str, tuple[int, int]] = {}
    rows = 0
    for found in tables(lake.below(TOPICS.name), live(delta), ["topic", "index"]):
        rows += found.num_rows
        for row in found.group_by("topic").aggregate([("index", "max")]).to_pylist():
            last = (row["index_max"], 0)
            newest[row["topic"]] = max(last, newest.get(row["topic"], last))
    return newest, rows
