"""Dead messages with their contents, so that a replay can put them back after they were purged.

They lie in a sorted set by time of death, not in a log. Each round looks again at the last hour before the
newest that the table has, and takes whatever id isn't there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from jobq.errors import JobqError
from jobq.pipeline.lake.clock import latest
from jobq.pipeline.lake.commit import CommitConflictError, State, commit, state_of, taken_back
from jobq.pipeline.lake.files import Writer, Written
from jobq.pipeline.lake.live import live, tables
from jobq.pipeline.lake.place import Lake
from jobq.pipeline.lake.tables import DEAD
from jobq.pipeline.offsets import Place
from jobq.pipeline.reading.live import Shelf, dead
from jobq.pipeline.reading.request import Request
from jobq.pipeline.schema import DEAD_COLUMNS
from jobq.queue import keys

if TYPE_CHECKING:
    from jobq.client.connection import Client

#: Entered with the name of what is read; what it does not raise leaves that one out.
Tolerating = Callable[[str], AbstractContextManager[object]]
#: How far a server's clock may have stepped back between two deaths.
OVERLAP_MS = 3_600_000


def keep(
    lake: Lake, client: Client, queues: Iterable[str], tolerating: Tolerating = nullcontext
) -> int:
    """Take the dead that aren't in the lake yet; how many that were. CommitConflictError when another did meanwhile.

    Those that died after tomorrow are no dead of jobq's. tolerating: entered with a queue's name in words; what it
    doesn't raise leaves that queue out.
    """
    delta = lake.table(DEAD.name)
    state = state_of(delta, DEAD.app)
    upto, newest = latest(client), dict[str, int]()
    for queue in queues:
        with tolerating(f"dead of queue {queue}"):
            at = _newest(client, queue, upto)
            newest |= {queue: at} if at else {}
    since = {queue: _since(state, queue, upto) for queue in newest}
    # Where the newest were purged, all that is left is known.
    todo = {queue: at for queue, at in newest.items() if at >= since[queue]}
    if not todo:
        return 0
    there = _known(lake, min(since[queue] for queue in todo), delta is None)
    spans = {queue: (since[queue], at) for queue, at in todo.items()}
    files, kept = _written(lake, client, spans, there, tolerating)
    # The newest may have been revived or purged since; places only go forward.
    places = {
        queue: Place(str(max(todo[queue], _place(state, queue, upto) or 0)), 0) for queue in kept
    }
    if files:
        _commit(lake, files, state, places)
    return sum(file.rows for file in files)


def _written(
    lake: Lake, client: Client, spans: Mapping[str, tuple[int, int]], there: pa.Array[Any],
    tolerating: Tolerating,
) -> tuple[list[Written], list[str]]:  # fmt: skip
    """The files, and the queues that were read to their end."""
    request = Request(view="dead", settings=client.settings, columns=DEAD_COLUMNS)
    writer, kept = Writer(lake.below(DEAD.name), DEAD), []
    try:
        for queue, (since, upto) in spans.items():
            with tolerating(f"dead of queue {queue}"):
                for found in dead(request, Shelf(queue, 0, since, upto), client):
                    writer.add(_new(pa.Table.from_batches([found]), there))
                kept.append(queue)
        return writer.finish(), kept
    except JobqError:
        writer.abandon()
        raise


def _commit(
    lake: Lake, files: Sequence[Written], before: State, places: Mapping[str, Place]
) -> None:
    with taken_back(lake.below(DEAD.name), files):
        now = lake.made(DEAD.name)
        state = state_of(now, DEAD.app)
        if state.batch != before.batch:
            raise CommitConflictError(
                f"another ingest keeps the dead in {lake.store.uri}, and came first"
            )
        after = state.following(places, sum(file.rows for file in files), {})
        commit(lake, DEAD.name, now, [file.action() for file in files], after)


def _newest(client: Client, queue: str, upto: int) -> int:
    key = keys.key(keys.prefix(client.namespace, queue), "dead")
    found = client.command("ZRANGE", key, upto, 0, "BYSCORE", "REV", "LIMIT", 0, 1, "WITHSCORES")
    return int(float(found[1])) if found else 0


def _place(state: State, queue: str, upto: int) -> int | None:
    """Up to when its dead were looked at; None for never, and for a time that can't be."""
    at = int(state.places[queue].id) if queue in state.places else None
    return None if at is None or at > upto else at


def _since(state: State, queue: str, upto: int) -> int:
    """From when on to look. What expired would come back else: the server may hold it for longer."""
    if queue not in state.places:
        return 0
    kept_from = datetime.fromisoformat(f"{state.before or '1970-01-01'}T00Z")
    looked_at = _place(state, queue, upto) or 0
    return max(looked_at - OVERLAP_MS, round(kept_from.timestamp() * 1000))


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
