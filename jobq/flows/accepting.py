"""Enqueue members. One whose mid is taken by a message that has ended must not keep its flow waiting."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

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

#: Statuses of messages that have ended, and how.
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
    """Enqueue messages of one step, 250 at most in the order of their numbers.

    unapplied: what a queue has to say about a flow and didn't reach it. A member that has ended by that, or whose
    message lives, is accepted already. One whose message has ended in another way ends like that: the flow's server
    lost it in a failover; is_retry: not so, since it is to run again. One that was accepted, and of which there is no
    trace, is enqueued again.

    If the line of a key is full, those before the first refused message are accepted; then KeyFullError is raised.
    """
    replies: list[Enqueued] = []

    def send(some: Sequence[Content]) -> None:
        replies.extend(queue.enqueue_members(some, in_order=True, **options))

    # In their order: their queue notes the number of the last member that it has accepted.
    _, full = send_fitting(rows, send)
    refused = {
        str(row[0]): row
        for row, one in zip(rows, replies, strict=False)
        if one.action == "exists" and one.existing_status not in LIVE
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
    """The status of those members of a step whose messages don't live, while the flow waits for their ends."""
    # Before the outbox is read: how a message ended is there before it is gone here, and at the flow before it is gone
    # there.
    words = {mid: word for mid, word in statuses(queue, list(mids)).items() if word not in LIVE}
    members = {mid: member for mid in words if (member := member_of(mid)) is not None}
    if not members:
        return {}
    apply_all(store, queue.name, unapplied(queue.name, store.run))
    first = min(members.values(), key=lambda member: member.number)
    live = {*store.page(first.step, "live", first.number).numbers}
    return {mid: words[mid] for mid, member in members.items() if member.number in live}


def _end(store: FlowStore, queue: Queue, ends: Mapping[str, str]) -> None:
    """Tell a flow of ends that it has lost."""
    results = results_at(queue, [mid for mid, end in ends.items() if end == "done"])
    for mid, end in ends.items():
        _log.warning("%s was %s before, and its flow had lost that", mid, end)
        if member := member_of(mid):
            store.apply(f"q{queue.name}", [ending(member, end, results.get(mid))])


def ending(member: Member, kind: str, result: bytes | None = None, entry: str = "") -> FlowChange:
    """The end of a member. One whose result is too long for its flow is dead."""
    if result is not None and len(result) > MAX_RESULT_BYTES:
        kind, result = "dead", None
    return FlowChange(kind, member.step, member.number, result, entry)


def apply_all(store: FlowStore, queue: str, changes: Sequence[FlowChange]) -> None:
    """Apply what a queue says, in as many calls as it takes."""
    for some in in_calls(changes):
        store.apply(f"q{queue}", some)


def statuses(queue: Queue, mids: Sequence[str]) -> dict[str, str]:
    """The status of each of these messages."""
    replies = run_all(queue.client, [queue.status_call(mid) for mid in mids])
    return {mid: status.word for mid, status in zip(mids, replies, strict=True)}


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
