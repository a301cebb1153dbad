"""API resources for workers, schedules, limits, topics, other systems' queues, and the audit log."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from jobq.errors import JobqError, LakeError
from jobq.limits.directory import LimitRecord, limit_facts
from jobq.observe.workers import WorkerRecord, worker_records, workers_of
from jobq.protocols.reliable import ReliableQueue, ReliableRecord
from jobq.protocols.rsmq import Rsmq
from jobq.protocols.ruby.dashboard_entries import RubyWorker
from jobq.protocols.ruby.queue_records import RubyQueueRecord
from jobq.queue.audit_log import AuditEntry, AuditLog, KeptAuditEntry, without_values
from jobq.queue.directory import listed_queues
from jobq.records import JsonRecord
from jobq.schedules.listing import (
    ScheduleRecord,
    known_if_readable,
    of_queue,
    paused_queues,
    schedule_records,
    schedules_of_queues,
)
from jobq.topics.calls import topic_names
from jobq.web import foreign
from jobq.web.api.resource import (
    PAGING,
    ApiCall,
    NotThereError,
    Parameter,
    cursor_text,
    offset_of,
    page_of_rows,
    read_cursor,
    resource,
)
from jobq.web.api.schema import ListPage, ReadablePage, Unread
from jobq.web.sources import sources_of

CURSOR = PAGING[1]


class RsmqReply(JsonRecord):
    """One queue of RSMQ."""

    queue: str
    visible: int
    hidden: int
    sent: int
    received: int
    vt_ms: int
    delay_ms: int


class ReliablePage(ReadablePage[ReliableRecord], kw_only=True):
    """Queues of RELIABLEQ."""

    complete: Annotated[bool, Meta(description="Whether all keys of the server were searched.")]


class RubyReply(JsonRecord):
    """The queues and workers of Sidekiq and Resque."""

    queues: list[RubyQueueRecord]
    workers: list[RubyWorker]
    unread: Unread


@resource(
    "/workers",
    Parameter("queues", "Only workers serving one of these queues.", "names"),
    *PAGING,
)
def workers(call: ApiCall) -> ListPage[WorkerRecord]:
    """List the workers and their running jobs."""
    client, now_ms = call.site.client, call.now_ms
    page = page_of_rows(workers_of(client, call["queues"]), call)
    return ListPage(items=worker_records(client, page["items"], now_ms), next=page["next"])


@resource("/workers/{worker}")
def worker(call: ApiCall) -> WorkerRecord:
    """Show one worker."""
    client, now_ms = call.site.client, call.now_ms
    entries = [entry for entry in workers_of(client) if entry.name == call["worker"]]
    if not entries:
        raise NotThereError(f"worker {call['worker']!r:.150} does not exist")
    return worker_records(client, entries, now_ms)[0]


@resource("/schedules", *PAGING)
def schedules(call: ApiCall) -> ReadablePage[ScheduleRecord]:
    """List the schedules of all queues."""
    client, rows, unread = call.site.client, list[ScheduleRecord](), dict[str, str]()
    known = known_if_readable(client)
    of_queues = schedules_of_queues(client, listed_queues(client).names)
    paused = paused_queues(client, of_queues)
    for queue, reply in of_queues.items():
        if isinstance(reply, JobqError):
            unread[queue] = str(reply)
        else:
            rows += schedule_records(queue, reply, of_queue(known, queue), queue in paused)
    return ReadablePage(**page_of_rows(rows, call), unread=unread)


@resource("/limits", *PAGING)
def limits(call: ApiCall) -> ListPage[LimitRecord]:
    """List the limits of jobs."""
    return ListPage(**page_of_rows(limit_facts(call.site.client), call))


@resource("/topics", CURSOR)
def topics(call: ApiCall) -> ReadablePage[foreign.TopicRow]:
    """List the topics, 100 a page."""
    at = offset_of(call)
    return ReadablePage(**_listed(foreign.topics(call.site.client, at), at))


@resource("/topics/{topic}")
def topic(call: ApiCall) -> foreign.TopicView:
    """Show a topic and the positions of its groups."""
    if call["topic"] not in topic_names(call.site.client):
        raise NotThereError(f"no topic {call['topic']!r:.100}")
    return foreign.topic(call.site.client, call["topic"])


@resource("/rsmq", CURSOR)
def rsmq(call: ApiCall) -> ReadablePage[RsmqReply]:
    """List the queues of RSMQ, 100 a page."""
    at = offset_of(call)
    listed = foreign.rsmq_queues(Rsmq(call.site.client), at)
    rows = [
        RsmqReply(
            row["queue"], row["visible"], row["hiddenmsgs"], row["totalsent"], row["totalrecv"], 1000 * row["vt"],
            1000 * row["delay"],
        )
        for row in listed.rows
    ]  # fmt: skip
    page = _listed(listed, at)
    page["items"] = rows
    return ReadablePage(**page)


@resource("/reliable", CURSOR)
def reliable(call: ApiCall) -> ReliablePage:
    """List the queues of RELIABLEQ, 100 a page."""
    at = offset_of(call)
    listed = foreign.reliable_queues(ReliableQueue(call.site.client), at)
    return ReliablePage(**_listed(listed.readable, at), complete=listed.queues.whole)


@resource("/ruby")
def ruby(call: ApiCall) -> RubyReply:
    """Show the queues and workers of Sidekiq and Resque."""
    queues, served = foreign.ruby_queues(call.site.client), foreign.ruby_workers(call.site.client)
    return RubyReply(queues.rows, served.rows, queues.unread | served.unread)


@resource("/audit", *PAGING)
def audit(call: ApiCall) -> ReadablePage[KeptAuditEntry]:
    """List entries of the audit log, latest first. Older entries come from a lake."""
    before = read_cursor(call["cursor"], str) or ""
    limit, unread = call["limit"], dict[str, str]()
    here = AuditLog(call.site.client).page(before, limit)
    entries, lake = [(entry, "server") for entry in here], sources_of(call.site).lake
    if lake is not None and len(here) < limit:
        last = here[-1].entry_id if here else before
        try:
            older = lake.audit(last, {}, limit - len(here), intents=True)
            entries += [(entry, "lake") for entry in older]
        except LakeError as error:
            unread["lake"] = str(error)
    following = cursor_text(entries[-1][0].entry_id) if len(entries) == limit else None
    rows = [_entry(entry, source, call) for entry, source in entries]
    return ReadablePage(items=rows, next=following, unread=unread)


def _entry(entry: AuditEntry, source: str, call: ApiCall) -> KeptAuditEntry:
    shown = entry.filter if call.identity.arguments else without_values(entry.filter)
    return KeptAuditEntry.of(entry, source=source, filter=shown)


def _listed(readable: foreign.Readable[Any], at: int) -> dict[str, Any]:
    following = cursor_text(at + foreign.MAX_ROWS) if readable.more else None
    return {"items": readable.rows, "next": following, "unread": readable.unread}
