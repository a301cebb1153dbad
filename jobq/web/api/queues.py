"""The overview, queues, messages, reasons why a message waits, and dead messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Annotated

from jobq.errors import ConfigError
from jobq.events import ATTEMPTS
from jobq.jobs.states import STATES
from jobq.observe.why import Reason
from jobq.queue.directory import listed_queues, queue_names
from jobq.queue.queue import Queue
from jobq.records import JsonRecord, Moment, MomentOrZero, words
from jobq.web import search
from jobq.web.api.resource import (
    PAGING,
    ApiCall,
    NotThereError,
    Parameter,
    page_of_rows,
    resource,
)
from jobq.web.api.schema import ListPage, Unread
from jobq.web.filters import PLACES, parse
from jobq.web.findings import findings
from jobq.web.history import ENDS
from jobq.web.live import snapshot_of
from jobq.web.messages import read_message
from jobq.web.search import FoundRows, ListedRow, SearchLimits
from jobq.web.trouble import CODES, QueueFigures
from jobq.web.viewer import contents_of
from jobq.web.words import headline, sentence


class QueueReply(JsonRecord):
    """A queue with its figures.

    Attributes:
        state: The queue's most urgent state.
        oldest_ms: Waiting time of the next message.
        oldest_at_least: Whether the next message may have waited even longer.
        paused: Whether the queue or any of its partitions is paused.
        served_partitions: Number of partitions in which messages may wait, or 1 without partitions.
        paused_partitions: Number of served partitions that are paused.
        empty_in_ms: Estimated time until the queue has no ready messages. Null if never or unknown.
        done_15m: Successful attempts in the last 15 minutes; null until the events have been read.
        pause_ends: When the pause ends; null if only `resume` ends it.
        damaged: Why the queue can't be read, or an empty string.
    """

    queue: str
    state: Annotated[str, words(CODES)]
    sentence: str
    ready: int
    delayed: int
    running: int
    dead: int
    messages: int
    paused: bool
    served_partitions: int
    paused_partitions: int
    pause_ends: Moment | None
    workers: int | None
    slots: int
    oldest_ms: int | None
    oldest_at_least: bool
    dequeued_per_s: float | None
    empty_in_ms: int | None
    done_15m: int | None
    failed_15m: int | None
    dead_15m: int | None
    wait_p95_ms: float | None
    run_p95_ms: float | None
    damaged: str


class AttentionReply(JsonRecord):
    """A problem that needs attention."""

    word: str
    name: str
    text: str
    since: Moment | None


class OverviewReply(JsonRecord):
    """Figures and problems of the whole installation."""

    headline: str
    trouble: bool
    at: Moment
    server_ms: float
    queues: int
    ready: int
    delayed: int
    running: int
    dead: int
    messages: int
    slots: int
    workers: int
    workers_lost: int
    dequeued_per_s: float | None
    needs_a_look: list[AttentionReply]


class MessageRow(JsonRecord):
    """A message in a list."""

    queue: str
    mid: str
    place: Annotated[str, words(PLACES)]
    state: Annotated[str, words(STATES)]
    job: str
    attempts: int
    ncrashes: int
    error: str
    dead_id: str
    at: MomentOrZero
    not_before: MomentOrZero
    lock_expires_at: MomentOrZero
    size: int
    damaged: bool


class SearchPage(ListPage[MessageRow], kw_only=True):
    """The matching messages.

    Attributes:
        looked_at: Messages searched so far.
        unread: Unreadable queues, with the reason.
    """

    looked_at: int
    total: int
    unread: dict[str, str]


class AttemptReply(JsonRecord):
    """An event of a message.

    Attributes:
        started_at: When the attempt started; null if the event doesn't end an attempt.
        place: Where the error was raised: file, line and function.
        traceback: Traceback of the latest failed attempt, if the server still stores it, otherwise empty.
    """

    at: Moment
    kind: str
    attempt: int
    started_at: MomentOrZero
    run_ms: float
    worker: str
    error: str
    place: str
    fingerprint: str
    traceback: str


class MessageReply(JsonRecord):
    """A message with its history."""

    queue: str
    mid: str
    state: Annotated[str, words(STATES)]
    job: str
    attempts: int
    ncrashes: int
    generation: str
    not_before: MomentOrZero
    lock_expires_at: MomentOrZero
    enqueued_at: MomentOrZero
    size: int
    progress: str
    reason: str
    worker: str
    running_since: MomentOrZero
    why: list[Reason]
    history: list[AttemptReply]
    unread: Unread


class WhyReply(JsonRecord):
    """Why a message waits, where it runs, or how it ended.

    Attributes:
        reasons: The first reason decides the state. The other reasons also apply.
    """

    queue: str
    mid: str
    state: Annotated[str, words(STATES)]
    reasons: list[Reason]


FILTER = Parameter("f", "A filter, as in the dashboard: job:shop.* error:Timeout age:>5m.")


@resource("/overview")
def overview(call: ApiCall) -> OverviewReply:
    """Report whether work is moving, and list problems that need attention."""
    snapshot = snapshot_of(call.request)
    listed = findings(call.site, snapshot)
    says = headline(snapshot, len(listed))
    return OverviewReply.of(
        snapshot.totals, headline=says.text, trouble=says.bad, at=snapshot.at_ms,
        server_ms=round(snapshot.server_ms, 3), queues=len(snapshot.queues), running=snapshot.totals.running,
        workers=len(snapshot.workers) - len(snapshot.lost_workers), workers_lost=len(snapshot.lost_workers),
        needs_a_look=[AttentionReply.of(finding) for finding in listed],
    )  # fmt: skip


@resource("/queues", *PAGING)
def queues(call: ApiCall) -> ListPage[QueueReply]:
    """List the queues, starting with queues that have problems."""
    rows = sorted(snapshot_of(call.request).queues.values(), key=lambda figures: figures.trouble)
    return ListPage(**page_of_rows([queue_facts(figures) for figures in rows], call))


@resource("/queues/{queue}")
def queue(call: ApiCall) -> QueueReply:
    """Show one queue."""
    figures = snapshot_of(call.request).of(call["queue"])
    if figures is None:
        raise NotThereError(f"queue {call['queue']!r:.100} does not exist")
    return queue_facts(figures)


@resource(
    "/queues/{queue}/messages",
    Parameter("place", "Place of the messages.  Default: anywhere.", values=("", *PLACES)), FILTER, *PAGING,
)  # fmt: skip
def queue_messages(call: ApiCall) -> SearchPage:
    """List a queue's messages. A search ends after 20,000 messages or a second. To continue, pass `next` as cursor."""
    places = [call["place"]] if call["place"] else list(PLACES)
    return _search_page(call, [_known(call)], places)


