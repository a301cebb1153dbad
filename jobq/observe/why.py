"""Explain why a message waits, for `jobq why` and dashboards.

`jobq.observe.facts.Collector` reads the facts; this module doesn't query the server.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from jobq.client.names import base_of
from jobq.durations import counted, lasting, listed
from jobq.events import Event, in_utc
from jobq.flows.identity import Member
from jobq.flows.state import FLOW_OVER, FlowView, step_sentence
from jobq.observe.runs import RunningMessage
from jobq.queue.members import MAX_ENTRIES
from jobq.queue.presence import WorkerEntry
from jobq.queue.rules import KeyFacts
from jobq.queue.types import DeadMessage, Status
from jobq.records import JsonRecord

#: Maximum number of ready messages to count before a message. Beyond that, the text says "over 10,000".
MAX_AHEAD = 10_000
_WAITING = ("queued", "queued-with-backoff", "done-with-requeue")
_RUNNING = ("locked", "locked-with-requeue")
#: Kinds of events after which a queue does not have the message.
ENDED = ("done", "cancelled", "expired", "evicted", "superseded")
_FAILED = ("retry", "crashed", "recovered")
#: The loss of a worker within this time can be the reason why the other workers are busy.
FRESH_MS = 600_000


class Reason(JsonRecord):
    """A reason why a message waits.

    Attributes:
        code: A fixed word that identifies the kind of reason.
        remedy: The action that helps, usually a command; empty if no action is needed.
    """

    code: str
    sentence: str
    remedy: str = ""


class RunningOn(NamedTuple):
    """Where a message runs.

    Attributes:
        started_at: Epoch ms, by the worker's clock.
    """

    worker: str
    pid: int
    started_at: int


class GatheredOn(NamedTuple):
    """The process in which a call waits for its batch.

    Attributes:
        starts_at: Latest time at which the batch starts, in epoch ms.
    """

    worker: str
    pid: int
    starts_at: int


class ServerFacts(NamedTuple):
    """Facts about the server that has a message's queue.

    Attributes:
        evicts: True if the server deletes keys at `maxmemory` instead of rejecting writes.
        disk_error: Why the server rejects writes after a disk error, or ''.
    """

    used_memory: int = 0
    maxmemory: int = 0
    evicts: bool = False
    disk_error: str = ""

    @property
    def is_full(self) -> bool:
        """Return whether the server rejects writes that need memory."""
        return 0 < self.maxmemory <= self.used_memory and not self.evicts

    @property
    def full_sentence(self) -> str:
        """Return a sentence which explains that the server's memory is full."""
        return (
            f"the server's memory is full ({self.used_memory >> 20:,} of {self.maxmemory >> 20:,} MB), so it rejects "
            "enqueues. Waiting jobs still run, which frees memory"
        )


