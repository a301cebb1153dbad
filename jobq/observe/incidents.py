"""Find the problems of a deployment from given facts. Causes come before their symptoms.

`jobq queues`, `jobq workers`, `jobq check doctor` and the dashboard's first page show these findings in the same words.
`jobq.observe.situation` reads the facts; this module doesn't query the server.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jobq.client.names import base_of
from jobq.durations import counted, lasting, listed
from jobq.events import CRASH, Event
from jobq.observe.runs import RunningMessage
from jobq.observe.why import ENDED, FRESH_MS, ServerFacts, pause_words, worker_command
from jobq.queue.presence import WorkerEntry
from jobq.queue.types import Counts
from jobq.records import JsonRecord

#: Crashes count for this long.
CRASHES_MS = 900_000
#: A backlog is worth a finding when its next message has waited longer, or it takes longer to work off.
LATE_S = 60.0
SERVER_CODES = frozenset(("server_read_only", "server_full"))


class Incident(JsonRecord):
    """A problem found in a deployment.

    Attributes:
        code: A fixed word that identifies the kind of problem.
        headline: The problem in a few words.
        sentence: The problem in a sentence, with its figures.
        remedy: The action that solves the problem, usually a command; empty if no action is needed.
        queues: Queues whose problems this incident explains; empty if it concerns the whole server.
        worker: The worker with the problem, if there is one.
        job: The job with the problem, if there is one.
        mid: The message with the problem, if there is one.
    """

    code: str
    headline: str
    sentence: str
    remedy: str = ""
    queues: tuple[str, ...] = ()
    worker: str = ""
    job: str = ""
    mid: str = ""

    def concerns(self, queue: str) -> bool:
        """Return whether this incident explains a problem of the queue."""
        return queue in self.queues or self.code in SERVER_CODES


class QueueFacts(NamedTuple):
    """Facts about a queue. A fact that wasn't read is None or empty.

    Attributes:
        unknown: For each job, the number of waiting messages that a worker returned because it didn't know the job. The
            numbers are estimates if there are many messages.
        longest: The message that has run longest.
        crashes: The latest crashes, latest first, including crashes that dead-lettered a message.
        last_kinds: For each crashed message, the kind of its latest event.
        deleted: Crashed messages that the queue no longer has, and that didn't finish.
        job: The job of the next message; '' if unknown.
    """

    counts: Counts
    oldest_ms: int | None = None
    unknown: Mapping[str, int] = {}
    longest: RunningMessage | None = None
    crashes: Sequence[Event] = ()
    starts_per_s: float | None = None
    last_kinds: Mapping[str, str] = {}
    deleted: frozenset[str] = frozenset()
    job: str = ""


@dataclass(frozen=True)
class Situation:
    """Facts about a deployment at a moment.

    Attributes:
        now_ms: The server's time in epoch ms.
        workers: The last heartbeat of every worker; None if they can't be read.
        knows: For each digest in a worker's heartbeat, the names of the jobs that the worker can run.
        running: For each lost worker, the number of running messages at its last heartbeat.
        unread: Queues whose facts can't be read, with the reason.
    """

    now_ms: int
    server: ServerFacts = field(default_factory=ServerFacts)
    workers: Sequence[WorkerEntry] | None = ()
    queues: Mapping[str, QueueFacts] = field(default_factory=dict)
    knows: Mapping[str, frozenset[str]] = field(default_factory=dict)
    running: Mapping[str, int] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)

    def live(self, queue: str) -> list[WorkerEntry]:
        """Return the workers that serve a queue now."""
        return [
            worker
            for worker in self.workers or ()
            if worker.serves(queue) and worker.is_live(self.now_ms)
        ]

    def lost(self) -> list[WorkerEntry]:
        """Return the lost workers, latest first. Lost workers stopped sending heartbeats without reporting an exit."""
        lost = [worker for worker in self.workers or () if worker.is_lost(self.now_ms)]
        return sorted(lost, key=lambda worker: -worker.seen_at)

    def ago(self, at_ms: int) -> str:
        """Format the time since `at_ms` as text."""
        return lasting((self.now_ms - at_ms) / 1000)


def incidents(situation: Situation) -> list[Incident]:
    """Return the problems. A problem is left out if an earlier problem in the list explains it."""
    shown: list[Incident] = []
    for rule, is_symptom in _RULES:
        for incident in rule(situation):
            left = [
                queue
                for queue in incident.queues
                if not any(cause.concerns(queue) for cause in shown)
            ]
            if not is_symptom or left or not incident.queues:
                shown.append(incident)
    return shown


def _server(situation: Situation) -> Iterator[Incident]:
    server = situation.server
    if server.disk_error:
        text = f"the server rejects writes, so jobs can't start: {server.disk_error}"
        remedy = "see the server's log; usually the disk is full"
        yield Incident("server_read_only", "The server rejects writes", text, remedy)
    if server.is_full:
        remedy = "raise maxmemory, or delete dead messages and results: jobq dead purge"
        yield Incident("server_full", "The server's memory is full", server.full_sentence, remedy)


def _unread(situation: Situation) -> Iterator[Incident]:
    for queue, error in situation.unread.items():
        text = f"queue {queue} can't be read, so its state is unknown: {error}"
        yield Incident(
            "queue_unreadable", f"{queue} can't be read", text, f"jobq check fsck {queue}", (queue,)
        )


def _lost(situation: Situation) -> Iterator[Incident]:
    yield from _lost_hosts(situation, 0)


def _lost_but_replaced(situation: Situation) -> Iterator[Incident]:
    yield from _lost_hosts(situation, 1)


def _lost_hosts(situation: Situation, rank: int) -> Iterator[Incident]:
    by_host: dict[str, list[WorkerEntry]] = defaultdict(list)
    for worker in situation.lost():
        if _rank_of_lost(situation, worker) == rank:
            by_host[worker.host].append(worker)
    for host, workers in by_host.items():
        yield _lost_host(situation, host, workers)


def _lost_before(situation: Situation) -> Iterator[Incident]:
    for worker in situation.lost():
        if _rank_of_lost(situation, worker) > 1:
            yield _lost_host(situation, worker.host, [worker], explains=False)


def _rank_of_lost(situation: Situation, worker: WorkerEntry) -> int:
    """Return 0 if messages wait for the lost worker, 1 if other workers serve its queues, and 2 if it was lost long
    ago.
    """
    unserved = [queue for queue in worker.queues if not situation.live(queue)]
    facts = [situation.queues[queue] for queue in unserved if queue in situation.queues]
    is_fresh = situation.now_ms - worker.seen_at < FRESH_MS
    if any(queue.counts.ready for queue in facts) or (is_fresh and unserved):
        return 0
    return 1 if is_fresh else 2


def _lost_host(
    situation: Situation, host: str, workers: Sequence[WorkerEntry], explains: bool = True
) -> Incident:
    names = listed([worker.name for worker in workers])
    seen = situation.ago(max(worker.seen_at for worker in workers))
    ran = sum(situation.running.get(worker.name, worker.running) for worker in workers)
    queues = sorted({base_of(queue) for worker in workers for queue in worker.queues})
    alone = [queue for queue in queues if not situation.live(queue)]
    which, count = "worker", "it counts"
    if len(workers) > 1:
        which, count = counted(len(workers), "worker"), "they count"
    where = f" on host {host}" if host else ""
    text = f"{which} {names}{where}: no heartbeat for {seen}, so {count} as lost"
    if ran and alone:
        text += f"; {counted(ran, 'running message')} must wait for another worker"
    elif ran and explains:
        text += f"; other workers take over {counted(ran, 'running message')}"
    if alone:
        text += f"; no other worker serves {listed(alone)}"
    remedy = f"check whether {f'host {host}' if host else 'its host'} is up"
    if alone:
        remedy += f"; start a worker: {worker_command(alone, *_jobs(situation, alone))}"
    headline = f"{counted(len(workers), 'worker')} lost{f' on {host}' if host else ''}"
    worker = workers[0].name if len(workers) == 1 else ""
    return Incident(
        "worker_lost", headline, text, remedy, tuple(queues) if explains else (), worker
    )


def _unknown(situation: Situation) -> Iterator[Incident]:
    for queue, facts in situation.queues.items():
        for job, number in sorted(facts.unknown.items(), key=lambda item: -item[1]):
            yield from _unknown_job(situation, queue, job, number)


def lacking(situation: Situation, queue: str, job: str) -> tuple[list[str], int]:
    """Return a queue's live workers that can't run a job, and the number of live workers whose jobs are known."""
    asked = [worker for worker in situation.live(queue) if worker.jobs in situation.knows]
    return [worker.name for worker in asked if job not in situation.knows[worker.jobs]], len(asked)


def _unknown_job(situation: Situation, queue: str, job: str, number: int) -> Iterator[Incident]:
    without, asked = lacking(situation, queue, job)
    if asked and not without:
        return  # a worker that knows it has come: it gets the messages with their next try
    name = job or "a job with a sealed name"
    waiting = f"{counted(number, 'message')} wait{'s' * (number == 1)}"
    live = len(situation.live(queue))
    if situation.workers is None or (live and not asked):
        who = f"a worker of queue {queue} received messages but doesn't know the job {name}"
        headline = f"A worker doesn't know {name}"
    elif without and len(without) < live:
        headline = f"Some workers don't know {name}"
        who = f"{len(without)} of {counted(live, 'worker')} of queue {queue} don't know {name}"
    else:
        headline = f"No worker knows {name}"
        who = f"no worker of queue {queue} knows the job {name}"
    lack = f" (not known to {listed(without)})" if without else ""
    remedy = f"deploy the module that declares {name}"
    if job:
        remedy += f', or keep the old name as an alias of its replacement: @job(aliases=["{job}"])'
    worker = without[0] if len(without) == 1 else ""
    yield Incident(
        "unknown_job", headline, f"{who}; {waiting}{lack}", remedy, (queue,), worker, job
    )


def _poison(situation: Situation) -> Iterator[Incident]:
    for queue, facts in situation.queues.items():
        by_job: dict[str, list[Event]] = defaultdict(list)
        for event in _unexplained(situation, facts):
            by_job[event.job].append(event)
        for job, crashes in by_job.items():
            # A single crash has many causes, such as a signal of an operator or of the kernel.
            if len(crashes) == 1:
                continue
            mids = list(dict.fromkeys(crash.mid for crash in crashes))
            if facts.deleted.issuperset(mids):
                continue  # an operator took care of it
            text = (
                f"job {job or '(unknown)'} of queue {queue} kills its worker processes: "
                f"{len(crashes):,} crashes in {lasting(CRASHES_MS / 1000)}, by {listed(mids, 3)}"
            )
            error = crashes[0].error.partition("\n")[0][:200].strip()
            error = "" if error == CRASH else error
            mid, remedy = _of_crashed(facts, mids)
            yield Incident(
                "poison", f"{job or 'A job'} kills its processes", f"{text}{': ' * bool(error)}{error}",
                remedy, (queue,), crashes[0].worker, job, mid,
            )  # fmt: skip


def _unexplained(situation: Situation, facts: QueueFacts) -> list[Event]:
    """Return recent crashes. If a message crashed once and then succeeded, leave out its crash."""
    recent = [crash for crash in facts.crashes if situation.now_ms - crash.finished_at < CRASHES_MS]
    times = Counter(crash.mid for crash in recent)
    return [
        crash
        for crash in recent
        if times[crash.mid] > 1 or facts.last_kinds.get(crash.mid) != "done"
    ]


def _of_crashed(facts: QueueFacts, mids: Sequence[str]) -> tuple[str, str]:
    """Return a message to inspect, and a remedy. Prefer a message that can run again."""
    for mid in mids:
        if facts.last_kinds.get(mid) not in (*ENDED, "dead", "cleared"):
            return mid, f"jobq why {mid}; jobq cancel {mid} stops it"
    for mid in mids:
        if facts.last_kinds[mid] == "dead":
            return mid, f"jobq dead show {mid}; jobq dead purge {mid} deletes it"
    return mids[0], f"jobq why {mids[0]}"


def _stuck(situation: Situation) -> Iterator[Incident]:
    for queue, facts in situation.queues.items():
        busy, slots = _busy(situation, queue, facts)
        longest = facts.longest
        if not facts.counts.ready or longest is None or (slots and busy < slots):
            continue
        if longest.is_stuck(situation.now_ms):
            text = (
                f"queue {queue} is blocked: {longest.sentence(situation.now_ms)}; {_used(busy, slots)}, "
                f"{facts.counts.ready:,} ready"
            )
            remedy = f"jobq control dump {longest.worker} shows where the job hangs; jobq cancel {longest.mid} stops it"
            worker = next(
                (other for other in situation.live(queue) if other.name == longest.worker), None
            )
            if worker is not None and worker.is_silent(situation.now_ms):
                text += f". The worker has been silent for {situation.ago(worker.seen_at)}"
                remedy = (
                    f"check whether {f'host {worker.host}' if worker.host else 'its host'} is up"
                )
            yield Incident(
                "stuck", f"{longest.job or longest.mid} blocks {queue}", text, remedy, (queue,),
                longest.worker, longest.job, longest.mid,
            )  # fmt: skip


def _busy(situation: Situation, queue: str, facts: QueueFacts) -> tuple[int, int]:
    working = [worker for worker in situation.live(queue) if not worker.quiet]
    slots = sum(worker.slots for worker in working)
    running = max(facts.counts.locked, sum(worker.running for worker in working))
    return min(running, slots) if slots else running, slots


def _used(busy: int, slots: int) -> str:
    # Without slots, the workers are unknown or stop after their running jobs.
    return f"{busy:,} of {slots:,} slots are busy" if slots else f"{busy:,} running"


def _jobs(situation: Situation, queues: Iterable[str]) -> list[str]:
    return [situation.queues[queue].job for queue in queues if queue in situation.queues]


def _unserved(situation: Situation) -> Iterator[Incident]:
    if situation.workers is None:
        return
    for queue, facts in situation.queues.items():
        live, ready = situation.live(queue), facts.counts.ready
        if not ready or facts.counts.all_paused:
            continue
        if not live:
            text = f"queue {queue}: {ready:,} ready, and no worker serves it"
            remedy = worker_command([queue], facts.job)
            yield Incident("no_worker", f"No worker serves {queue}", text, remedy, (queue,))
        elif all(worker.quiet for worker in live):
            names = listed([worker.name for worker in live])
            text = f"all workers of queue {queue} are quiet or stopping ({names}); {ready:,} ready"
            quiet = [worker.name for worker in live if not worker.leaving]
            remedy = f"start another worker: {worker_command([queue], facts.job)}"
            if quiet:
                remedy = f"jobq control resume {quiet[0]}, or start another worker"
            yield Incident("all_quiet", f"All workers of {queue} are quiet", text, remedy, (queue,))


def _paused(situation: Situation) -> Iterator[Incident]:
    for queue, facts in situation.queues.items():
        if facts.counts.paused and facts.counts.ready:
            counts = facts.counts
            paused = pause_words(0, counts.paused_partitions, counts.served_partitions)
            text = f"queue {queue} is {paused}; {counts.ready:,} ready"
            yield Incident("paused", f"{queue} is {paused}", text, f"jobq resume {queue}", (queue,))


def _backlog(situation: Situation) -> Iterator[Incident]:
    for queue, facts in situation.queues.items():
        ready, rate = facts.counts.ready, facts.starts_per_s
        late = facts.oldest_ms is not None and facts.oldest_ms > LATE_S * 1000
        takes_s = ready / rate if rate else None
        if not ready or not (late or (takes_s is not None and takes_s > LATE_S)):
            continue
        busy, slots = _busy(situation, queue, facts)
        oldest = f", the next has waited {lasting((facts.oldest_ms or 0) / 1000)}" * late
        pace = (
            f"; {rate:,.1f} starts/s, empty in about {lasting(takes_s)}" if rate and takes_s else ""
        )
        used = f"; {_used(busy, slots)}" if situation.workers is not None else ""
        text = f"queue {queue} has a backlog: {ready:,} ready{oldest}{used}{pace}"
        yield Incident(
            "backlog", f"{queue} has a backlog", text,
            f"add processes or workers: {worker_command([queue], facts.job)}", (queue,),
        )  # fmt: skip


#: In the order in which a person should take care of them, each with whether it is a symptom: left out where a finding
#: before it explains the same queue.
_RULES: tuple[tuple[Callable[[Situation], Iterator[Incident]], bool], ...] = (
    (_server, False), (_unread, False), (_lost, False), (_unknown, False), (_poison, False), (_paused, False),
    (_stuck, False), (_lost_but_replaced, False), (_unserved, True), (_backlog, True), (_lost_before, False),
)  # fmt: skip