@resource("/messages", FILTER._replace(needed=True), *PAGING)
def messages(call: ApiCall) -> SearchPage:
    """Search the messages of all queues."""
    return _search_page(call, listed_queues(call.site.client).names, list(PLACES))


@resource(
    "/dead", Parameter("queues", "Only these queues.", "names"), FILTER, *PAGING
)  # fmt: skip
def dead(call: ApiCall) -> SearchPage:
    """List dead messages, latest first in each queue."""
    return _search_page(call, call["queues"] or listed_queues(call.site.client).names, ["dead"])


@resource("/queues/{queue}/messages/{mid}")
def message(call: ApiCall) -> MessageReply:
    """Show one message: its state, its latest attempts, and why it waits."""
    shown = read_message(call.site.client, contents_of(call.request), _known(call), call["mid"])
    if not shown.is_known:
        raise NotThereError(f"queue {call['queue']} has no message {call['mid']!r:.150}")
    facts, run = shown.facts, shown.facts.run
    # A running attempt has no event.
    kept = {
        (attempt.number, attempt.ended_at): attempt.traceback
        for attempt in shown.attempts
        if attempt.ended_at
    }
    history = [
        AttemptReply.of(
            event, at=event.finished_at, run_ms=event.run_us / 1000,
            started_at=event.started_at if event.kind in ATTEMPTS else 0,
            error=event.error if event.kind in ENDS else "",
            traceback=kept.get((event.attempt, event.finished_at), "") if event.kind in ATTEMPTS else "",
        )
        for event in facts.history
    ]  # fmt: skip
    return MessageReply.of(
        facts.status, queue=facts.queue, mid=facts.mid,
        state=shown.public, job=facts.job,
        enqueued_at=shown.call.enqueued_at, size=shown.call.size, progress=shown.progress, reason=shown.reason,
        worker=run.worker if run else "", running_since=run.started_at if run else 0, why=shown.reasons,
        history=history, unread=shown.unread,
    )  # fmt: skip


@resource("/queues/{queue}/messages/{mid}/why")
def why(call: ApiCall) -> WhyReply:
    """Explain why a message waits, where it runs, or how it ended."""
    shown = read_message(call.site.client, contents_of(call.request), _known(call), call["mid"])
    facts = shown.facts
    return WhyReply(facts.queue, facts.mid, shown.public, shown.reasons)


def queue_facts(figures: QueueFigures) -> QueueReply:
    """Convert a queue's figures to the API's record."""
    empty_in_s, recent = figures.empty_in_s, figures.recent
    known = empty_in_s is not None and math.isfinite(empty_in_s)
    ended = recent.done, recent.failed, recent.dead
    done, failed, dead = (round(number) if recent.known else None for number in ended)
    return QueueReply.of(
        figures, sentence=sentence(figures), oldest_at_least=figures.at_least,
        pause_ends=figures.pause_ends or None, empty_in_ms=round(1000 * (empty_in_s or 0)) if known else None,
        done_15m=done, failed_15m=failed, dead_15m=dead,
        wait_p95_ms=recent.wait_p95_ms, run_p95_ms=recent.run_p95_ms, damaged=figures.broken,
    )  # fmt: skip


def row_facts(listed_row: ListedRow) -> MessageRow:
    """Convert a row of a message list to the API's record."""
    row = listed_row.row
    return MessageRow.of(
        listed_row, queue=row.queue, mid=row.mid, place=row.place, job=row.job, attempts=max(0, row.attempt),
        ncrashes=max(0, row.crashes), error=row.error, at=listed_row.at_ms, damaged=listed_row.is_damaged,
    )  # fmt: skip


def _known(call: ApiCall) -> str:
    name = Queue(call["queue"], call.site.client).name
    if name not in queue_names(call.site.client):
        raise NotThereError(f"queue {name!r:.100} does not exist")
    return name


def _search_page(call: ApiCall, names: Sequence[str], places: Sequence[str]) -> SearchPage:
    keys = search.DEAD_KEYS if list(places) == ["dead"] else (*search.LIVE_KEYS, *search.DEAD_KEYS)
    asked = parse(
        call["f"], may_see_arguments=call.identity.arguments, keys=tuple(dict.fromkeys(keys))
    )
    limits = SearchLimits(rows=call["limit"])
    contents = contents_of(call.request)
    try:
        with call.site.guard.scans.taken() if asked else nullcontext():
            rows: FoundRows = search.messages(
                call.site.client, contents, asked, names, places, call["cursor"], limits
            )
    except ValueError as error:
        raise ConfigError(f"cursor= was not returned by this list: {error}") from error
    return SearchPage(
        items=[row_facts(row) for row in rows.rows], next=rows.cursor or None, looked_at=rows.looked_at,
        total=rows.total, unread=rows.problems,
    )  # fmt: skip