@dataclass(frozen=True)
class MessageFacts:
    """Facts about a message in a queue. Times are epoch ms by the server's clock.

    Attributes:
        job: Name of the job, or '' if unknown.
        ahead: Number of ready messages before this message, at most MAX_AHEAD; None if this message isn't ready.
        workers: All workers that list the queue, including lost workers.
        knows: Worker -> whether the worker can run the job. Workers whose jobs are unknown are left out.
        starts_per_s: Estimated starts per second in the queue, None if unknown.
        history: Events of the message id, oldest first.
        line: State of the message's key; None if the queue doesn't use keys.
        server: State of the queue's server.
        flow_entries: Number of the queue's results that haven't been delivered to flows.
        member: The message's place in a flow, if it belongs to one.
        flow: The message's flow; None if the flow was removed.
        first: Number of ready messages in each queue that a worker empties before it fetches from this queue.
    """

    queue: str
    mid: str
    now_ms: int
    status: Status
    job: str = ""
    paused: bool = False
    pause_ends: int = 0
    ahead: int | None = None
    workers: tuple[WorkerEntry, ...] = ()
    knows: dict[str, bool] = field(default_factory=dict)
    run: RunningOn | None = None
    gathered: GatheredOn | None = None
    starts_per_s: float | None = None
    history: tuple[Event, ...] = ()
    dead: DeadMessage | None = None
    line: KeyFacts | None = None
    server: ServerFacts = field(default_factory=ServerFacts)
    flow_entries: int = 0
    member: Member | None = None
    flow: FlowView | None = None
    first: dict[str, int] = field(default_factory=dict)
    longest: RunningMessage | None = None

    @property
    def lost(self) -> list[WorkerEntry]:
        """Return the queue's lost workers, latest first. Their heartbeats stopped, although they didn't report an
        exit.
        """
        gone = [worker for worker in self.workers if worker.is_lost(self.now_ms)]
        return sorted(gone, key=lambda worker: -worker.seen_at)

    @property
    def live(self) -> list[WorkerEntry]:
        """Return the workers that serve the queue now."""
        return [worker for worker in self.workers if worker.is_live(self.now_ms)]

    @property
    def last(self) -> Event | None:
        """Return the message's latest event."""
        return self.history[-1] if self.history else None

    def since(self, at_ms: int) -> str:
        """Format the time since `at_ms` as text."""
        return lasting((self.now_ms - at_ms) / 1000)

    def until(self, at_ms: int) -> str:
        """Format the time until `at_ms` as text."""
        return lasting((at_ms - self.now_ms) / 1000)


def worker_command(queues: Iterable[str], *jobs: str) -> str:
    """Return the command that starts a worker, with the modules that the jobs' names begin with.

    Names come from messages, which any program may write, so no name may become part of a shell's command.
    """
    modules = dict.fromkeys(job.rpartition(".")[0] for job in jobs)
    known = [name for name in modules if all(map(str.isidentifier, name.split(".")))]
    imports = " ".join(f"--import {name}" for name in known or ["MODULE"])
    served = dict.fromkeys(map(base_of, queues))
    return f"jobq worker {imports} --queues {','.join(map(shlex.quote, served))}"


def why(facts: MessageFacts) -> list[Reason]:
    """Return all reasons that apply, the main reason first. There is always at least one reason."""
    if facts.member is None:
        return _own(facts)
    if facts.status.word == "nil" and not facts.history:
        return [_absent(facts, facts.member)]
    return [*_own(facts), *_of_flow(facts, facts.member)]


def _own(facts: MessageFacts) -> list[Reason]:
    word = facts.status.word
    if word in _RUNNING:
        return list(_running(facts))
    if word not in _WAITING:
        return [_over(facts)]
    reasons = [reason for rule in _HOLDING_UP for reason in rule(facts)]
    is_first = facts.line is not None and facts.line.place == 1
    if all(reason.code == "server_full" for reason in reasons):
        if facts.ahead is None and not is_first:
            text = "waiting: not ready; other messages or limits of its key may block it"
            reasons.append(Reason("not_ready", text, f"jobq key list {facts.queue}"))
        else:
            reasons.append(Reason("next", "waiting: next in line"))
    return reasons


def _absent(facts: MessageFacts, member: Member) -> Reason:
    flow, step, show = facts.flow, member.step, f"jobq flow show {member.flow}"
    if flow is None:
        text = f"flow {member.flow} was never started, or it ended and was deleted"
        return Reason("flow_gone", text, "jobq flow list")
    view = flow.by_name.get(step)
    if view is None:
        return Reason("flow_step_unknown", f"flow {member.flow} has no step {step}", show)
    if view.state in ("waiting", "skipped"):
        return Reason(f"flow_{view.state}", step_sentence(flow, step), show)
    if view.state == "ready":
        text = f"step {step} of flow {member.flow} is ready; the next worker to finish a member sends it"
        text += view.facts.needs_room and f", {view.facts.needs_room}"
        return Reason("flow_ready", text, "jobq flow check")
    if member.number >= view.facts.size:
        text = f"step {step} of flow {member.flow} has {view.facts.size:,} members, but no member {member.number:,}"
        return Reason("flow_member_unknown", text, show)
    if view.state == "running":
        text = f"the message has ended or is not enqueued yet; step {step} of flow {member.flow} is running"
        if view.facts.todo and view.facts.needs_room:
            text += f", and its members are enqueued {view.facts.needs_room}"
        return Reason("flow_running", text, show)
    return Reason(f"flow_{view.state}", f"step {step} of flow {member.flow} is {view.state}", show)


