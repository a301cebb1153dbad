"""The intake moves Ruby's jobs into queues of jobq while a worker runs them.

In each round, the intake handles every Ruby queue: it takes over the claims of a crashed intake, claims up to 100 jobs
and enqueues them. While a jobq queue is paused or has about a second's work, the intake doesn't claim more jobs for it,
so that the jobs stay visible to Ruby. If a key has too many waiting messages, the intake holds back only jobs with this
key. An idle intake sleeps until a list has jobs or the next scheduled job is due. It uses one thread in its own
process.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TypeVar

from jobq.client.clock import Reminder
from jobq.client.connection import Client, connect
from jobq.client.names import base_of
from jobq.config import HARD_MAX_CONTENT
from jobq.durations import counted
from jobq.errors import CodecError, ConfigError, JobqError
from jobq.jobs.codec import decode
from jobq.jobs.registry import Registry, default_registry
from jobq.jobs.signing import opened, seal_of
from jobq.protocols.ruby.claims import LIMIT, Claim, ClaimedMessage, Claims
from jobq.protocols.ruby.dashboard_entries import ResqueEntry, SidekiqEntry
from jobq.protocols.ruby.dead_jobs import DeadJobs, refuse
from jobq.protocols.ruby.duplicate_jids import DuplicateJids
from jobq.protocols.ruby.job_format import Arrival, read_job, refused
from jobq.protocols.ruby.key_names import RubyQueueName
from jobq.protocols.ruby.lists import ListWaiter
from jobq.protocols.ruby.prefetch import PrefetchWindow
from jobq.protocols.ruby.queue_records import usable_queues
from jobq.protocols.ruby.retries import RubyJobCounts
from jobq.protocols.ruby.scheduled import promote
from jobq.protocols.ruby.settings import FedWorker, IntakeSettings, expanded
from jobq.queue.partitioning import created
from jobq.queue.queue import Queue

logger = logging.getLogger("jobq")
IDLE_S = 2.0
#: First and longest pause while jobq queues are full.
FIRST_PAUSE_S, PAUSE_S = 0.01, 0.25
TROUBLE_S = 1.0
COMPLAIN_S = 10.0
BEAT_S = 5.0
#: How often to look for queues that match a pattern, as Resque's workers do.
MATCH_S = 5.0
#: How often claims with waiting jobs are retried, and how many such claims stop the claiming of more jobs.
PARKED_S, MAX_PARKED = 0.25, 50
#: How long a call waits for a server, because other queues wait as long. A later round retries unfinished work.
PATIENCE_S = 2.0
T = TypeVar("T")


class DeclaredKeys:
    """Computes a call's key with the key function of the job. Calls of jobs without a key function have no key."""

    def __init__(self, registry: Registry) -> None:
        self._find = registry.find
        self._any = any(job.settings.key is not None for job in registry)

    def keyed(self, arrival: Arrival) -> Arrival:
        """Return the claimed job with its key. Raises ConfigError if the key function rejects the job's arguments."""
        if not self._any:
            return arrival
        call = decode(arrival.content)
        job = self._find(call.job)
        if job is None or job.settings.key is None:
            return arrival
        try:
            key = job.key_of(call.args, call.kwargs)
        except Exception as error:  # the function is the program's
            raise ConfigError(f"the job's key function failed: {error}") from error
        if key is None:
            return arrival
        return arrival._replace(key=key, ordered=bool(job.settings.ordered))


