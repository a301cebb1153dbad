"""The flows of a server, for lists, commands and pages.

The index of flows may be incomplete. Flows in the index that no longer exist are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from typing import Annotated, NamedTuple

from msgspec import Meta

from jobq.client.connection import Client
from jobq.client.pipelining import run_each
from jobq.durations import lasting
from jobq.errors import ConfigError, JobqError
from jobq.flows import keys
from jobq.flows.identity import (
    MAX_FLOW_LENGTH,
    MAX_NUMBER_LENGTH,
    checked_flow,
    member_mid,
    member_of,
)
from jobq.flows.state import (
    FLOW_STATES,
    Edge,
    FlowView,
    Kind,
    PathStep,
    StepState,
    WaitsFor,
    step_sentence,
)
from jobq.flows.store import FlowStore
from jobq.flows.types import PURGED
from jobq.jobs.signing import seal_of, shown_text
from jobq.queue import presence
from jobq.queue.queue import Queue
from jobq.records import JsonRecord, MomentOrZero, words

#: Number of flows to check for one page, and number of index entries per read.
MAX_READ, PER_CALL = 1_000, 100
#: Number of names to search for the nearest name.
KNOWN = 500


class FlowRow(NamedTuple):
    """A row for one flow.

    Attributes:
        started_ms: Start time in epoch ms.
        view: None if the flow is unreadable; then `problem` has the reason.
    """

    flow: str
    started_ms: int
    view: FlowView | None
    problem: str = ""


class FlowPage(NamedTuple):
    """Some flows, newest first.

    Attributes:
        next_offset: Start of the next page; None at the end.
    """

    rows: list[FlowRow]
    next_offset: int | None


def put_on_list(client: Client, flow: str) -> None:
    """Add a flow to the list at its first start. Errors are ignored, because flows also work if they aren't listed."""
    with suppress(JobqError):
        client.command("ZADD", keys.flow_names(client.namespace), "NX", client.clock_ms(), flow)


def flow_page(
    client: Client,
    first: int = 0,
    most: int = 50,
    *,
    name: str = "",
    part: str = "",
    state: str = "",
) -> FlowPage:
    """Return flows, starting at offset `first` of the index. At most MAX_READ flows are read.

    `name`, `part` (any part of `name:id`, case-insensitive) and `state` select flows; '' selects all.
    """
    rows: list[FlowRow] = []
    for at in range(first, first + MAX_READ, PER_CALL):
        indexed = _indexed(client, at)
        for number, row in enumerate(_rows(client, indexed), at):
            if row is not None and _is_wanted(row, name, part, state):
                if len(rows) == most:
                    return FlowPage(rows, number)
                rows.append(row)
        if len(indexed) < PER_CALL:
            return FlowPage(rows, None)
    return FlowPage(rows, first + MAX_READ)


def _is_wanted(row: FlowRow, name: str, part: str, state: str) -> bool:
    is_named = (not name or row.flow.startswith(f"{name}:")) and part.lower() in row.flow.lower()
    return is_named and (not state or (row.view is not None and row.view.state == state))


def flow_ids(client: Client, most: int = MAX_READ) -> list[str]:
    """Return the ids of the latest flows. Some of these flows may no longer exist."""
    reply = client.command("ZRANGE", keys.flow_names(client.namespace), 0, most - 1, "REV")
    return [_shown(raw) for raw in reply]


def take_off_list(client: Client, flow: str) -> None:
    """Remove a flow from the list, if it is there."""
    if names := _names_on_list(client, flow):
        client.command("ZREM", keys.flow_names(client.namespace), *names)


def _names_on_list(client: Client, flow: str) -> list[bytes]:
    """Return the stored names whose displayed form is `flow`. A stored name may contain any bytes."""
    index = keys.flow_names(client.namespace)
    if is_flow(flow):
        return [] if client.command("ZSCORE", index, flow) is None else [flow.encode()]
    return [raw for raw in client.command("ZRANGE", index, 0, -1) if _shown(raw) == flow]


