"""Workers, schedules, limits, topics, the queues of other systems, and the audit log."""

from __future__ import annotations

import math
from typing import Any

from jobq.errors import ConfigError, JobqError, LakeError, UnavailableError
from jobq.limits.directory import LimitFacts, limit_facts
from jobq.observe.workers import STATES, worker_records, workers_of
from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.rsmq import Rsmq
from jobq.queue.audit_log import AuditEntry, AuditLog, without_values
from jobq.queue.directory import listed_queues
from jobq.schedules.listing import names_of, schedule_row, schedules_of_queues
from jobq.topics.calls import topic_names
from jobq.web import foreign
from jobq.web.api.resource import (
    PAGING,
    ApiCall,
    NotThereError,
    Parameter,
    cursor_text,
    page_of_rows,
    read_cursor,
    resource,
)
from jobq.web.api.shapes import (
    FLAG,
    MOMENT,
    NAMES,
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
from jobq.web.sources import sources_of

UNREAD: dict[str, Shape] = {"unread": ByName(TEXT, "What can't be read, with the reason.")}
WORKER = RecordShape(
    worker=TEXT, state=Text(values=STATES), host=TEXT, pid=WHOLE, version=TEXT, queues=NAMES, slots=WHOLE,
    running=WHOLE, rss=Whole("Resident memory of its children, in bytes."), started_at=Maybe(MOMENT, zero=True),
    seen_at=Maybe(MOMENT, zero=True), seen_ms=WHOLE, quiet=FLAG,
    children=Items(RecordShape(
        pid=WHOLE, state=TEXT, rss=WHOLE, ended=WHOLE,
        running=Items(RecordShape(queue=TEXT, mid=TEXT, started_at=MOMENT)),
    )),
)  # fmt: skip
SCHEDULE = RecordShape(
    queue=TEXT, schedule=TEXT, job=TEXT, cron=TEXT, every_ms=Whole("0 for a cron expression."), zone=TEXT,
    origin=TEXT, paused=FLAG,
    next_at=Maybe(MOMENT), last_at=Maybe(MOMENT), last_mid=TEXT, late_ms=WHOLE, problem=TEXT,
)  # fmt: skip
LIMIT = RecordShape(
    limit=TEXT, rule=TEXT, used=WHOLE, set_here=Plain("boolean", "A command set it, not the program."),
    program=Text("What the programs say."), waits_ms=WHOLE, held_ms=WHOLE,
    holders=Items(RecordShape(who=TEXT, left_ms=WHOLE)),
)  # fmt: skip
TOPIC = RecordShape(
    topic=TEXT, messages=WHOLE, first=WHOLE, last=WHOLE, bytes=WHOLE, groups=WHOLE,
    lag=Maybe(Whole("The greatest of its groups; null if not asked for.")), newest_at=Maybe(MOMENT, zero=True),
)  # fmt: skip
GROUP = RecordShape(
    group=TEXT, lag=WHOLE, age_ms=WHOLE, settled=WHOLE, handed_out=WHOLE, held=WHOLE, expired=WHOLE, skipped=WHOLE,
    out_of_range=TEXT, paused=FLAG,
)  # fmt: skip
AUDIT = RecordShape(
    id=TEXT, at=MOMENT, who=TEXT, role=TEXT, verb=TEXT, queue=TEXT, filter=TEXT, number=Maybe(WHOLE), op=TEXT,
    phase=TEXT, note=TEXT, damaged=FLAG, source=Text("Where it is kept.", values=("server", "lake")),
)  # fmt: skip


@resource(
    "/workers",
    listed(WORKER),
    Parameter("queues", "Only those that serve one of these.", "names"),
    *PAGING,
)
def workers(call: ApiCall) -> Any:
    """List the workers and what they run."""
    client, now_ms = call.site.client, call.now_ms
    page = page_of_rows(workers_of(client, call["queues"]), call)
    return page | {"items": worker_records(client, page["items"], now_ms)}


@resource("/workers/{worker}", WORKER)
def worker(call: ApiCall) -> Any:
    """Show one worker."""
    client, now_ms = call.site.client, call.now_ms
    found = [one for one in workers_of(client) if one.name == call["worker"]]
    if not found:
        raise NotThereError(f"no worker is named {call['worker']!r:.150}")
    return worker_records(client, found, now_ms)[0]


@resource("/cron", listed(SCHEDULE).with_fields(**UNREAD), *PAGING)
def cron(call: ApiCall) -> Any:
    """List the schedules of all queues."""
    rows, unread = [], dict[str, str]()
    for queue, found in schedules_of_queues(
        call.site.client, listed_queues(call.site.client).names
    ).items():
        if isinstance(found, JobqError):
            if isinstance(found, UnavailableError) and not call.site.client.is_cluster:
                raise found
            unread[queue] = str(found)
            continue
        for name in names_of(found):
            row = schedule_row(queue, name, found)
            one = row.schedule
            rows.append({
                "queue": queue, "schedule": name, "job": one.job if one else "", "cron": one.cron if one else "",
                "every_ms": one.every_ms if one else 0, "zone": one.tz if one else "", "origin": row.origin,
                "paused": row.paused, "next_at": row.next_ms, "last_at": row.last_ms, "last_mid": row.last_mid,
                "late_ms": row.late_ms, "problem": row.problem,
            })  # fmt: skip
    return page_of_rows(rows, call) | {"unread": unread}


@resource("/limits", listed(LIMIT), *PAGING)
def limits(call: ApiCall) -> Any:
    """List the limits of jobs."""
    return page_of_rows([_limit(one) for one in limit_facts(call.site.client)], call)


def _limit(one: LimitFacts) -> dict[str, Any]:
    return {
        "limit": one.name, "rule": one.rule, "used": one.used, "set_here": one.is_set, "program": one.program,
        "waits_ms": _ms(one.turn_s), "held_ms": _ms(one.held_s),
        "holders": [{"who": holder.who, "left_ms": _ms(holder.left_s)} for holder in one.holders],
    }  # fmt: skip


def _ms(seconds: float) -> int:
    return round(1000 * seconds) if math.isfinite(seconds) else 0


@resource(
    "/topics",
    listed(TOPIC).with_fields(**UNREAD),
    Parameter("cursor", "`next` of the reply before."),
)
def topics(call: ApiCall) -> Any:
    """List the topics, 100 a page."""
    at = _offset(call)
    found = foreign.topics(call.site.client, at)
    return _listed(found, at)


@resource(
    "/topics/{topic}",
    RecordShape(
        topic=TEXT, messages=WHOLE, first=WHOLE, last=WHOLE, nbytes=WHOLE, oldest_at=Maybe(MOMENT, zero=True),
        newest_at=Maybe(MOMENT, zero=True), compacted_to=WHOLE, groups=Items(GROUP), **UNREAD,
    ),
)  # fmt: skip
def topic(call: ApiCall) -> Any:
    """Show a topic and where its groups are."""
    if call["topic"] not in topic_names(call.site.client):
        raise NotThereError(f"there is no topic {call['topic']!r:.100}")
    return foreign.topic(call.site.client, call["topic"])


@resource(
    "/rsmq",
    listed(RecordShape(
        queue=TEXT, visible=WHOLE, hidden=WHOLE, sent=WHOLE, received=WHOLE, vt_ms=WHOLE, delay_ms=WHOLE,
    )).with_fields(**UNREAD),
    Parameter("cursor", "`next` of the reply before."),
)  # fmt: skip
def rsmq(call: ApiCall) -> Any:
    """List the queues of RSMQ, 100 a page."""
    at = _offset(call)
    found = foreign.rsmq_queues(Rsmq(call.site.client), at)
    rows = [
        {
            "queue": row["queue"], "visible": row["visible"], "hidden": row["hiddenmsgs"], "sent": row["totalsent"],
            "received": row["totalrecv"], "vt_ms": 1000 * row["vt"], "delay_ms": 1000 * row["delay"],
        }
        for row in found.rows
    ]  # fmt: skip
    return _listed(found._replace(rows=rows), at)


@resource(
    "/reliable",
    listed(RecordShape(
        key=TEXT, undelivered=WHOLE, delivered=WHOLE, dead=WHOLE, promised=WHOLE, max_deliveries=WHOLE, last_id=TEXT,
    )).with_fields(**UNREAD, complete=Plain("boolean", "Whether all keys of the server were looked at.")),
    Parameter("cursor", "`next` of the reply before."),
)  # fmt: skip
def reliable(call: ApiCall) -> Any:
    """List the queues of RELIABLEQ, 100 a page."""
    at = _offset(call)
    found = foreign.reliable_queues(ReliableQueue(call.site.client), at)
    return _listed(found.readable, at) | {"complete": found.found.whole}


@resource(
    "/ruby",
    RecordShape(
        queues=Items(RecordShape(system=TEXT, queue=TEXT, waiting=WHOLE, taken=WHOLE, held=WHOLE)),
        workers=Items(RecordShape(system=TEXT, worker=TEXT, queues=NAMES, busy=WHOLE)), **UNREAD,
    ),
)  # fmt: skip
def ruby(call: ApiCall) -> Any:
    """Show the queues and workers of Sidekiq and Resque."""
    found, served = foreign.ruby_queues(call.site.client), foreign.ruby_workers(call.site.client)
    return {"queues": found.rows, "workers": served.rows, "unread": found.unread | served.unread}


@resource("/audit", listed(AUDIT).with_fields(**UNREAD), *PAGING)
def audit(call: ApiCall) -> Any:
    """List who changed what, the newest first: what the server keeps, then what a lake has of the time before."""
    before = read_cursor(call["cursor"]) or ""
    if not isinstance(before, str):
        raise ConfigError("cursor= is not one that this list gave; leave it out")
    limit, unread = call["limit"], dict[str, str]()
    here = AuditLog(call.site.client).page(before, limit)
    found, lake = [(one, "server") for one in here], sources_of(call.site).lake
    if lake is not None and len(here) < limit:
        last = here[-1].entry_id if here else before
        try:
            older = lake.audit(last, {}, limit - len(here), intents=True)
            found += [(one, "lake") for one in older]
        except LakeError as error:
            unread["lake"] = str(error)
    return {
        "items": [_entry(one, call) | {"source": source} for one, source in found], "unread": unread,
        "next": cursor_text(found[-1][0].entry_id) if len(found) == limit else None,
    }  # fmt: skip


def _entry(one: AuditEntry, call: ApiCall) -> dict[str, Any]:
    if not call.identity.arguments:
        one = one._replace(filter=without_values(one.filter))
    return one._asdict() | {"id": one.entry_id, "at": one.at_ms}


def _offset(call: ApiCall) -> int:
    at = read_cursor(call["cursor"]) or 0
    if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at < 10**9:
        raise ConfigError("cursor= is not one that this list gave; leave it out")
    return at


def _listed(found: foreign.Readable, at: int) -> dict[str, Any]:
    following = cursor_text(at + foreign.MOST_ROWS) if found.more else None
    return {"items": found.rows, "next": following, "unread": found.unread}