class QueueIntake:
    """Moves the jobs of one Ruby queue to one jobq queue."""

    def __init__(
        self, ruby: Client, ruby_queue: RubyQueueName, queue: Queue, settings: IntakeSettings
    ) -> None:
        self.ruby_queue, self.queue, self.settings = ruby_queue, queue, settings
        self.claims = Claims(ruby, ruby_queue, settings.lease_s)
        self._ruby = ruby
        self._seal = seal_of(queue.client)
        self._keys = DeclaredKeys(default_registry)
        self._shared = DuplicateJids(ruby_queue, queue, self._seal)
        self._window = PrefetchWindow(settings.backlog)
        self._reminder = Reminder()
        #: Whether the last round had no room for more jobs, or left jobs waiting.
        self.full = False
        self._owed: Claim | None = None
        self._rescue_at = self._parked_at = 0.0
        #: Claims whose jobs wait for room, oldest first, with the keys of the waiting jobs.
        self.parked: dict[str, set[str]] = {}

    def carry(self, greedy: bool) -> int:
        """Claim and enqueue jobs once; return their number.

        Args:
            greedy: Claim as many jobs as possible, regardless of the backlog.
        """
        moved = self._carry_owed() + self._carry_parked()
        ready, room = (0, LIMIT) if greedy else self._room()
        if len(self.parked) >= MAX_PARKED:
            room = 0
        if room:
            self._owed = self.claims.take(room)
            self._window.took(ready, room, len(self._owed.jobs), time.monotonic())
            moved += self._carry_owed()
        self.full = not room or bool(self.parked)
        return moved

    def _carry_owed(self) -> int:
        """Enqueue the jobs of an unfinished claim. At intervals, take over expired claims of other workers."""
        if self._owed is None and time.monotonic() >= self._rescue_at:
            self._rescue_at = time.monotonic() + self.settings.lease_s / 3
            self._owed = self.claims.rescue()
            if self._owed:
                logger.warning(
                    "%s: took over %s from another intake",
                    self.ruby_queue,
                    counted(len(self._owed.jobs), "job"),
                )
        if self._owed is None:
            return 0
        moved = 0
        if self._owed.jobs:
            moved = self._deliver(
                self._owed, {key for some in self.parked.values() for key in some}
            )
        else:
            self.claims.settle(self._owed.claim_id)
        self._owed = None
        return moved

    def _carry_parked(self) -> int:
        """Try again to enqueue claimed jobs that the queue rejected because a key had too many messages."""
        moved, now = 0, time.monotonic()
        if not self.parked or now < self._parked_at:
            return 0
        self._parked_at = now + PARKED_S
        stopped: set[str] = set()
        for claim_id in list(self.parked):
            claim = self.claims.reread(claim_id)
            if claim.jobs:
                moved += self._deliver(claim, stopped)
            else:
                del self.parked[claim_id]
        return moved

    def _room(self) -> tuple[int, int]:
        """Return the number of ready messages, and the number of jobs to claim."""
        counts = self.queue.admin.counts()
        room = 0 if counts.all_paused else self._window.room(counts.ready, time.monotonic())
        return counts.ready, room

    def _deliver(self, claim: Claim, stopped: set[str]) -> int:
        """Enqueue the jobs of a claim and return their number. If some jobs must wait, keep the claim in `parked`.

        Args:
            stopped: Keys of messages waiting in claims; this call adds the keys of rejected messages.
        """
        arrivals, njobs = [], 0
        for index, raw in enumerate(claim.jobs):
            if raw == claim.delivered:
                continue
            njobs += 1
            own = f"{claim.claim_id}.{index}"
            arrival = self._read(raw, own)
            try:
                self._sealed(arrival.mid, arrival.content)
            except CodecError as error:
                # If the job has two faults, report the first.
                refuse(self._ruby, self.ruby_queue, raw, arrival.fault or str(error), once=own)
                continue
            if arrival.fault:
                logger.error(
                    "%s: %s will be dead-lettered: %s", self.ruby_queue, arrival.mid, arrival.fault
                )
            elif arrival.caution and self._reminder.is_due(arrival.caution):
                logger.warning("%s: %s: %s", self.ruby_queue, arrival.mid, arrival.caution)
            arrivals.append((own, arrival))
        apart = self._shared.apart(arrivals)
        by_place = {int(own.rpartition(".")[2]): (own, job) for own, job in apart}
        messages = [
            ClaimedMessage(place, job.mid, self._sealed(job.mid, job.content), job.key, job.ordered)
            for place, (_, job) in by_place.items()
        ]

        def settle(message: ClaimedMessage) -> None:
            own, job = by_place[message.place]
            self._shared.settle(own, job, message.content, self._sealed(own, job.content))

        left = self.claims.deliver(claim, messages, self.queue, settle, stopped)
        self.parked.pop(claim.claim_id, None)
        if left:
            self.parked[claim.claim_id] = {message.key for message in left}
        return njobs - len(left)

    def _read(self, raw: bytes, own: str) -> Arrival:
        arrival = read_job(self.ruby_queue, raw, own, self.settings.names)
        if arrival.fault:
            return arrival
        try:
            return self._keys.keyed(arrival)
        except ConfigError as error:
            return refused(self.ruby_queue, raw, arrival.mid, str(error))

    def _sealed(self, mid: str, content: bytes) -> bytes:
        """Return the content to enqueue, sealed if calls are sealed. Raises CodecError if the content is too long."""
        if self._seal is not None:
            # Add a nonce, because pushing an identical job again is not a replay.
            content = self._seal.close_call(self.queue.name, mid, content)
        if len(content) > HARD_MAX_CONTENT:
            raise CodecError(
                f"the job takes {len(content):,} bytes as a message; at most {HARD_MAX_CONTENT:,} are allowed"
            )
        return content


