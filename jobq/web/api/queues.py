"""The overview, queues, messages, why one waits, the dead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from jobq.errors import ConfigError
from jobq.queue.directory import listed_queues, queue_names
from jobq.queue.queue import Queue
from jobq.web import search
from jobq.web.api.resource import (
    PAGING,
    ApiCall,
    NotThereError,
    Parameter,
    page_of_rows,
    resource,
)
from jobq.web.api.shapes import (
    FLAG,
    MOMENT,
    REAL,
    TEXT,
    WHOLE,
    ByName,
    Items,
    Maybe,
    Plain,
    RecordShape,
    Shape,
    Text,
    Whole,
    listed,
)
from jobq.web.filters import PLACES, parse
from jobq.web.findings import findings
from jobq.web.history import ENDS
from jobq.web.live import snapshot_of
from jobq.web.messages import read_message
from jobq.web.search import FoundRows, ListedRow, SearchLimits
from jobq.web.trouble import CODES, QueueFigures
from jobq.web.viewer import contents_of
from jobq.web.words import headline, sentence

QUEUE = RecordShape(
    queue=TEXT, state=Text("What matters most.", values=CODES), sentence=TEXT, ready=WHOLE, delayed=WHOLE,
    locked=WHOLE, dead=WHOLE, messages=WHOLE, paused=FLAG, workers=Maybe(WHOLE), slots=WHOLE,
    oldest_ms=Maybe(Whole("How long the next message has waited.")),
    oldest_at_least=Plain("boolean", "It has waited this long or longer."), handouts_per_s=Maybe(REAL),
    empty_in_ms=Maybe(Whole("Until nothing is ready at this rate; null: never, or unknown.")),
    done_15m=Whole("Attempts of the last 15 minutes."), failed_15m=WHOLE, dead_15m=WHOLE,
    wait_p95_ms=Maybe(REAL), run_p95_ms=Maybe(REAL), damaged=Text("Why it can't be read; '' if it can."),
)  # fmt: skip
ROW = RecordShape(
    queue=TEXT, mid=TEXT, place=Text(values=PLACES), status=TEXT, job=TEXT, attempts=WHOLE, ncrashes=WHOLE,
    error=TEXT, dead_id=TEXT, at=Maybe(MOMENT, zero=True), not_before=Maybe(MOMENT, zero=True),
    lock_at=Maybe(MOMENT, zero=True), size=WHOLE, damaged=FLAG,
)  # fmt: skip
#: What a list that was looked through in part says of itself.
LOOKED: dict[str, Shape] = {
    "looked_at": Whole("Messages that were looked at so far."), "total": WHOLE,
    "unread": ByName(TEXT, "Queues that can't be read, with the reason."),
}  # fmt: skip
REASON = RecordShape(code=TEXT, sentence=TEXT, remedy=TEXT)
FILTER = Parameter("f", "A filter, as the pages take it: job:shop.* error:Timeout age:>5m.")


@resource(
    "/overview",
    RecordShape(
        headline=TEXT, trouble=FLAG, at=MOMENT, server_ms=REAL, queues=WHOLE, ready=WHOLE, delayed=WHOLE,
        locked=WHOLE, dead=WHOLE, messages=WHOLE, slots=WHOLE, workers=WHOLE, workers_lost=WHOLE,
        handouts_per_s=Maybe(REAL),
        needs_a_look=Items(RecordShape(word=TEXT, name=TEXT, text=TEXT, since=Maybe(MOMENT))),
    ),
)  # fmt: skip
def overview(call: ApiCall) -> Any:
    """Say whether work moves, and what needs a look."""
    found = snapshot_of(call.request)
    says, totals = headline(found), found.totals
    return {
        "headline": says.text, "trouble": says.bad, "at": found.at_ms, "server_ms": round(found.server_ms, 3),
        "queues": len(found.queues), "ready": totals.ready, "delayed": totals.delayed, "locked": totals.running,
        "dead": totals.dead, "messages": totals.messages, "slots": totals.slots,
        "workers": len(found.workers) - len(found.lost_workers), "workers_lost": len(found.lost_workers),
        "handouts_per_s": totals.handouts_per_s,
        "needs_a_look": [one._asdict() for one in findings(call.site, found)],
    }  # fmt: skip


@resource("/queues", listed(QUEUE), *PAGING)
def queues(call: ApiCall) -> Any:
    """List the queues, those in trouble first."""
    found = sorted(snapshot_of(call.request).queues.values(), key=lambda one: one.trouble)
    return page_of_rows([queue_facts(one) for one in found], call)


@resource("/queues/{queue}", QUEUE)
def queue(call: ApiCall) -> Any:
    """Show one queue."""
    found = snapshot_of(call.request).queues.get(call["queue"])
    if found is None:
        raise NotThereError(f"no queue is named {call['queue']!r:.100}")
    return queue_facts(found)


@resource(
    "/queues/{queue}/messages", listed(ROW).with_fields(**LOOKED),
    Parameter("place", "Where they are.  Default: anywhere.", values=("", *PLACES)), FILTER, *PAGING,
)  # fmt: skip
def queue_messages(call: ApiCall) -> Any:
    """List messages of a queue. A request looks at 20,000 messages or one second, then `next` goes on."""
    places = [call["place"]] if call["place"] else list(PLACES)
    return _found(call, [_known(call)], places)


@resource("/messages", listed(ROW).with_fields(**LOOKED), FILTER._replace(needed=True), *PAGING)
def messages(call: ApiCall) -> Any:
    """Search the messages of all queues."""
    return _found(call, listed_queues(call.site.client).names, list(PLACES))


@resource(
    "/dead", listed(ROW).with_fields(**LOOKED), Parameter("queues", "Only these queues.", "names"), FILTER, *PAGING
)  # fmt: skip
def dead(call: ApiCall) -> Any:
    """List dead messages, newest first in each queue."""
    return _found(call, call["queues"] or listed_queues(call.site.client).names, ["dead"])


@resource(
    "/queues/{queue}/messages/{mid}",
    RecordShape(
        queue=TEXT, mid=TEXT, status=TEXT, job=TEXT, attempts=WHOLE, ncrashes=WHOLE, generation=TEXT,
        not_before=Maybe(MOMENT, zero=True), lock_at=Maybe(MOMENT, zero=True),
        enqueued_at=Maybe(MOMENT, zero=True), size=WHOLE, progress=TEXT, reason=TEXT, worker=TEXT,
        running_since=Maybe(MOMENT, zero=True), why=Items(REASON),
        history=Items(RecordShape(
            at=MOMENT, kind=TEXT, attempt=WHOLE, run_ms=REAL, worker=TEXT, error=TEXT, fingerprint=TEXT,
        )),
        unread=ByName(TEXT, "What can't be read, with the reason."),
    ),
)  # fmt: skip
def message(call: ApiCall) -> Any:
    """Show one message: where it is, its attempts among the newest events, and why it waits."""
    found = read_message(call.site.client, contents_of(call.request), _known(call), call["mid"])
    if not found.is_known:
        raise NotThereError(f"queue {call['queue']} has no message {call['mid']!r:.150}")
    facts, status = found.facts, found.facts.status
    return {
        "queue": facts.queue, "mid": facts.mid, "status": status.word, "job": facts.job,
        "attempts": status.attempts, "ncrashes": status.ncrashes, "generation": status.generation,
        "not_before": status.not_before, "lock_at": status.lock_at, "enqueued_at": found.call.enqueued_at,
        "size": found.call.size, "progress": found.progress, "reason": found.reason,
        "worker": facts.run.worker if facts.run else "",
        "running_since": facts.run.started_at if facts.run else 0, "why": found.reasons,
        "history": [
            {
                "at": event.finished_at, "kind": event.kind, "attempt": event.attempt,
                "run_ms": event.run_us / 1000, "worker": event.worker,
                "error": event.error if event.kind in ENDS else "", "fingerprint": event.fingerprint,
            }
            for event in facts.history
        ],
        "unread": found.unread,
    }  # fmt: skip


@resource(
    "/queues/{queue}/messages/{mid}/why",
    RecordShape(
        queue=TEXT, mid=TEXT, status=TEXT, reasons=Items(REASON, "The first one decides; the others hold, too.")
    ),
)  # fmt: skip
def why(call: ApiCall) -> Any:
    """Explain why a message waits, where it runs, or how it ended."""
    found = read_message(call.site.client, contents_of(call.request), _known(call), call["mid"])
    facts = found.facts
    return {
        "queue": facts.queue,
        "mid": facts.mid,
        "status": facts.status.word,
        "reasons": found.reasons,
    }


def queue_facts(one: QueueFigures) -> dict[str, Any]:
    """Return a queue's figures by the names of the API."""
    empty_in_s, recent = one.empty_in_s, one.recent
    known = empty_in_s is not None and math.isfinite(empty_in_s)
    return {
        **one._asdict(), "state": one.state, "sentence": sentence(one), "locked": one.running,
        "oldest_at_least": one.at_least, "empty_in_ms": round(1000 * (empty_in_s or 0)) if known else None,
        "done_15m": round(recent.done), "failed_15m": round(recent.failed), "dead_15m": round(recent.dead),
        "wait_p95_ms": recent.wait_p95_ms, "run_p95_ms": recent.run_p95_ms, "damaged": one.broken,
    }  # fmt: skip