def _of_flow(facts: MessageFacts, member: Member) -> Iterator[Reason]:
    flow, show = facts.flow, f"jobq flow show {member.flow}"
    of = f"member {member.number:,} of step {member.step} of flow {member.flow}"
    if flow is None:
        yield Reason("flow_gone", f"it is {of}, which ended and was deleted")
    elif facts.status.word == "dead":
        text = f"it is {of}, which is {flow.state}; a retry of the flow revives the message"
        yield Reason("flow", text, f"jobq flow retry {member.flow} {member.step}")
    elif flow.state in FLOW_OVER:
        yield Reason("flow", f"it is {of}, which is {flow.state}", show)
    elif facts.status.word not in (*_WAITING, *_RUNNING):
        yield Reason("flow", f"it was {of}, which hasn't ended: {flow.progress}", show)
    else:
        yield Reason("flow", f"it is {of}; the flow waits for this message: {flow.progress}", show)


def _over(facts: MessageFacts) -> Reason:
    word, last = facts.status.word, facts.last
    if word == "dead":
        return _dead(facts)
    if word == "done-with-backoff":
        return _rejected(facts)
    if last is not None and last.kind in ENDED:
        by = f" by {last.worker}" if last.worker else ""
        return Reason(last.kind, f"{last.kind} {facts.since(last.finished_at)} ago{by}")
    if word != "nil":
        return Reason("done", "done")
    return Reason("not_found", f"queue {facts.queue} does not have this message")


def _rejected(facts: MessageFacts) -> Reason:
    last, until = facts.last, facts.until(facts.status.not_before)
    remedy = "to run it again now, enqueue it with another id"
    kind = last.kind if last is not None else ""
    if last is not None and kind == "cancelled":
        ago = f"cancelled {facts.since(last.finished_at)} ago"
        text = f"{ago}; its id is rejected for another {until}, until the lease of its run ends"
        return Reason(kind, text, remedy)
    cause = ", because it was enqueued with until" if kind == "done" else ""
    return Reason("deduped", f"done; its id is rejected for another {until}{cause}", remedy)


def _dead(facts: MessageFacts) -> Reason:
    dead = facts.dead
    if dead is None:
        return Reason("dead", "dead", f"jobq dead show {facts.mid}")
    after = f" after {counted(dead.attempts, 'attempt')}" if dead.attempts > 0 else ""
    first = _first_line(dead.reason)
    remedy = f"jobq dead show {facts.mid}, then jobq dead revive {facts.mid}"
    if facts.last is not None and facts.last.is_crash:
        remedy += (
            f", once the job no longer kills its process; jobq dead purge {facts.mid} deletes it"
        )
    text = f"dead for {facts.since(dead.died_at)}{after}{': ' if first else ''}{first}"
    return Reason("dead", text, remedy)


def _running(facts: MessageFacts) -> Iterator[Reason]:
    status, run = facts.status, facts.run
    attempt = f"attempt {status.attempts}"
    ends = f"the lease ends in {facts.until(status.lock_expires_at)} unless renewed"
    if run is None and facts.gathered is not None:
        where = f"{facts.gathered.worker}, child {facts.gathered.pid}"
        starts = max(facts.gathered.starts_at, facts.now_ms)
        text = f"waits in {where} for more calls of its batch, which starts in {facts.until(starts)} or when full"
        yield Reason("gathering", text)
    elif run is None:
        text = (
            f"fetched by a worker, {attempt}, but not reported as running yet; it runs after other messages of that "
            f"process, or with its batch; {ends}"
        )
        yield Reason("handed_out", text)
    elif gone := next((worker for worker in facts.lost if worker.name == run.worker), None):
        text = (
            f"ran on {_lost_worker(facts, gone)}; the lease ends in {facts.until(status.lock_expires_at)}, then "
            "another worker runs the message"
        )
        yield Reason("worker_lost", text, _host_remedy(gone))
    else:
        where = f"{run.worker}, child {run.pid}"
        text = f"has run for {facts.since(run.started_at)} in {where}, {attempt}; {ends}"
        yield Reason("running", text)
    if status.word == "locked-with-requeue":
        yield Reason("requeued", "newer arguments with the same id wait for the end of this run")