class Intake:
    """Moves Ruby's jobs to the queues of one worker.

    Attributes:
        ruby: Client of the server with Ruby's lists.
    """

    def __init__(
        self,
        client: Client,
        ruby: Client,
        settings: IntakeSettings,
        fed_worker: FedWorker,
        counts: RubyJobCounts,
    ) -> None:
        self._client, self._ruby = client, ruby
        self._settings, self._fed_worker, self._counts = settings, fed_worker, counts
        self._queues: dict[str, Queue] = {}
        self.lines: list[QueueIntake] = []
        self._dead_jobs: list[DeadJobs] = []
        self._namespaces = sorted(
            {
                p.namespace
                for p in (*settings.ruby_queues, *settings.patterns)
                if p.system == "sidekiq"
            }
        )
        self._sleep = ListWaiter(ruby, ())
        self._presences: list[SidekiqEntry | ResqueEntry] = []
        self._take_from(settings.ruby_queues)
        self._beat_at = self._fill_at = self._promote_at = self._match_at = 0.0
        self._troubled, self._was_quiet, self._full_s = False, False, FIRST_PAUSE_S
        self._reminder = Reminder(COMPLAIN_S)

    def _take_from(self, ruby_queues: Iterable[RubyQueueName]) -> None:
        for ruby_queue in ruby_queues:
            name = ruby_queue.queue
            queue = self._queues.get(name)
            if queue is None:
                if (count := default_registry.partitions().get(name)) is not None:
                    created(self._client, name, count)
                queue = self._queues[name] = Queue(name, self._client)
                if self._settings.ruby_dead:
                    self._dead_jobs.append(DeadJobs(self._ruby, [queue]))
            self.lines.append(QueueIntake(self._ruby, ruby_queue, queue, self._settings))
        served = [line.ruby_queue for line in self.lines]
        self._sleep.close()
        self._sleep = ListWaiter(self._ruby, served)
        for presence in self._presences:
            presence.leave()
        self._presences = [
            (SidekiqEntry if system == "sidekiq" else ResqueEntry)(
                self._ruby, list(group), self._fed_worker, self._counts
            )
            for (system, _), group in groupby(sorted(served, key=_side), key=_side)
        ]
        self._beat_at = 0.0

    def take_jobs(self) -> None:
        """Claim and enqueue jobs until the worker stops. With --burst, also stop once no jobs are left."""
        try:
            while not self._fed_worker.stopping() and not self._round():
                pass
        finally:
            self._leave()

    def _leave(self) -> None:
        """Remove this worker from Ruby's dashboards after its children have ended."""
        self._sleep.close()
        try:
            for dead_jobs in self._dead_jobs:
                dead_jobs.fill()
            for presence in self._presences:
                presence.leave()
        except JobqError as error:
            logger.warning("Ruby's dashboards may list this worker for another minute: %s", error)

    def _round(self) -> bool:
        """Claim and enqueue jobs once. With --burst, return True once all jobs have run."""
        self._troubled = False
        self._look_after()
        if self._fed_worker.quiet():
            self._pause(IDLE_S)
            return False
        following_s = self._promote()
        greedy = self._fed_worker.burst
        moved = sum(
            self._attempt(str(line.ruby_queue), partial(line.carry, greedy), 0)
            for line in self.lines
        )
        if moved or following_s <= 0:
            self._full_s = FIRST_PAUSE_S
            return False
        if self._troubled:
            self._pause(TROUBLE_S)
            return False
        if greedy:
            return self._attempt("the burst", self._all_done, False)
        self._rest(following_s)
        return False

    def _promote(self) -> float:
        """Move due scheduled jobs to their queues, at intervals. Return the seconds until the next move."""
        now = time.monotonic()
        if now >= self._promote_at:
            wait_s = IDLE_S
            for name in self._namespaces:
                due = partial(promote, self._ruby, name)
                wait_s = min(wait_s, self._attempt("Sidekiq's schedule", due, TROUBLE_S))
            self._promote_at = now + wait_s
        return max(0.0, self._promote_at - now)

    def _rest(self, following_s: float) -> None:
        if any(line.full for line in self.lines):
            self._pause(self._full_s)
            self._full_s = min(PAUSE_S, 2 * self._full_s)
        else:
            until_beat_s = self._beat_at - time.monotonic()
            self._sleep.wait(max(0.01, min(following_s, until_beat_s)), [self._fed_worker.woken])
            self._fed_worker.drain()

    def _attempt(self, what: str, do: Callable[[], T], default: T) -> T:
        """Call `do`; return `default` if it fails. So an error in one queue doesn't block others."""
        try:
            return do()
        except Exception as error:
            self._troubled = True
            if self._reminder.is_due(what):
                # An error that jobq didn't raise is a bug: log where it comes from.
                unforeseen = None if isinstance(error, JobqError) else error
                logger.warning(
                    "%s: failed, and will be tried again: %s", what, error, exc_info=unforeseen
                )
            return default

    def _all_done(self) -> bool:
        """Return whether all claimed jobs have run.

        Until then, the intake must keep running to update Ruby's dashboards.
        """
        counts = [queue.admin.counts() for queue in self._queues.values()]
        waits = any(count.ready and not count.paused for count in counts)
        if waits or self._fed_worker.running() or any(line.parked for line in self.lines):
            self._pause(PAUSE_S)
            return False
        return True

    def _look_after(self) -> None:
        if time.monotonic() >= self._fill_at:
            self._fill_at = time.monotonic() + IDLE_S
            for dead_jobs in self._dead_jobs:
                self._attempt(f"Ruby's dead of {dead_jobs}", dead_jobs.fill, 0)
        if (
            self._settings.patterns
            and not self._fed_worker.burst
            and time.monotonic() >= self._match_at
        ):
            self._match_at = time.monotonic() + MATCH_S
            self._attempt("the list of queues", self._match, None)
        if time.monotonic() >= self._beat_at or self._was_quiet != self._fed_worker.quiet():
            self._was_quiet = self._fed_worker.quiet()
            self._beat_at = time.monotonic() + BEAT_S
            for presence in self._presences:
                self._attempt("the heartbeat", partial(presence.beat, self._content), None)

    def _match(self) -> None:
        """Serve new queues whose names match a pattern."""
        served = dict.fromkeys((line.ruby_queue for line in self.lines), 1)
        try:
            matching = expanded(
                {**served, **self._settings.patterns}, partial(usable_queues, self._ruby)
            )
        except ConfigError as error:
            if self._reminder.is_due("patterns"):
                logger.warning("new queues can't be served: %s", error)
            return
        new = {name: weight for name, weight in matching.items() if name not in served}
        if new:
            self._fed_worker.serve({name.queue: weight for name, weight in new.items()})
            self._take_from(new)

    def _content(self, queue: str, mid: str) -> bytes | None:
        """Return the content of a running message; None if it has just ended or can't be opened."""
        name = base_of(queue)
        if name not in self._queues:
            return None
        content = Queue(queue, self._client).content(mid)
        try:
            return content and opened(seal_of(self._client), name, mid, content)
        except CodecError:
            return None

    def _pause(self, seconds: float) -> None:
        select.select([self._fed_worker.woken], [], [], seconds)
        self._fed_worker.drain()


def run_intake(
    client: Client,
    ruby_url: str | None,
    settings: IntakeSettings,
    counts: RubyJobCounts,
    fed_worker: FedWorker,
) -> None:
    """Run an intake until the worker stops. `jobq worker` starts it in a separate process."""
    own = replace(client.settings, url=client.url, outage_buffer=0, patience_s=PATIENCE_S)
    clients = [
        connect(settings=replace(own, url=url)) for url in (client.url, ruby_url or client.url)
    ]
    for connected in clients:
        connected.should_give_up = fed_worker.stopping
    Intake(clients[0], clients[1], settings, fed_worker, counts).take_jobs()


def _side(ruby_queue: RubyQueueName) -> tuple[str, str]:
    return ruby_queue.system, ruby_queue.namespace


def source(
    client: Client, ruby_url: str | None, settings: IntakeSettings, counts: RubyJobCounts
) -> partial[None]:
    """Return the function that `jobq worker` runs in a separate process for an intake."""
    return partial(run_intake, client, ruby_url, settings, counts)
