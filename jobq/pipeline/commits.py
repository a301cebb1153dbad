"""What the log of a lake's table tells of its ingest: stretches in which events were trimmed unread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jobq.pipeline.offsets import parsed

if TYPE_CHECKING:
    from deltalake import DeltaTable

KEY = "jobq"


class Loss(NamedTuple):
    """Events that a batch didn't find any more: written after `after_ms`, and before `upto_ms`."""

    queue: str
    nevents: int
    after_ms: int
    upto_ms: int


def losses(table: DeltaTable | None) -> list[Loss]:
    """All that the table's log still tells, oldest first. What only its totals tell comes without a beginning."""
    if table is None:
        return []
    batches = {
        found["batch"]: found
        for commit in table.history()
        if isinstance(found := commit.get(KEY), dict) and "batch" in found
    }
    return list(_losses([batches[number] for number in sorted(batches)]))


def _losses(batches: Iterable[Mapping[str, Any]]) -> Iterable[Loss]:
    places: Mapping[str, Any] = {}
    known: dict[str, int] = {}
    last: Mapping[str, Any] = {}
    for batch in batches:
        for queue, count in (batch.get("facts") or {}).get("lost", {}).items():
            if count:
                known[queue] = known.get(queue, 0) + count
                yield Loss(queue, count, _ms(places, queue), _ms(batch["places"], queue))
        places, last = batch["places"], batch
    for queue, total in (last.get("lost") or {}).items():
        if total > known.get(queue, 0):
            yield Loss(queue, total - known.get(queue, 0), 0, _ms(places, queue))


def _ms(places: Mapping[str, Any], queue: str) -> int:
    return parsed(places[queue]["id"])[0] if queue in places else 0