def _disk(facts: MessageFacts) -> Iterator[Reason]:
    if facts.server.disk_error:
        text = f"waiting: the server rejects writes, so messages can't start: {facts.server.disk_error}"
        yield Reason("server_read_only", text, "see the server's log; usually the disk is full")


def _full(facts: MessageFacts) -> Iterator[Reason]:
    server = facts.server
    if server.is_full:
        remedy = "raise maxmemory, or delete dead messages and results: jobq dead purge"
        yield Reason("server_full", server.full_sentence, remedy)


def pause_words(ends_at: int | None, npaused: int = 0, nserved: int = 0) -> str:
    """Describe a queue's pause, such as `paused in 1 of 4 partitions until 2026-11-28T08:00:00.000Z`.

    Args:
        ends_at: When the pause ends, in epoch ms; 0 or None if it doesn't end by itself.
        npaused: Number of paused partitions. If all `nserved` partitions are paused, the text doesn't give numbers.
    """
    partly = f" in {npaused:,} of {nserved:,} partitions" if 0 < npaused < nserved else ""
    return f"paused{partly}{f' until {in_utc(ends_at)}' if ends_at else ''}"


def _paused(facts: MessageFacts) -> Iterator[Reason]:
    if facts.paused:
        text = f"waiting: the queue is {pause_words(facts.pause_ends)}"
        yield Reason("paused", text, f"jobq resume {facts.queue}")


def _flows_behind(facts: MessageFacts) -> Iterator[Reason]:
    if facts.flow_entries > MAX_ENTRIES:
        text = (
            f"waiting: queue {facts.queue} is blocked, because {facts.flow_entries:,} results wait for delivery to "
            f"flows; it resumes below {MAX_ENTRIES:,} results"
        )
        yield Reason(
            "flows_behind", text, "jobq flow check, and find out why workers don't deliver results"
        )


def _delayed(facts: MessageFacts) -> Iterator[Reason]:
    status = facts.status
    if not status.not_before:
        return
    if status.not_before <= facts.now_ms:
        late = facts.since(status.not_before)
        text = f"waiting: it was due {late} ago; the next dequeue makes the message ready"
        yield Reason("upkeep_late", text)
        return
    left = facts.until(status.not_before)
    last = facts.last or Event("", "", 0)
    if status.unknowns:
        text = f"due in {left}: the worker that received it does not know its job ({counted(status.unknowns, 'time')})"
        yield Reason("unknown_backoff", text, "start a worker that imports the job's module")
    elif last.kind in _FAILED:
        text = f"next attempt in {left}; attempt {last.attempt} failed: {_first_line(last.error)}"
        yield Reason("retrying", text.rstrip(": "))
    elif last.kind == "snoozed" and last.error.startswith("limit "):
        limit, ago = _first_line(last.error), facts.since(last.finished_at)
        asked = "" if limit.endswith("asked") else f" rejected a start {ago} ago"
        yield Reason("limited", f"due in {left}: {limit}{asked}", "jobq limit list")
    elif last.kind == "snoozed":
        yield Reason("snoozed", f"due in {left}: the job asked to run later")
    elif status.attempts:
        text = f"next attempt in {left}, after {counted(status.attempts, 'attempt')}"
        yield Reason("retrying", text)
    else:
        yield Reason("delayed", f"due in {left}: it was enqueued with a delay")


