"""Dead messages with their contents, so that a replay can put them back after they were purged.

They lie in a sorted set by time of death, not in a log. Each round looks again at the last hour before the
newest that the table has, and takes whatever id isn't there yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from jobq.engine import keys
from jobq.pipeline.lake.commit import Overtaken, State, commit, state_of
from jobq.pipeline.lake.files import Writer
from jobq.pipeline.lake.live import live, tables
from jobq.pipeline.lake.place import Lake
from jobq.pipeline.lake.store import remove
from jobq.pipeline.lake.tables import DEAD
from jobq.pipeline.offsets import Place
from jobq.pipeline.reading.live import Shelf, dead
from jobq.pipeline.reading.request import Request
from jobq.pipeline.schema import DEAD_COLUMNS

if TYPE_CHECKING:
    from jobq.engine.connection import Client

#: How far a server's clock may have stepped back between two deaths.
OVERLAP_MS = 3_600_000


def keep(lake: Lake, client: Client, queues: Iterable[str]) -> int:
    """Take the dead that aren't in the lake yet; how many that were. Overtaken when another did meanwhile."""
    delta = lake.table(DEAD.name)
    state = state_of(delta, DEAD.app)
    newest = {queue: at for queue in queues if (at := _newest(client, queue))}
    since = {queue: _since(state, queue) for queue in newest}
    # What hasn't changed since isn't read again.
    todo = {queue: at for queue, at in newest.items() if at >= since[queue]}
    there = _known(lake, min((since[queue] for queue in todo), default=0), delta is None)
    writer, rows, places = Writer(lake.below(DEAD.name), DEAD), 0, {}
    request = Request(view="dead", settings=client.settings, columns=DEAD_COLUMNS)
    for queue, at in todo.items():
        for found in dead(request, Shelf(queue, 0, since[queue], at), client):
            new = _new(pa.Table.from_batches([found]), there)
            rows += new.num_rows
            writer.add(new)
        places[queue] = Place(str(at), 0)
    if rows:
        files, now = writer.finish(), lake.made(DEAD.name)
        if state_of(now, DEAD.app).batch != state.batch:
            remove(lake.below(DEAD.name), [file.path for file in files])
            raise Overtaken(f"another ingest keeps the dead in {lake.store.uri}, and came first")
        after = state.following(places, rows, {})
        commit(lake, DEAD.name, now, [file.action() for file in files], after)
    return rows


def _newest(client: Client, queue: str) -> int:
    key = keys.key(keys.prefix(client.namespace, queue), "dead")
    found = client.command("ZRANGE", key, 0, 0, "REV", "WITHSCORES")
    return int(float(found[1])) if found else 0


def _since(state: State, queue: str) -> int:
    return max(0, int(state.places[queue].id) - OVERLAP_MS) if queue in state.places else 0


def _known(lake: Lake, since_ms: int, none: bool) -> pa.Array[Any]:
    if none:
        return pa.array([], pa.string())
    day = datetime.fromtimestamp(since_ms / 1000, UTC).date().isoformat()
    files = live(lake.table(DEAD.name), since=day)
    columns = ["queue", "dead_id"]
    found = [_names(rows) for rows in tables(lake.below(DEAD.name), files, columns)]
    return pa.concat_arrays([c for one in found for c in one.chunks] or [pa.array([], pa.string())])


def _new(rows: pa.Table, there: pa.Array[Any]) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(_names(rows), there)))


def _names(rows: pa.Table) -> Any:
    queue: Any = rows["queue"]
    return pc.binary_join_element_wise(queue, rows["dead_id"], "\x1f")