def row_facts(one: ListedRow) -> dict[str, Any]:
    """Return a row of a list of messages by the names of the API."""
    row = one.row
    return {
        "queue": row.queue, "mid": row.mid, "place": row.place, "status": one.status, "job": row.job,
        "attempts": max(0, row.attempt), "ncrashes": max(0, row.crashes), "error": row.error,
        "dead_id": one.dead_id, "at": one.at_ms, "not_before": one.not_before, "lock_at": one.lock_at,
        "size": one.size, "damaged": one.is_damaged,
    }  # fmt: skip


def _known(call: ApiCall) -> str:
    name = Queue(call["queue"], call.site.client).name
    if name not in queue_names(call.site.client):
        raise NotThereError(f"no queue is named {name!r:.100}")
    return name


def _found(call: ApiCall, names: Sequence[str], places: Sequence[str]) -> dict[str, Any]:
    keys = search.DEAD_KEYS if list(places) == ["dead"] else (*search.LIVE_KEYS, *search.DEAD_KEYS)
    asked = parse(
        call["f"], may_see_arguments=call.identity.arguments, keys=tuple(dict.fromkeys(keys))
    )
    limits = SearchLimits(rows=call["limit"])
    contents = contents_of(call.request)
    try:
        with call.site.guard.scans.taken() if asked else nullcontext():
            found: FoundRows = search.messages(
                call.site.client, contents, asked, names, places, call["cursor"], limits
            )
    except ValueError as error:
        raise ConfigError(f"cursor= is not one that this list gave: {error}") from error
    return {
        "items": [row_facts(one) for one in found.rows], "next": found.cursor or None,
        "looked_at": found.looked_at, "total": found.total, "unread": found.problems,
    }  # fmt: skip
