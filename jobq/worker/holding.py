"""What sync and async children have in common: their queues, their slots, and what the supervisor says."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from time import monotonic, monotonic_ns
from typing import NamedTuple

from msgspec import structs

from jobq.client.clock import boot_ns
from jobq.client.connection import Client, connect
from jobq.client.numbered_calls import Caller
from jobq.client.waiter import WakeWaiter
from jobq.config import ServerSettings, WorkerSettings
from jobq.errors import JobqError, ServerFullError, UnavailableError
from jobq.jobs.context import Call
from jobq.jobs.endings import UnknownJobs
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry
from jobq.jobs.signing import seal_of
from jobq.queue.queue import Queue
from jobq.queue.types import DequeueAhead, Dequeued, Ending, Finished, Lease, Message
from jobq.worker import exit_codes, logger
from jobq.worker import shared_state as slots
from jobq.worker.done_calls import DoneCalls
from jobq.worker.queue_client import NotReportedError, QueueCaller, QueueClient, tell_refused
from jobq.worker.queue_health import AWAY, BROKEN, QueueHealth
from jobq.worker.recycle import Recycling
from jobq.worker.scheduling import BatchSize, QueueTurns
from jobq.worker.shared_state import SharedSlots, lease_and_margin
from jobq.worker.signals import Signals
from jobq.worker.timers import Timers

#: A child has nothing better to do than to wait for its server.
FOR_EVER_S = 1e9
QUICK_S = 0.5
#: Of several queues: the longest wait for their markers, and until when a child itself asks for what is due.
LONGEST_NAP_S, NEAR_MS = 30.0, 2_000
#: How often a busy child looks for markers, for how much of its time on a Cluster, and what it does where it can't.
LOOK_EVERY_S, LOOK_SHARE, ASK_ALL_EVERY_S = 0.05, 0.1, 2.0
#: Of a Cluster: until a node passes for one that is away, and for being sent on to another one.
ANSWER_S, REDIRECTED_S = 1.0, 0.1


class Surroundings(NamedTuple):
    """What a child is born with."""

    settings: WorkerSettings
    client: Client
    registry: Registry
    slots: SharedSlots
    parent: int
    alive: int  # readable once the supervisor is gone
    woken: int  # readable after any signal
    standing: QueueHealth
    signals: Signals


class Child:
    """One process of the pool, after its birth."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.settings, self.slots = around.settings, around.slots
        server = replace(around.client.settings, url=around.client.url)
        patient = self._patient(server)
        hasty = self._hasty(server)
        quick = connect(settings=replace(server, patience_s=QUICK_S))
        names = [name for name, _ in self.settings.queues]
        self.queues = [Queue(name, patient) for name in names]
        self.quick = [Queue(name, hasty) for name in names]
        self.turns = QueueTurns(
            [weight for _, weight in self.settings.queues], self.settings.strict
        )
        self.prefetch = [
            BatchSize(self.settings.prefetch, self.settings.prefetch_ms) for _ in names
        ]
        self.standing = around.standing
        caller_id, numbers = Caller().id, count(1)
        self.slots.caller = caller_id
        self.lines = [
            QueueClient(
                index,
                queue,
                QueueCaller(self._arrived, caller_id, numbers),
                self.standing,
                self.settings,
            )
            for index, queue in enumerate(self.queues)
        ]
        for line in self.lines:
            line.heard = partial(self.heard, line.index)
            line.neighbours = partial(neighbours, self.queues, line.index)
        #: Those that are to be told something once they can be.
        self.owing: list[QueueClient] = []
        self.exit_code = exit_codes.OK
        #: Whether queues sleep until their marker wakes this child; a burst asks each in its turn until all are empty.
        self.many = len(names) > 1 and not self.settings.burst
        self._nap_ms: int | None = None
        self._ask_at: dict[int, float] = {}
        # Those whose marker this child took and that it hasn't asked since.
        self._unasked: set[int] = set()
        # Those that something happened in since they were last found empty.
        self._active: set[int] = set()
        self._looked_at, self._look_from = 0.0, 0
        self.sleep = WakeWaiter(patient, [queue.wake_key for queue in self.queues])
        self.recycling = Recycling(self.settings)
        self.timers = Timers(2 * self.settings.prefetch_ms / 1000, self.look_around)
        # Not those of `quick`: an alarm may come in the middle of a job's report of its progress.
        self.executor = self._executor({name: Queue(name, quick) for name in names})
        seal = seal_of(around.client)
        self.spent = None if seal is None else DoneCalls(hasty, seal)
        self.lease_ns, self.margin_ns = lease_and_margin(self.settings.lease_ms)
        self.draining = self._reporting = False
        self.abort = ""
        self._aborted_at = 0

    def _patient(self, server: ServerSettings) -> Client:
        """For calls with nothing else to do meanwhile."""
        client = connect(settings=replace(server, patience_s=FOR_EVER_S))
        if client.is_cluster:
            # There is: the queues of the other nodes.
            timeout_s = min(server.socket_timeout_s, ANSWER_S)
            return connect(
                settings=replace(server, patience_s=REDIRECTED_S, socket_timeout_s=timeout_s)
            )
        # A child that is to leave waits for a lost server only to report what it ran.
        client.enough = lambda: self._told_to_leave() and not self._reporting
        return client

    def _hasty(self, server: ServerSettings) -> Client:
        """For calls amid a job: a silent server must not hold it up, least of all past its deadline."""
        quick_s = min(QUICK_S, self.settings.lease_ms / 6000)
        self.quick_ns = round(3 * quick_s * 1e9)
        timeout_s = min(server.socket_timeout_s, quick_s)
        return connect(settings=replace(server, patience_s=quick_s, socket_timeout_s=timeout_s))

    def _executor(self, by_name: dict[str, Queue]) -> Executor:
        return Executor(
            self.around.registry,
            worker=self.settings.name,
            soft_timeout=self.timers.soft_timeout,
            report_progress=lambda queue, mid, token, text: by_name[queue].progress(
                mid, token, text
            ),
            lease_deadline=lambda: self.slots.deadline() / 1e9,
            seal=seal_of(self.around.client),
            unknown_jobs=UnknownJobs(self.settings.unknown_wait_s, self.settings.unknown_for_s),
        )

    def _arrived(self) -> None:
        # Whatever in this reply kills this child, the supervisor knows that it was one of these messages.
        self.slots.words[slots.SUSPECT] = slots.ALL_HANDED

    def resolve(self, slot: int, index: int, message: Message) -> Call | Ending:
        """What a message asks for; a death in here is that message's."""
        self.slots.words[slots.SUSPECT] = slot + 1
        name = self.queues[index].name
        if self.spent is not None and self.spent.holds(message):
            why = "this sealed call has been done already; somebody put it back"
            return self.executor.refuse(name, message, why)
        return self.executor.resolve(name, message)

    def loop(self) -> None:
        """Take and run messages until told to leave."""
        try:
            self.take_and_run()
            self.settle()
            self.pass_on_wake()
        except (UnavailableError, ServerFullError) as error:
            if not self._told_to_leave():
                raise
            logger.warning("left without a word to the server: %s", error)

    def take_and_run(self) -> None:
        """The loop itself."""
        raise NotImplementedError

    def told(self) -> None:
        """Called in a signal handler, after the supervisor has set something."""
        raise NotImplementedError

    def look_around(self, now: int) -> float:
        """While a job runs: what must not wait for its end. Seconds until the next look."""
        raise NotImplementedError

    @property
    def quiet(self) -> bool:
        """Whether to take nothing new."""
        return bool(self.slots.words[slots.CONTROL] & slots.QUIET)

    def leaving(self) -> bool:
        """Whether to end once nothing is held."""
        self.draining = self.draining or self._told_to_leave()
        return self.draining or self.recycling.due(self.slots.words[slots.FINISHED])

    def _told_to_leave(self) -> bool:
        return bool(self.slots.words[slots.CONTROL] & (slots.DRAIN | slots.HURRY))

    def batch_size(self, index: int) -> int:
        """How many messages to ask for."""
        size = min(self.prefetch[index].size, self.slots.room)
        return self.recycling.left(size, self.slots.words[slots.FINISHED])

    def found(self, index: int, dequeued: Dequeued) -> None:
        """What asking a queue gave: whose turn is next, and how long to wait when it is nobody's."""
        something = bool(dequeued.messages) or dequeued.sleep_ms == 0
        if something or dequeued.due_ms or index in self._active or not self.many:
            self.standing.touch(index)
        if not self.many:
            self.turns.found(index, something)
            if not something:
                self._nap_ms = min(self._nap_ms or dequeued.sleep_ms, dequeued.sleep_ms)
            return
        self._unasked.discard(index)
        if something:
            self._active.add(index)
            self.turns.found(index, True)
            if self.settings.strict:
                self.sleep.by_priority()
            return
        self._active.discard(index)
        self.turns.sleeps(index)
        # What is due later, and what time alone brings besides, the supervisor brings about.
        if 0 < dequeued.due_ms <= NEAR_MS or self.in_trouble(index):
            self._ask_at[index] = monotonic() + min(dequeued.due_ms, NEAR_MS) / 1000

    def nap_s(self) -> float:
        """How long to wait for a marker."""
        if not self.many:
            nap_s, self._nap_ms = (self._nap_ms or 1) / 1000, None
            return nap_s
        self.passed_over()  # notes when to ask them again
        # On a Cluster each queue's wait is a command of its own.
        longest_s = max(LONGEST_NAP_S, float(len(self.queues)))
        soonest = min(self._ask_at.values(), default=0.0)
        return min(longest_s, max(0.001, soonest - monotonic())) if soonest else longest_s

    def wake(self) -> None:
        """After a wait or a look: it is the turn of the queues whose markers came, and whose time has."""
        if not self.many:
            return
        for index in self.sleep.woken:
            self._unasked.add(index)
            self._active.add(index)
            self.turns.wakes(index)
        self.sleep.woken.clear()
        if self._ask_at:
            now = monotonic()
            for index in [index for index, at in self._ask_at.items() if at <= now]:
                del self._ask_at[index]
                self.turns.wakes(index)

    def look_for_wakes(self) -> None:
        """Amid work: whether a queue that sleeps has something. Idle children are told first."""
        if not self.many or not self.turns.asleep:
            return
        now = monotonic()
        passed_s = now - self._looked_at
        if passed_s < LOOK_EVERY_S and not self.settings.strict:
            return
        self._looked_at = now
        asleep = [index for index in self.turns.asleep if not self.in_trouble(index)]
        if asleep:
            first = self._look_from % len(asleep)
            try:
                self._look_from += self.sleep.look(
                    asleep if self.settings.strict else asleep[first:] + asleep[:first],
                    passed_s * LOOK_SHARE,
                )
            except JobqError:
                # One of them is broken, or this user may not: asking each tells.
                self._looked_at = now + ASK_ALL_EVERY_S
                for index in asleep:
                    self.turns.wakes(index)
        self.wake()

    def stays(self, index: int) -> bool:
        """Whether the next turn is this queue's too; then it is taken."""
        self.look_for_wakes()
        return self.turns.stays(index)

    def in_trouble(self, index: int) -> bool:
        """Whether this queue is passed over."""
        return bool(self.standing.words[0] and self.standing.state(index))

    def waits_for_server(self) -> bool:
        """Whether there may be work that only a lost server keeps back."""
        return any(self.standing.state(index) == AWAY for index in range(len(self.queues)))

    def _before_call(self) -> None:
        """Before each call to the server: what jobs did to this process ends here."""
        self.executor.home.only()
        self.around.signals.restore()

    def forked(self) -> None:
        """Called in a process that a job forked from this one."""

    def dequeue(self, index: int, limit: int) -> tuple[Dequeued, int]:
        """Ask one queue; what it gave, and until when that is surely held."""
        self._before_call()
        line = self.lines[index]
        found = line.dequeue(limit)
        if not found[1]:
            self._note(line)
        self._arrivals(index, found[0])
        return found

    def finish(
        self, index: int, endings: Sequence[Ending], dequeue: int = 0
    ) -> tuple[Dequeued | None, int]:
        """End attempts and, if asked, dequeue; as `dequeue`. NotReportedError: they will be ended later."""
        self._before_call()
        self._reporting = True
        try:
            finished = self.lines[index].finish(endings, dequeue)
        except NotReportedError:
            self._note(self.lines[index])
            raise
        finally:
            self._reporting = False
        self._arrivals(index, finished[0])
        return finished

    def heard(self, index: int, endings: Sequence[Ending], finished: Finished) -> None:
        """What the server said of endings."""
        tell_refused(endings, finished)
        if self.spent is not None:
            self.spent.note(self.queues[index].name, endings, finished.replies)

    def _arrivals(self, index: int, dequeued: Dequeued | None) -> None:
        if self.spent is not None and dequeued is not None and dequeued.messages:
            self.spent.look(self.queues[index].name, dequeued.messages)

    def release(self, index: int, holds: Sequence[Lease]) -> bool:
        """Give back what wasn't started; False: that will be done later."""
        self.executor.home.only()
        done = not holds or self.lines[index].release(holds)
        if not done:
            self._note(self.lines[index])
        return done

    def _note(self, line: QueueClient) -> None:
        if line.owes and line not in self.owing:
            self.owing.append(line)

    def pay(self) -> None:
        """Tell each queue what waits to be said there, where it may be asked now.

        For when nothing is taken: what a call hands out that is made again then is given back.
        """
        for line in self.owing:
            if line.owes and self.standing.may_ask(line.index):
                try:
                    handed, _ = line.pay()
                except NotReportedError:
                    continue
                if handed is not None:
                    self.slots.words[slots.SUSPECT] = 0
                    line.release([Lease(one.mid, one.token) for one in handed.messages])
        self.owing = [line for line in self.owing if line.owes]

    def wait_to_pay_s(self) -> float:
        """Until a queue that is to be told something may be asked again."""
        return min(self.standing.wait_ms(line.index) for line in self.owing) / 1000

    def settle(self) -> None:
        """Before leaving: wait for the servers that haven't heard how runs ended here."""
        self.pay()
        while not self.slots.words[slots.CONTROL] & slots.HURRY and any(
            line.has_endings and self.standing.state(line.index) != BROKEN for line in self.owing
        ):
            self.rest(self.wait_to_pay_s(), woken=False)
            self.pay()
        if self.owing:
            # What it holds, and what an unheard call may have handed out, is the supervisor's to give back.
            logger.warning("left with %d queues that couldn't be told what ran", len(self.owing))
            self.exit_code = exit_codes.FENCED

    def fence(self, now: int, stop: Callable[[], None]) -> None:
        """Past the deadline `stop` what runs; a while later end the process."""
        if now < self.slots.deadline():
            self._aborted_at = 0
            return
        if not self._aborted_at:
            self._aborted_at, self.abort = now, "lost"
            logger.error("lease not renewed in time: what runs here is stopped")
            stop()
        elif now - self._aborted_at >= self.margin_ns:
            logger.error("a job didn't stop after its lease ended: this child ends")
            os._exit(exit_codes.FENCED)

    def next_look_s(self) -> float:
        """Until what runs should be looked at again: by the earliest deadline at the latest."""
        left_s = (self.slots.deadline() - boot_ns()) / 1e9
        return max(0.01, min(left_s, self.settings.lease_ms / 6000))

    def settled(self) -> None:
        """What ran has stopped; its abort is history."""
        self.abort, self._aborted_at = "", 0

    def check_parent(self) -> None:
        """End at once when the supervisor is gone."""
        if os.getppid() != self.around.parent:
            os._exit(exit_codes.FENCED)

    def ask_ahead(self, index: int, limit: int, nap_s: float) -> tuple[DequeueAhead | None, int]:
        """A dequeue to send behind the wait for a message, and until when what it gives is surely held.

        Only where nobody else's turn may come first, and for waits that are short beside a lease, since it
        counts from when it was sent.
        """
        settings = self.settings
        if len(self.queues) > 1 or nap_s * 3000 > settings.lease_ms or self.standing.words[0]:
            return None, 0
        asked_at = boot_ns()
        ahead = self.queues[index].dequeue_ahead(
            limit, lease_ms=settings.lease_ms, crash_limit=settings.crash_limit,
            caller=self.lines[index].caller,
        )  # fmt: skip
        return ahead, asked_at + self.lease_ns - self.margin_ns

    def answer(self, ahead: DequeueAhead, deadline: int) -> Dequeued:
        """What the dequeue behind the wait gave; asked for again where that isn't known."""
        reply, self.sleep.reply = self.sleep.reply, None
        dequeued = self.lines[0].answer(ahead, reply, deadline - self.lease_ns + self.margin_ns)
        self._arrivals(0, dequeued)
        return dequeued

    def rest(
        self, seconds: float | None, ahead: DequeueAhead | None = None, *, woken: bool = True
    ) -> None:
        """Sleep until woken by a message (only if `woken`), a signal or the supervisor's end; None: no other end."""
        around = self.around
        self.slots.words[slots.STATE] = slots.IDLE
        if seconds is None or not woken:
            select.select([around.alive, around.woken], [], [], seconds)
        else:
            behind = ahead.command if ahead is not None else None
            self.sleep.wait(seconds, (around.alive, around.woken), behind, self.passed_over())
            self.note_silence()
            self.wake()
        self.hear()
        self.slots.words[slots.STATE] = slots.WORKING

    def passed_over(self) -> frozenset[int]:
        """Queues in trouble. No marker of theirs comes: they are asked again in a while."""
        if not self.standing.words[0]:
            return frozenset()
        troubled = frozenset(i for i in range(len(self.queues)) if self.standing.state(i))
        for index in troubled if self.many else ():
            self._ask_at.setdefault(index, monotonic() + ASK_ALL_EVERY_S)
        return troubled

    def note_silence(self) -> None:
        """Queues whose server couldn't be asked to wake this child, are away."""
        for index, asked_at in self.sleep.silent:
            if self.queues[index].client.is_cluster:
                self.standing.failed(
                    self.lines[index].neighbours(), AWAY, "no answer when asked to wait", asked_at
                )
        self.sleep.silent.clear()

    def hear(self) -> None:
        """Empty the pipe that signals fill."""
        alive, woken = self.around.alive, self.around.woken
        readable, _, _ = select.select([alive, woken], [], [], 0)
        if alive in readable:
            os._exit(exit_codes.FENCED)
        if woken in readable:
            os.read(woken, 4096)

    def pass_on_wake(self) -> None:
        """A marker may have come as this child stopped waiting: have the engine push it again."""
        taken = self._unasked.union(self.sleep.woken) if self.many else range(len(self.quick))
        for index in taken:
            if self.in_trouble(index):
                continue
            queue = self.quick[index]
            try:
                queue.admin.collect(1, crash_limit=self.settings.crash_limit)
            except JobqError as error:
                logger.warning("left without a word to the server: %s", error)
                if not queue.client.is_cluster:
                    return


def aged(endings: list[Ending], ended_at: list[int]) -> list[Ending]:
    """With how long ago each run ended (monotonic_ns, the first one first), where that is a millisecond or more."""
    now = monotonic_ns()
    if not endings or now - ended_at[0] < 1_000_000:
        return endings
    return [
        structs.replace(ending, age_ms=(now - at) // 1_000_000)
        for ending, at in zip(endings, ended_at, strict=True)
    ]


def neighbours(queues: Sequence[Queue], index: int) -> list[int]:
    """The queues on the same node as this one, as far as is known; this one in any case."""
    key, client = queues[index].wake_key, queues[index].client
    return [
        other
        for other, queue in enumerate(queues)
        if other == index or client.shares_node(key, queue.wake_key)
    ]
