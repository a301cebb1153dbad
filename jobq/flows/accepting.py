"""Enqueue the members of steps. If the message of a member has already ended, report that end to the flow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jobq.client.names import base_of
from jobq.client.numbered_calls import error_code
from jobq.client.pipelining import commands, run_all
from jobq.errors import UnavailableError
from jobq.flows.entries import in_calls
from jobq.flows.identity import Member, member_of
from jobq.flows.store import FlowStore
from jobq.flows.types import MAX_RESULT_BYTES, FlowChange
from jobq.queue.fitting import send_fitting
from jobq.queue.queue import Content, Queue
from jobq.queue.types import Enqueued

#: Statuses of ended messages, and their outcomes.
OVER = {"done-awaiting-gc": "done", "done-with-backoff": "done", "dead": "dead"}
LIVE = frozenset(("queued", "queued-with-backoff", "locked", "locked-with-requeue"))
_log = logging.getLogger("jobq.flows")


def enqueue_members(
    store: FlowStore,
    queue: Queue,
    rows: Sequence[Content],
    unapplied: Callable[[str, str], Sequence[FlowChange]],
    *,
    is_retry: bool = False,
    **options: Any,
) -> None:
    """Enqueue up to 250 messages of one step, in the order of their numbers.

    A message that the queue has accepted isn't enqueued again, unless the queue lost the message and its outcome. If
    the flow lost an outcome in a failover, the outcome is reported to the flow again. Raises KeyFullError if a key has
    too many waiting messages. The messages before the first rejected message are accepted.

    Args:
        unapplied: Called with a queue and a run; returns the changes in that queue's outbox for the run.
        is_retry: Don't report outcomes to the flow, because the members will run again.
    """
    replies: list[Enqueued] = []

    def send(some: Sequence[Content]) -> None:
        replies.extend(queue.enqueue_members(some, in_order=True, **options))

    # Enqueue in order, because the queue records the number of the last accepted member.
    _, full = send_fitting(rows, send)
    refused = {
        str(row[0]): row
        for row, reply in zip(rows, replies, strict=False)
        if reply.action == "exists" and reply.existing_status not in LIVE
    }
    if refused:
        left = _still_live(store, queue, refused, unapplied)
        if lost := [refused[mid] for mid in left if left[mid] not in OVER]:
            queue.enqueue_members(lost, **options)
        if not is_retry:
            _end(store, queue, {mid: OVER[word] for mid, word in left.items() if word in OVER})
    if full is not None:
        full.left = len(rows) - len(replies)
        raise full


def _still_live(
    store: FlowStore,
    queue: Queue,
    mids: Iterable[str],
    unapplied: Callable[[str, str], Sequence[FlowChange]],
) -> dict[str, str]:
    """Return the statuses of ended or missing messages whose outcomes the flow doesn't have."""
    # Read the statuses before the outbox. An end is in the outbox before its message is deleted, and at the flow before
    # it is deleted from the outbox.
    words = {mid: word for mid, word in statuses(queue, list(mids)).items() if word not in LIVE}
    members = {mid: member for mid in words if (member := member_of(mid)) is not None}
    if not members:
        return {}
    base = base_of(queue.name)
    apply_all(store, base, unapplied(base, store.run))
    first = min(members.values(), key=lambda member: member.number)
    live = {*store.page(first.step, "live", first.number).numbers}
    return {mid: words[mid] for mid, member in members.items() if member.number in live}


def _end(store: FlowStore, queue: Queue, ends: Mapping[str, str]) -> None:
    """Report outcomes that the flow's server lost."""
    results = results_at(queue, [mid for mid, end in ends.items() if end == "done"])
    for mid, end in ends.items():
        _log.warning("%s had already ended (%s), but its flow had lost the result", mid, end)
        if member := member_of(mid):
            store.apply(f"q{base_of(queue.name)}", [ending(member, end, results.get(mid))])


def ending(member: Member, kind: str, result: bytes | None = None, entry: str = "") -> FlowChange:
    """Return the change that records a member's outcome. If the result is too large, the outcome is `dead`."""
    if result is not None and len(result) > MAX_RESULT_BYTES:
        kind, result = "dead", None
    return FlowChange(kind, member.step, member.number, result, entry)


def apply_all(store: FlowStore, queue: str, changes: Sequence[FlowChange]) -> None:
    """Apply changes that were read from a queue, in as many calls as necessary."""
    for some in in_calls(changes):
        store.apply(f"q{queue}", some)


def statuses(queue: Queue, mids: Sequence[str]) -> dict[str, str]:
    """Return the status of each message. All partitions of the queue are searched."""
    replies = run_all(queue.client, [queue.status_call(mid) for mid in mids])
    words = {mid: status.word for mid, status in zip(mids, replies, strict=True)}
    missing = [mid for mid, word in words.items() if word == "nil"]
    for place in queue.partitions() if missing else ():
        others = statuses(place, [mid for mid in missing if words[mid] == "nil"])
        words |= {mid: word for mid, word in others.items() if word != "nil"}
    return words


def results_at(queue: Queue, mids: Sequence[str]) -> dict[str, bytes]:
    """Return members' stored results by mid. Members without a stored result are left out.

    A key that isn't a list counts as no result. Raises UnavailableError if a key can't be read for another reason.
    """
    if not mids:
        return {}
    asked = [("LINDEX", queue.result_key(mid), 0) for mid in mids]
    replies = commands(queue.client, queue.wake_key, asked, keep_errors=True)
    for raw in replies:
        if isinstance(raw, Exception) and error_code(raw) != "WRONGTYPE":
            raise UnavailableError(f"results of queue {queue.name} can't be read: {raw}") from raw
    results = {mid: raw for mid, raw in zip(mids, replies, strict=True) if isinstance(raw, bytes)}
    for place in queue.partitions() if len(results) < len(mids) else ():
        results |= results_at(place, [mid for mid in mids if mid not in results])
    return results