def _shown(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def remove_flow(client: Client, flow: str) -> str:
    """Delete a flow and its list entry unless it is running; return 'removed', 'running' or 'gone'."""
    word = FlowStore(client, flow).remove()
    if word != "running":
        take_off_list(client, flow)
    return word


def _indexed(client: Client, first: int) -> list[tuple[str, int]]:
    index, last = keys.flow_names(client.namespace), first + PER_CALL - 1
    reply = client.command("ZRANGE", index, first, last, "REV", "WITHSCORES")
    return [
        (_shown(raw), _whole(score)) for raw, score in zip(reply[::2], reply[1::2], strict=True)
    ]


def _whole(score: bytes) -> int:
    try:
        return int(float(score))
    except (ValueError, OverflowError):
        return 0


def _rows(client: Client, indexed: Sequence[tuple[str, int]]) -> Iterator[FlowRow | None]:
    """Yield one row per flow; None for a missing flow. Invalid data in the index or the flows doesn't raise errors."""
    known = [flow for flow, _ in indexed if is_flow(flow)]
    calls = [FlowStore(client, flow).facts_call() for flow in known]
    replies = dict(zip(known, run_each(client, calls), strict=True))
    for flow, started_ms in indexed:
        facts = replies.get(flow)
        if flow not in replies:
            yield FlowRow(flow, started_ms, None, "not the id of a flow")
        elif isinstance(facts, JobqError):
            yield FlowRow(flow, started_ms, None, str(facts))
        else:
            yield None if facts is None else FlowRow(flow, started_ms, FlowView(facts))


def is_flow(flow: str) -> bool:
    """Return whether `flow` is a valid flow id."""
    try:
        return bool(checked_flow(flow))
    except ConfigError:
        return False


def flow_view(client: Client, flow: str) -> FlowView | None:
    """Return a flow with the states of its steps; None if it doesn't exist."""
    facts = FlowStore(client, flow).facts()
    return None if facts is None else FlowView(facts)


def known_flow(client: Client, flow: str) -> FlowView:
    """Return a flow. If it doesn't exist, raise a ConfigError that suggests the most similar id."""
    view = flow_view(client, flow) if is_flow(flow) else None
    if view is not None:
        return view
    near = get_close_matches(flow, flow_ids(client, KNOWN), 1)
    hint = f"did you mean {near[0]!r}?" if near else "jobq flow list shows the existing flows"
    if is_flow(flow):
        raise ConfigError(f"there is no flow {flow!r}, or it ended and was deleted; {hint}")
    raise ConfigError(
        f"{flow!r:.100} is not the id of a flow, which is name:id with up to {MAX_FLOW_LENGTH} letters, digits and "
        f"any of _:@+-; the name may also contain dots; {hint}"
    )


def message_of_member(client: Client, mid: str) -> str:
    """Add the id of the current run to a mid such as `~flow.step.number`; return other mids unchanged."""
    member = member_of(mid)
    if member is None or member.run_id:
        return mid
    view = flow_view(client, member.flow)
    return mid if view is None else member._replace(run_id=view.facts.run_id).mid


def known_or_listed(client: Client, flow: str) -> str:
    """Return `flow` if the flow exists or the server's list of flows has it; otherwise raise ConfigError."""
    if not _names_on_list(client, flow):
        known_flow(client, flow)
    return flow


class FailedMember(JsonRecord):
    """A dead or cancelled member.

    Attributes:
        reason: The first line of the member's error. Without an error, the reason that the flow stored, such as `dead`
            or `cancelled`.
    """

    mid: str
    reason: str


def failed_members(client: Client, view: FlowView, most: int) -> list[FailedMember]:
    """Return the first failed members, with their errors if available."""
    members: list[FailedMember] = []
    for name, word in islice(FlowStore(client, view.facts.flow_id).failures().items(), most):
        step, _, number = name.rpartition(":")
        step_view = view.by_name.get(step)
        if step_view is not None and number.isdecimal() and len(number) <= MAX_NUMBER_LENGTH:
            mid = member_mid(view.facts.run, step, int(number))
            said = _reason(client, step_view.facts.queue, mid) if step_view.facts.queue else ""
            members.append(FailedMember(mid, (said or word).partition("\n")[0]))
    return members


def purged_members(client: Client, flow: str) -> Counter[str]:
    """Count, by step, the members that a retry couldn't run again because their messages are missing.

    At most 1,000 failed members are examined.
    """
    items = FlowStore(client, flow).failures().items()
    return Counter(name.rpartition(":")[0] for name, why in items if why == PURGED)


def _reason(client: Client, queue: str, mid: str) -> str:
    try:
        dead = Queue(queue, client).admin.dead(mid=mid)
    except JobqError as error:
        return f"its reason can't be read: {error}"
    return shown_text(seal_of(client), "reason", queue, mid, dead[0].reason) if dead else ""


def unserved(client: Client, view: FlowView) -> dict[str, str]:
    """Return a sentence for each queue that steps of the flow wait for, but no worker serves.

    For example: `no worker serves queue 'pdf'; web-1 did until 4 min ago`.
    """
    wanted = {
        step.facts.queue
        for step in view.steps
        if step.facts.queue and step.state in ("ready", "running")
        # A wait without a timeout doesn't need a worker: the sender of the signal delivers it.
        if step.facts.kind != "wait" or step.facts.due_at
    }
    if not wanted:
        return {}
    now_ms, workers = client.clock_ms(), presence.workers(client)
    sentences: dict[str, str] = {}
    for queue in sorted(wanted):
        serving = [worker for worker in workers if worker.serves(queue)]
        if any(worker.is_live(now_ms) for worker in serving):
            continue
        newest = max(serving, key=lambda worker: worker.seen_at, default=None)
        last = (
            f"; {newest.name} did until {lasting((now_ms - newest.seen_at) / 1000)} ago"
            if newest
            else ""
        )
        sentences[queue] = f"no worker serves queue {queue!r}{last}"
    return sentences


class FlowHead(JsonRecord):
    """Common fields of a flow's records."""

    flow: Annotated[str, Meta(description="`name:id`.")]
    name: str
    id: str
    state: Annotated[str, words(("", *FLOW_STATES))]
    queue: str
    created_at: MomentOrZero
    ended_at: MomentOrZero
    keep_ms: int


class StepRecord(JsonRecord):
    """A step of a flow.

    Attributes:
        size: Number of members so far.
        sealed: Whether all members have been added.
        done: Number of successful members.
        ended: Number of members that have ended at least once.
        dead: Number of currently dead members.
        cancelled: Number of members that failed or were cancelled after the flow was cancelled.
        retried: Number of formerly dead members that run again.
        waits: Description of the pending dependencies, or the reason why the step is skipped.
    """

    step: str
    state: StepState
    kind: Kind
    queue: str
    job: str
    size: int
    sealed: bool
    done: int
    ended: int
    dead: int
    cancelled: int
    retried: int
    due_at: MomentOrZero
    flow: str
    added_at: MomentOrZero
    ready_at: MomentOrZero
    ended_at: MomentOrZero
    after: tuple[Edge, ...]
    waits: str


class FlowRecord(FlowHead):
    """A flow and its steps."""

    refused: Annotated[int, Meta(description="Reports about members that the flow does not have.")]
    members: int
    ended: int
    dead: int
    cancelled: int
    remark: str
    waits_for: tuple[WaitsFor, ...]
    unserved: Annotated[
        dict[str, str], Meta(description="Queues without a worker that steps wait for.")
    ]
    critical_path: tuple[PathStep, ...]
    steps: list[StepRecord]


def flow_record(view: FlowView, missing: dict[str, str]) -> FlowRecord:
    """Return all facts about a flow.

    Args:
        missing: Result of `unserved`.
    """
    return FlowRecord.of(
        view.facts, flow=view.facts.flow_id, state=view.state, members=view.members, ended=view.ended, dead=view.dead,
        cancelled=view.cancelled, remark=view.remark, waits_for=view.waits_for, unserved=missing,
        critical_path=view.critical_path,
        steps=[
            StepRecord.of(step.facts, step=step.name, state=step.state, waits=step_sentence(view, step.name))
            for step in view.steps
        ],
    )  # fmt: skip