def _lost_worker(facts: MessageFacts, worker: WorkerEntry) -> str:
    host = f" on host {worker.host}" if worker.host else ""
    return (
        f"worker {worker.name}{host}, which is lost: no heartbeat for {facts.since(worker.seen_at)}"
    )


def _host_remedy(worker: WorkerEntry) -> str:
    return f"check whether {f'host {worker.host}' if worker.host else 'its host'} is up"


def _lost(facts: MessageFacts) -> Iterator[Reason]:
    lost, run = facts.lost, facts.run
    if lost and not facts.live:
        text = f"waiting: the queue was served by {_lost_worker(facts, lost[0])}; no other worker serves it"
        remedy = f"{_host_remedy(lost[0])}, or {worker_command([facts.queue], facts.job)}"
        yield Reason("worker_lost", text, remedy)
    elif run is not None and (gone := next((w for w in lost if w.name == run.worker), None)):
        text = f"waiting: it ran on {_lost_worker(facts, gone)}; the next dequeue recovers it"
        yield Reason("worker_lost", text, _host_remedy(gone))


def _recovering(facts: MessageFacts) -> Iterator[Reason]:
    lock_expires_at = facts.status.lock_expires_at
    if 0 < lock_expires_at <= facts.now_ms:
        text = f"waiting: its worker's lease ended {facts.since(lock_expires_at)} ago; the next dequeue recovers it"
        yield Reason("lease", text)


def _served(facts: MessageFacts) -> Iterator[Reason]:
    live = facts.live
    remedy = worker_command([facts.queue], facts.job)
    if not live and not facts.lost:
        yield Reason("no_worker", f"waiting: no worker serves queue {facts.queue}", remedy)
    elif live and all(worker.quiet for worker in live):
        names = listed([worker.name for worker in live])
        text = f"waiting: all workers of queue {facts.queue} are quiet or stopping: {names}"
        yield Reason("all_quiet", text, "send CONT to a quiet worker, or start another worker")


def _known(facts: MessageFacts) -> Iterator[Reason]:
    live = [worker for worker in facts.live if worker.name in facts.knows]
    without = [worker.name for worker in live if not facts.knows[worker.name]]
    if not without or not facts.job:
        return
    remedy = (
        f"{worker_command([facts.queue], facts.job)}; if another job replaces it: "
        f'@job(aliases=["{facts.job}"])'
    )
    if len(without) == len(facts.live):
        text = f"waiting: no worker of queue {facts.queue} knows the job {facts.job}"
        yield Reason("unknown_job", f"{text} ({listed(without)})", remedy)
    else:
        text = f"{len(without)} of {len(facts.live)} workers do not know the job {facts.job}"
        yield Reason("unknown_job_partly", f"{text}: {listed(without)}", remedy)


def _ruled(facts: MessageFacts) -> Iterator[Reason]:
    line, queue = facts.line, facts.queue
    if line is None or facts.status.not_before > facts.now_ms:
        return
    if line.queue_max is not None and line.queue_running >= line.queue_max:
        text = f"waiting: the queue runs {line.queue_running:,} of {line.queue_max:,} messages"
        yield Reason("queue_max", text, f"jobq key set {queue} --max N, if more may run")
    if line.key:
        yield from _keyed(facts, line)


def _keyed(facts: MessageFacts, line: KeyFacts) -> Iterator[Reason]:
    queue, key = facts.queue, line.key
    if line.held_until > facts.now_ms:
        text = f"waiting: key {key} is on hold for {facts.until(line.held_until)} (HoldKey)"
        yield Reason("key_held", text, f"jobq key hold {queue} {key} 0")
    if line.starts_at > facts.now_ms:
        used = f" ({line.rate} used up)" if line.rate else ""
        text = f"waiting: key {key} may start again in {facts.until(line.starts_at)}{used}"
        yield Reason(
            "key_rate", text, f"jobq key set {queue} {key} --rate RATE, if it may run faster"
        )
    place = f"waiting: place {line.place:,} in the line of key {key}"
    if line.max is not None and line.running >= line.max:
        names = [mid for mid, _ in line.holders]
        text = f"{place}; {line.running:,} of {line.max:,} run: {listed(names)}"
        yield Reason("key_max", text, f"jobq key set {queue} {key} --max N, if more may run")
    elif line.place > 1:
        yield Reason("line", place)
    if line.place and line.keys_before:
        text = f"waiting: {counted(line.keys_before, 'key')} take turns before key {key}"
        yield Reason("turns", text, f"jobq key set {queue} {key} --weight N, for more turns")


