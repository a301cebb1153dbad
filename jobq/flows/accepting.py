"""Enqueue members. A mid that is taken by the message of an earlier flow of the same id must not keep a flow waiting.

That happens when a flow was removed, or kept for a short time, and is started again: its dead stay in their queue, and
the mids of its steps stay taken for an hour after they were done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jobq.client.connection import Client
from jobq.client.numbered_calls import error_code
from jobq.client.pipelining import commands, run_all
from jobq.errors import BadRecordError, UnavailableError
from jobq.events import decode
from jobq.flows.entries import in_calls
from jobq.flows.identity import member_of
from jobq.flows.store import FlowStore
from jobq.flows.types import FlowChange
from jobq.queue import keys
from jobq.queue.fitting import send_fitting
from jobq.queue.queue import Content, Queue
from jobq.queue.types import Enqueued

#: Newest events in which the end of a member is looked for, and how many are read at once.
MOST_EVENTS, EVENTS_PER_CALL = 20_000, 500
_ENDED = {
    "done": "done", "dead": "dead", "cancelled": "cancelled", "expired": "cancelled", "evicted": "cancelled",
    "purged": "cancelled",
}  # fmt: skip
LIVE = frozenset(("queued", "queued-with-backoff", "locked", "locked-with-requeue"))
_log = logging.getLogger("jobq.flows")


def enqueue_members(
    store: FlowStore,
    queue: Queue,
    rows: Sequence[Content],
    unapplied: Callable[[str, str], Sequence[FlowChange]],
    created_at: int | None = None,
    **options: Any,
) -> None:
    """Enqueue messages of one step, 250 at most in the order of their numbers.

    unapplied: what a queue has to say about a flow and didn't reach it. created_at: of the flow.
    A member that has ended by that, or whose message lives, is accepted already; so is one that another drainer
    enqueued for this flow. Of others, dead ones are purged and enqueued again. The rest is done if events say so, since
    this flow was created: its server lost that in a failover. If not, it has failed.

    If the line of a key is full, those before the first refused message are accepted; then KeyFullError is raised.
    """
    replies: list[Enqueued] = []

    def send(some: Sequence[Content]) -> None:
        replies.extend(queue.enqueue_members(some, created_at=created_at, **options))

    # In their order: their queue notes the number of the last member that it has accepted.
    _, full = send_fitting(rows, send)
    _settle_taken(store, queue, rows[: len(replies)], replies, unapplied, options)
    if full is not None:
        full.left = len(rows) - len(replies)
        raise full


def _settle_taken(
    store: FlowStore,
    queue: Queue,
    rows: Sequence[Content],
    replies: Sequence[Enqueued],
    unapplied: Callable[[str, str], Sequence[FlowChange]],
    options: dict[str, Any],
) -> None:
    """See to members whose mids were taken by messages that have ended."""
    # Before the outbox is read: how a message ended is there before it is gone here, and at the flow before it is gone
    # there.
    taken = _taken(queue, rows, replies)
    if not taken:
        return
    apply_all(store, queue.name, unapplied(queue.name, store.flow))
    members = {mid: member_of(mid) for mid, _ in taken}
    numbers = {mid: member.number for mid, member in members.items() if member is not None}
    step = next(member.step for member in members.values() if member is not None)
    live = {*store.page(step, "live", min(numbers.values())).numbers}
    left = [row for mid, row in taken if numbers.get(mid) in live]
    if not left:
        return
    _purge(store.client, queue, [str(row[0]) for row in left])
    refused = [mid for mid, _ in _taken(queue, left, queue.enqueue_members(left, **options))]
    if not refused:
        return
    facts = store.facts()
    ends = ends_in(queue, set(refused), facts.created_at if facts else 0)
    results = results_at(queue, refused)
    for mid in refused:
        change = FlowChange("dead", step, numbers[mid])
        if ends.get(mid) == "done":
            _log.warning("%s was done before, and its flow had lost that", mid)
            change = FlowChange("done", step, numbers[mid], results.get(mid))
        else:
            _log.error(
                "%s has failed: a message of an earlier flow of this id was done just before", mid
            )
        store.apply(f"q{queue.name}", [change])


def apply_all(store: FlowStore, queue: str, changes: Sequence[FlowChange]) -> None:
    """Apply what a queue says, in as many calls as it takes."""
    for some in in_calls(changes):
        store.apply(f"q{queue}", some)


def _taken(
    queue: Queue, rows: Sequence[Content], found: Sequence[Enqueued]
) -> list[tuple[str, Any]]:
    """The mid and the row of each message that was refused for one that has ended."""
    refused = [
        (one, row)
        for row, one in zip(rows, found, strict=True)
        if one.action == "exists" and one.existing_status not in LIVE
    ]
    live = _live(queue, [one.mid for one, _ in refused if one.existing_status == "accepted"])
    return [(one.mid, row) for one, row in refused if one.mid not in live]


def _live(queue: Queue, mids: Sequence[str]) -> set[str]:
    """Those whose messages live."""
    statuses = run_all(queue.client, [queue.status_call(mid) for mid in mids])
    return {mid for mid, status in zip(mids, statuses, strict=True) if status.word in LIVE}


def _purge(client: Client, queue: Queue, mids: Sequence[str]) -> None:
    """Forget the dead of these mids."""
    dead_ids = client.command("HMGET", keys.key(queue.prefix, "last_dead"), *mids)
    if found := [raw.decode() for raw in dead_ids if raw]:
        queue.admin.purge(*found)


def ends_in(queue: Queue, mids: set[str], since_ms: int = 0) -> dict[str, str]:
    """How these mids ended, by the newest events of their queue. since_ms: not before this time of its server."""
    found: dict[str, str] = {}
    for _, fields in _newest(queue, since_ms):
        try:
            event = decode(fields[1], fields[0])
        except (BadRecordError, IndexError):
            continue
        if event.mid in mids and event.kind in _ENDED:
            found.setdefault(event.mid, _ENDED[event.kind])
            if len(found) == len(mids):
                break
    return found


def _newest(queue: Queue, since_ms: int) -> Iterator[Any]:
    where, before, left = keys.key(queue.prefix, "events"), "+", MOST_EVENTS
    while left > 0:
        reply = queue.client.command("XREVRANGE", where, before, since_ms, "COUNT", EVENTS_PER_CALL)
        yield from reply
        if len(reply) < EVENTS_PER_CALL:
            return
        before, left = f"({reply[-1][0].decode()}", left - len(reply)


def results_at(queue: Queue, mids: Sequence[str]) -> dict[str, bytes]:
    """The stored results of members; those that are gone were taken to the flow before.

    A key of another type is damage, and no result. After any other error, the result is unknown.
    """
    if not mids:
        return {}
    asked = [("LINDEX", queue.result_key(mid), 0) for mid in mids]
    found = commands(queue.client, queue.wake_key, asked, keep_errors=True)
    for raw in found:
        if isinstance(raw, Exception) and error_code(raw) != "WRONGTYPE":
            raise UnavailableError(f"results of queue {queue.name} can't be read: {raw}") from raw
    return {mid: raw for mid, raw in zip(mids, found, strict=True) if isinstance(raw, bytes)}
