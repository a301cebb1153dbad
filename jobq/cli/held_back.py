"""Findings of `jobq check doctor` about keys at their limits, exhausted limits, and waiting flow maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from jobq.client.connection import Client
from jobq.client.pipelining import run_each
from jobq.durations import counted, listed
from jobq.flows.listing import FlowRow, flow_page
from jobq.flows.state import StepView
from jobq.limits.directory import LimitRecord, limit_facts, limit_names
from jobq.queue.doctor import Finding
from jobq.queue.queue import Queue
from jobq.queue.rules import KeyPage, KeyRow

#: Limits on queues with keys, keys per queue, limits and flows to check, and names per finding.
MAX_QUEUES, MAX_KEYS, MAX_LIMITS, MAX_FLOWS, MAX_NAMES = 200, 1_000, 1_000, 1_000, 5


def full_keys(client: Client, queues: Sequence[Queue]) -> Iterator[Finding]:
    """Yield a finding for each queue in which keys have reached a limit.

    Args:
        queues: The queues that use keys.
    """
    some = queues[:MAX_QUEUES]
    pages = run_each(client, [queue.admin.keys_call(MAX_KEYS) for queue in some])
    for queue, page in zip(some, pages, strict=True):
        if isinstance(page, KeyPage):
            yield from _of_queue(queue.name, page)
        else:
            text = f"queue {queue.name}: its keys can't be read: {page}"
            yield Finding("keys", "warn", text, f"jobq check fsck {queue.name}")
    if len(queues) > MAX_QUEUES:
        text = f"{len(queues) - MAX_QUEUES:,} more queues with keys were not checked"
        yield Finding("keys", "ok", text, "jobq key list QUEUE")


def _of_queue(queue: str, page: KeyPage) -> Iterator[Finding]:
    of = f" of the first {MAX_KEYS:,}" if page.next_offset else ""
    full = [row for row in page.rows if row.is_full]
    if full:
        said = _said(full, lambda row: f"{row.key} ({row.waiting:,} of {row.most_waiting:,} wait)")
        text = (
            f"queue {queue}: {counted(len(full), 'key')}{of} reached the maximum of waiting messages, so enqueues are "
            f"rejected, and flows, outboxes and Ruby's jobs wait for room: {said}"
        )
        remedy = f"add workers, or jobq key set {queue} KEY --waiting N; jobq key list {queue} shows them"
        yield Finding("keys", "warn", text, remedy)
    busy = [
        row for row in page.rows if row.waiting and row.max is not None and row.running >= row.max
    ]
    if busy:
        said = _said(
            busy,
            lambda row: f"{row.key} ({row.running:,} of {row.max:,} run, {row.waiting:,} wait)",
        )
        text = f"queue {queue}: {counted(len(busy), 'key')}{of} at the maximum, with waiting messages: {said}"
        yield Finding("keys", "ok", text, f"jobq key set {queue} KEY --max N, if more may run")


def _said(rows: Iterable[KeyRow], words: Callable[[KeyRow], str]) -> str:
    return listed([words(row) for row in sorted(rows, key=lambda row: -row.waiting)], MAX_NAMES)


def full_limits(client: Client) -> Iterator[Finding]:
    """Yield a finding for exhausted rates, and a finding for limits whose slots are all in use."""
    names = limit_names(client)
    full = [row for row in limit_facts(client, names[:MAX_LIMITS]) if _is_full(row)]
    if full:
        said = listed([f"{row.limit} ({row.used:,} of {row.rule})" for row in full], MAX_NAMES)
        text = f"{counted(len(full), 'limit')} used up, so their jobs are waiting: {said}"
        yield Finding(
            "limits",
            "ok",
            text,
            "jobq limit set NAME RULE, if more may run; jobq limit list shows holders",
        )
    if len(names) > MAX_LIMITS:
        text = f"{len(names) - MAX_LIMITS:,} more limits were not checked"
        yield Finding("limits", "ok", text, "jobq limit list")


def _is_full(record: LimitRecord) -> bool:
    return record.max > 0 and (record.held_ms > 0 or record.used >= record.max)


def waiting_maps(client: Client) -> Iterator[Finding]:
    """Yield a finding for flow maps that wait because a key has reached its limit of waiting messages."""
    page = flow_page(client, 0, MAX_FLOWS, state="running")
    names = [
        f"step {step.name} of {row.flow}, {step.facts.needs_room}"
        for row in page.rows
        for step in _waiting(row)
    ]
    if names:
        text = f"{counted(len(names), 'step')} of flows waiting until a key has room: {listed(names, MAX_NAMES)}"
        remedy = "jobq flow show FLOW, and make room in the key's queue"
        yield Finding("maps", "warn", text, remedy)
    if page.next_offset is not None:
        text = f"flows older than the latest {page.next_offset:,} were not checked"
        yield Finding("maps", "ok", text, "jobq flow list")


def _waiting(row: FlowRow) -> list[StepView]:
    steps = () if row.view is None else row.view.steps
    return [
        step
        for step in steps
        if step.facts.needs_room and (step.state == "ready" or step.facts.todo)
    ]