def _starved(facts: MessageFacts) -> Iterator[Reason]:
    working = [worker for worker in facts.live if not worker.quiet]
    full = [
        {name for name in worker.before(facts.queue) if facts.first.get(name)} for worker in working
    ]
    if not full or not all(full):
        return
    names = sorted(set[str]().union(*full), key=lambda name: -facts.first[name])
    counts = listed([f"{facts.first[name]:,} in {name}" for name in names])
    text = (
        f"waiting: its workers use --strict, so ready messages of other queues run first: {counts}"
    )
    yield Reason("starved", text, f"start a worker with --queues {facts.queue}")


def _behind(facts: MessageFacts) -> Iterator[Reason]:
    working = [worker for worker in facts.live if not worker.quiet]
    slots = sum(worker.slots for worker in working)
    busy = min(slots, sum(worker.running for worker in working))
    if facts.ahead is None or not working or not (facts.ahead or busy == slots > 0):
        return
    over = "over " if facts.ahead >= MAX_AHEAD else ""
    ahead = f"{over}{counted(facts.ahead, 'message')} of the queue come before it"
    text = f"waiting: {ahead if facts.ahead else 'it comes next'}"
    if slots:
        text += f"; {busy:,} of {slots:,} slots are busy"
    cause = list(_why_busy(facts, busy == slots > 0))
    yield from cause
    if facts.longest and not cause:
        text += f"; longest: {facts.longest.sentence(facts.now_ms)}"
    remedy = "" if cause else "if that is too slow, add processes or workers"
    yield Reason("busy", text + _arrival(facts), remedy)
    if busy == slots > 0 and facts.starts_per_s == 0:
        text = (
            "no run ended in the last minute; running jobs may be waiting for results of waiting jobs, such as this "
            "message, which is a deadlock"
        )
        remedy = "use a flow (jobq.Flow), or run the awaited jobs on separate workers"
        yield Reason("pool_full", text, remedy)


def _why_busy(facts: MessageFacts, all_busy: bool) -> Iterator[Reason]:
    longest, lost = facts.longest, facts.lost
    silent = [worker.name for worker in facts.live if worker.is_silent(facts.now_ms)]
    if (
        all_busy
        and longest is not None
        and longest.is_stuck(facts.now_ms)
        and longest.worker not in silent
    ):
        remedy = (
            f"jobq control dump {longest.worker} shows where the job hangs; jobq cancel {longest.mid} stops it; "
            f"jobq running {facts.queue} lists all running jobs"
        )
        text = f"waiting: all slots are busy, and {longest.sentence(facts.now_ms)}"
        yield Reason("stuck", text, remedy)
    if all_busy and lost and facts.now_ms - lost[0].seen_at < FRESH_MS:
        text = f"waiting: the queue was also served by {_lost_worker(facts, lost[0])}"
        yield Reason("worker_lost", text, _host_remedy(lost[0]))


def _arrival(facts: MessageFacts) -> str:
    rate = facts.starts_per_s
    if rate is None or not facts.ahead:
        return ""
    if not rate:
        return "; no attempt ended in the last minute"
    wait_s = facts.ahead / rate
    return f"; {rate:,.1f} starts/s: about {lasting(wait_s / 2)} to {lasting(wait_s * 2)}"


#: In the order in which a person should take care of them.
_HOLDING_UP: tuple[Callable[[MessageFacts], Iterator[Reason]], ...] = (
    _disk, _paused, _flows_behind, _full, _lost, _known, _delayed, _recovering, _served, _ruled, _starved, _behind,
)  # fmt: skip


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:200].strip()
