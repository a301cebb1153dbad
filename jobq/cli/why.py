"""`jobq workers` and `jobq why`: show running jobs, and why a message doesn't run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from msgspec import structs

from jobq.cli.arguments import names_of
from jobq.cli.attention import attention, incidents_at
from jobq.cli.messages import (
    UNKNOWN,
    mids_argument,
    note_unread,
    outcome_lines,
    outcomes,
    queues_to_ask,
)
from jobq.cli.options import limit_option, option, queues_arguments, queues_option
from jobq.cli.output import Listing
from jobq.cli.ruby import on_systems
from jobq.cli.session import Session, command
from jobq.durations import counted, lasting
from jobq.flows.identity import member_of
from jobq.flows.listing import flow_view, message_of_member
from jobq.observe.facts import Collector, public_state
from jobq.observe.runs import RunningMessage
from jobq.observe.situation import running, runs_of
from jobq.observe.why import MessageFacts, Reason, why
from jobq.observe.workers import WorkerRecord, worker_record, workers_of
from jobq.protocols.ruby.claim_search import claimed_job
from jobq.protocols.ruby.key_names import RubyQueueName
from jobq.queue import presence
from jobq.queue.presence import ChildEntry
from jobq.queue.queue import Queue
from jobq.queue.types import Status
from jobq.records import JsonRecord, Moment

GONE = Reason(
    "not_found", "it is in no queue, and the latest events do not mention it",
    "compare --url and --namespace with the producer's; jobq report reads the lake",
)  # fmt: skip
WORKERS = Listing(
    ("worker", "state", "queues:queue_list", "busy:busy", "memory:memory", "seen:seen", "version", "host"),
    ("host", "version", "memory"),
    "no workers running; start one with 'jobq worker --import MODULE'",
)  # fmt: skip
JOBS = Listing(
    ("worker", "child", "queue", "mid", "job", "for:took", "usually:usual"), ("child", "queue")
)

RUNNING = Listing(
    ("queue", "mid", "job", "for:took", "usually:usual", "worker", "child"), ("child", "queue"),
    "workers report no running jobs; reports come every third of a lease, 5 seconds by default",
)  # fmt: skip


@command("workers", "", "--queues low", "--json | jq .children")
@queues_option
def workers(session: Session, queues: str | None) -> None:
    """List the workers and their running jobs.

    A worker's state is working, quiet (it stopped fetching messages), leaving, lost (no heartbeat for a lease plus 5
    seconds; its messages are returned), or damaged (another program wrote the entry). The column `busy` shows the
    numbers of running jobs and slots, up to 5 seconds old. The column `usually` shows the 95th percentile of the job's
    latest run times. The entry of a lost worker is removed after an hour.

    Below the table, the command lists problems and remedies.
    """
    client = session.client
    shown = workers_of(client, names_of(queues) if queues else ())
    children: dict[str, tuple[ChildEntry, ...] | None] = {}
    with session.tolerating("running jobs", "list of"):
        children = presence.running(client, [worker.name for worker in shown])
    now_ms = client.clock_ms()
    records = [worker_record(worker, children.get(worker.name, ()), now_ms) for worker in shown]
    if session.as_json:
        session.say_all(records, WORKERS)
        return
    session.say_all(map(_for_people, records), WORKERS)
    runs: list[RunningMessage] = []
    with session.tolerating("running jobs", "list of"):
        live = {worker.name for worker in shown if worker.is_live(now_ms)}
        runs = runs_of(client, {name: children[name] for name in children if name in live})
    for line in ["", *session.lines([_run_row(run, now_ms) for run in runs], JOBS)] if runs else ():
        click.echo(line)
    chosen = sorted({name for worker in shown for name in worker.queues}) if queues else None
    for line in attention(incidents_at(client, chosen)):
        click.echo(line)


def _run_row(run: RunningMessage, now_ms: int) -> dict[str, str]:
    usual = "" if run.usual_ms is None else lasting(run.usual_ms / 1000)
    return {
        "worker": run.worker, "child": str(run.pid), "queue": run.queue, "mid": run.mid, "job": run.job,
        "took": lasting(run.took_ms(now_ms) / 1000), "usual": usual,
    }  # fmt: skip


class RunningRecord(JsonRecord):
    """A running message.

    Attributes:
        child: Process id of the worker's child process, which runs the message.
        job: Name of the job, or empty if it is unknown.
        started_at: Start of the attempt, by the server's clock.
        took_ms: How long the attempt has run.
        usual_ms: 95th percentile of the job's latest run times; null if there are too few.
    """

    queue: str
    mid: str
    job: str
    worker: str
    child: int
    started_at: Moment
    took_ms: int
    usual_ms: int | None


@command(
    "running", "", "mails", "mails --newest --limit 20", "--json | jq 'select(.took_ms > 60000)'"
)
@queues_arguments
@option("--newest", "Show the latest first.  [default: the longest-running]")
@limit_option(100, 500)
def running_(session: Session, queues: str | None, newest: bool, limit: int) -> None:
    """List running jobs, longest-running first: job, run time, usual run time, worker.

    Each worker reports up to 500 jobs, three times per lease (by default every 5 seconds). Until a worker's next
    report, a newly started job is missing, and an ended job is still listed. The column `usually` shows the 95th
    percentile of the job's latest run times, or nothing if fewer than 3 runs finished recently. 'jobq cancel MID' stops
    a job.
    """
    client = session.client
    runs = running(client, names_of(queues) if queues else ())
    now_ms = client.clock_ms()
    shown = (runs[::-1] if newest else runs)[:limit]
    rows = [
        RunningRecord(
            run.queue, run.mid, run.job, run.worker, run.pid, run.started_at, run.took_ms(now_ms), run.usual_ms
        ) if session.as_json else _run_row(run, now_ms)
        for run in shown
    ]  # fmt: skip
    session.say_all(rows, RUNNING)
    if len(runs) > len(shown) and not session.as_json:
        session.remark(f"{len(runs) - len(shown):,} more; add --limit")


def _for_people(record: WorkerRecord) -> dict[str, Any]:
    return structs.asdict(record) | {
        "queue_list": ",".join(record.queues),
        "busy": f"{record.running}/{record.slots}" if record.slots else str(record.running),
        "memory": f"{record.rss >> 20:,} MB" if record.rss else "",
        "seen": f"{lasting(record.seen_ms / 1000)} ago" if record.seen_at else "",
    }


@command("why", "resize:a.jpg", "resize:a.jpg resize:b.jpg --queues low --json")
@mids_argument
@queues_option
@on_systems
def why_(
    session: Session, mids: tuple[str, ...], queues: str | None, systems: Sequence[RubyQueueName]
) -> bool:
    """Explain why messages wait, where they run, or how they ended.

    The main reason and its remedy come first, then other reasons, the attempts, the traceback of the latest failed
    attempt, and the result. Exit code 1: a message is in no queue.
    """
    known = [_why(session, mid, queues, systems) for mid in mids]
    return all(known)


def _why(session: Session, mid: str, queues: str | None, systems: Sequence[RubyQueueName]) -> bool:
    mid = message_of_member(session.client, mid)
    asked = queues_to_ask(session, session.readable(queues), mid)
    answers = list(session.from_each(asked, lambda queue: [_facts(queue, mid)])) if asked else []
    known = False
    for facts, collector in answers:
        is_known = facts.status.word != UNKNOWN or bool(facts.history)
        note_unread(session, facts.queue, collector.unread, is_known)
        known = known or is_known
        if not is_known:
            continue
        job = f", {facts.job}" if facts.job else ""
        _show(session, f"{mid} (queue {facts.queue}{job})", why(facts), {
            "mid": mid, "queue": facts.queue, "state": public_state(facts.status, facts.history), "job": facts.job,
            **outcomes(session, collector, facts),
        })  # fmt: skip
    # A queue that can't be read may know it.
    if not known and not session.problems and member_of(mid) is not None:
        return _of_flow(session, mid)
    if not known and not session.problems:
        return _of_ruby(session, mid, asked, systems)
    return known


def _of_ruby(
    session: Session, mid: str, queues: Sequence[str], namespaces: Sequence[RubyQueueName]
) -> bool:
    """Explain a message that is in no queue. Return whether it is a Ruby job on its way to a jobq queue."""
    places = [system._replace(queue=name) for name in queues for system in namespaces]
    claimed, unread = claimed_job(session.client, places, mid)
    if unread and claimed is None:
        session.note(
            f"{counted(len(unread), 'claim')} of the Ruby intake can't be read: {unread[0]}"
        )
    record = {"mid": mid, "queue": None, "state": "unknown", "job": ""}
    if claimed is None:
        _show(session, mid, [GONE], record)
        return False
    place = claimed.ruby_queue
    left_ms = claimed.lease_at - session.client.clock_ms()
    held = (
        "an intake holds the claim and enqueues the job once its key's queue has room"
        if left_ms > 0
        else f"the claim's intake has been gone for {lasting(-left_ms / 1000)}; the next intake takes it over"
    )
    text = f"waiting in a claim: a worker took it from {place}, and it isn't in queue {place.queue} yet; {held}"
    space = f" --{place.system}-namespace {place.namespace}" if place.namespace else ""
    remedy = (
        f"jobq key list {place.queue}; jobq ruby claims --{place.system} {place.queue}{space}; "
        "the worker's log names the key"
    )
    reasons = [Reason("ruby_claim", text, remedy)]
    _show(session, f"{mid} ({place})", reasons, record | {"queue": place.queue})
    return True


def _of_flow(session: Session, mid: str) -> bool:
    member = member_of(mid)
    view = None if member is None else flow_view(session.client, member.run)
    facts = MessageFacts(
        "", mid, session.client.clock_ms(), Status(UNKNOWN), member=member, flow=view
    )
    _show(session, mid, why(facts), {"mid": mid, "queue": None, "state": "unknown", "job": ""})
    return view is not None


def _facts(queue: Queue, mid: str) -> tuple[MessageFacts, Collector]:
    collector = Collector(queue, result=True)
    return collector.collect(mid), collector


def _show(session: Session, title: str, reasons: list[Reason], record: dict[str, Any]) -> None:
    lines = [
        line
        for reason in reasons
        for line in (f"  {reason.sentence}", f"      {reason.remedy}")
        if line.strip()
    ]
    session.say(record | {"reasons": reasons}, title, *lines, *outcome_lines(record))
