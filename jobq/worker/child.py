"""The child: one loop that takes messages, has them run, reports how they ended, and watches its leases.

How jobs run is the runner's: one at a time (`sync_runner`), or many on an event loop (`async_runner`). Slots, reports,
give-backs, stops and the fence are the same for both, and are here.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from itertools import count
from time import monotonic_ns
from typing import NamedTuple, Protocol

from msgspec import structs

from jobq.client.clock import boot_ns
from jobq.client.connection import Client
from jobq.client.numbered_calls import Caller
from jobq.config import WorkerSettings
from jobq.errors import JobAborted, JobqError, ServerFullError, UnavailableError
from jobq.jobs.context import Call
from jobq.jobs.endings import UnknownJobs
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry
from jobq.jobs.signing import seal_of
from jobq.queue.queue import Queue
from jobq.queue.types import DequeueAhead, Dequeued, Ending, Finished, Lease, Message
from jobq.worker import exit_codes, logger
from jobq.worker.done_calls import DoneCalls
from jobq.worker.polling import Polling
from jobq.worker.queue_client import (
    ChildClients,
    NotReportedError,
    QueueCaller,
    QueueClient,
    log_refused,
    same_node,
)
from jobq.worker.queue_health import BROKEN, QueueHealth
from jobq.worker.recycle import Recycling
from jobq.worker.shared_state import Control, Phase, SharedSlots, lease_and_margin, lease_deadline
from jobq.worker.signals import Signals
from jobq.worker.timers import Timers


class Hooks(NamedTuple):
    """Called in each child, before its first message and before its exit."""

    start: Callable[[], object] = lambda: None
    exit: Callable[[], object] = lambda: None


class PoolPlan(NamedTuple):
    """What all children of a worker have in common. alive_read: readable once the supervisor is gone."""

    settings: WorkerSettings
    client: Client
    registry: Registry
    hooks: Hooks
    alive_read: int
    alive_write: int
    health: QueueHealth


class ChildContext(NamedTuple):
    """What one child is started with. signalled: a file that becomes readable after any signal."""

    plan: PoolPlan
    slots: SharedSlots
    parent: int
    signalled: int
    signals: Signals


class Next(Enum):
    """What to do after a turn of the loop: the next turn, wait for a message, wait for anything else, or end."""

    TURN = 0
    SLEEP = 1
    WAIT = 2
    END = 3


class Runner(Protocol):
    """Runs the messages of one child, and calls `Child.turn` until that says END."""

    @property
    def is_running(self) -> bool:
        """Whether a message runs, or waits until it may run alone."""

    def drive(self) -> None:
        """Call `turn`, and wait as it says, until the end."""

    def room(self, index: int, freed: int = 0) -> int:
        """How many messages to ask this queue for, once so many slots are free again."""

    def begin(self, index: int, slots: Sequence[int], messages: Sequence[Message]) -> None:
        """Run these messages of one queue, or begin to."""

    def reported(self) -> None:
        """Called after each report of what ended."""

    def in_fork(self) -> None:
        """Called in a process that a job forked from this one."""


class Outbox:
    """Endings of one queue that the server doesn't know yet."""

    __slots__ = ("ended",)

    def __init__(self) -> None:
        #: Slot, ending, and when the run ended (monotonic_ns).
        self.ended: list[tuple[int, Ending, int]] = []

    def endings(self) -> list[Ending]:
        """Return the endings, with their age if the oldest is a millisecond or more."""
        now = monotonic_ns()
        if now - self.ended[0][2] < 1_000_000:
            return [ending for _, ending, _ in self.ended]
        return [
            structs.replace(ending, age_ms=(now - at) // 1_000_000) for _, ending, at in self.ended
        ]

    def drop(self, number: int) -> list[int]:
        """Forget the first `number` endings; return their slots."""
        slots = [slot for slot, _, _ in self.ended[:number]]
        del self.ended[:number]
        return slots


class Child:
    """One process of the pool."""

    def __init__(self, context: ChildContext) -> None:
        plan = context.plan
        self.context, self.settings, self.slots = context, plan.settings, context.slots
        self._health = plan.health
        self._reporting = False
        clients = ChildClients(plan.client, self.settings, self._may_give_up)
        names = [name for name, _ in self.settings.queues]
        self._queues = [Queue(name, clients.patient) for name in names]
        self._hasty_queues = [Queue(name, clients.hasty) for name in names]
        self._hasty_ns = clients.hasty_ns
        self._clients = self._queue_clients()
        # Those whose report must be repeated.
        self._unreported: list[QueueClient] = []
        self._outboxes = [Outbox() for _ in names]
        # Slots of ended messages whose report waits: no room for others, and none of what runs.
        self.nparked = 0
        self.polling = Polling(self.settings, clients.patient, self._queues, self._health)
        self.recycling = Recycling(self.settings)
        self.timers = Timers(2 * self.settings.prefetch_s, self._look_around)
        self.executor = self._executor({name: Queue(name, clients.progress) for name in names})
        seal = seal_of(plan.client)
        self._done_calls = None if seal is None else DoneCalls(clients.hasty, seal)
        self.margin_ns = lease_and_margin(self.settings.lease_s)[1]
        self.exit_code = exit_codes.OK
        self.draining = False
        # Whether a wait for a message goes on while other things happen.
        self.asleep = False
        # A dequeue behind the wait for a message, and the lease deadline of what it hands out.
        self._ahead: tuple[DequeueAhead, int] | None = None
        # The slot of the sync job that runs in the main thread.
        self._sync_slot: int | None = None
        # Why what runs is stopped: "lost", "hurry", or "" while it isn't.
        self.abort = ""
        self._aborted_at = 0
        self._told_to_stop = lambda: bool(self.abort)

    def _queue_clients(self) -> list[QueueClient]:
        caller_id, numbers = Caller().id, count(1)
        self.slots.caller = caller_id
        clients = []
        for index, queue in enumerate(self._queues):
            caller = QueueCaller(self.slots.reply_arrived, caller_id, numbers)
            client = QueueClient(index, queue, caller, self._health, self.settings)
            client.on_replies = partial(self._on_replies, index)
            client.neighbours = partial(same_node, self._queues, index)
            clients.append(client)
        return clients

    def _executor(self, by_name: dict[str, Queue]) -> Executor:
        plan = self.context.plan
        return Executor(
            plan.registry,
            worker=self.settings.name,
            soft_timeout=self.timers.soft_timeout,
            report_progress=lambda queue, *progress: by_name[queue].progress(*progress),
            lease_deadline=lambda: self.slots.deadline() / 1e9,
            seal=seal_of(plan.client),
            unknown_jobs=UnknownJobs(self.settings.unknown_wait_s, self.settings.unknown_for_s),
        )

    # The loop.

    def run(self, runner: Runner) -> None:
        """Take and run messages until told to leave."""
        self.runner = runner
        try:
            runner.drive()
            self._settle()
            self.return_wakes()
        except (UnavailableError, ServerFullError) as error:
            if not self._told_to_leave():
                raise
            logger.warning("left while the server doesn't answer: %s", error)

    def turn(self) -> Next:
        """Report what ended, take as many messages as there is room for, and return what to do next."""
        self.report(take=True)
        self.runner.reported()
        self.take_ahead()
        if self._has_endings:
            return Next.TURN
        if self.leaving() and not self.is_busy:
            return Next.END
        if self.asleep or not self.may_take():
            self.repeat_reports()
            return Next.WAIT
        if self._take():
            return Next.TURN
        if self.settings.burst and not self.is_busy and not self.polling.waits_for_server():
            return Next.END
        return Next.SLEEP

    @property
    def _has_endings(self) -> bool:
        return any(outbox.ended for outbox in self._outboxes)

    @property
    def is_busy(self) -> bool:
        """Whether anything runs or isn't reported."""
        return self.runner.is_running or self._has_endings

    def leaving(self) -> bool:
        """Whether to end once nothing is held."""
        self.draining = self.draining or self._told_to_leave()
        return self.draining or self.recycling.due(self.slots.nfinished)

    def _told_to_leave(self) -> bool:
        return self.slots.asks(Control.DRAIN | Control.HURRY)

    def _may_give_up(self) -> bool:
        # A child that is to leave waits for a lost server only to report what it ran.
        return self._told_to_leave() and not self._reporting

    def may_take(self) -> bool:
        """Whether to ask for messages."""
        if self.leaving() or self.slots.asks(Control.QUIET):
            return False
        return self.runner.room(0) > 0

    def _take(self) -> bool:
        """Ask the queues in turn until one hands out something; False once all are empty."""
        if self.runner.is_running:
            self.polling.look_for_wakes()
        while (index := self.polling.next()) is not None:
            limit = self._limited(self.runner.room(index))
            if self._accept(index, *self._dequeue(index, limit)) or not self.may_take():
                return True
        return False

    def _limited(self, room: int) -> int:
        return self.recycling.left(room, self.slots.nfinished)

    def _accept(self, index: int, dequeued: Dequeued, deadline: int) -> bool:
        """Hold and run what was handed out; whether that was anything."""
        self.polling.found(index, dequeued)
        messages = dequeued.messages
        if not messages:
            self.slots.reading_done()
            return False
        self.runner.begin(index, self.slots.publish(index, messages, deadline), messages)
        return True

    def resolve(self, slot: int, index: int, message: Message) -> Call | Ending:
        """Decode a message; a death in here is charged to it."""
        self.slots.reading(slot)
        name = self._queues[index].name
        if self._done_calls is not None and self._done_calls.holds(message):
            why = "this sealed call was done already and has been put back"
            return self.executor.refuse(name, message, why)
        return self.executor.resolve(name, message)

    # Calls to the server.

    def _before_call(self) -> None:
        """Before each call, end processes that a job forked, and undo what a job did to signals."""
        self.executor.home.only()
        self.context.signals.restore()

    def _dequeue(self, index: int, limit: int) -> tuple[Dequeued, int]:
        self._before_call()
        client = self._clients[index]
        dequeued, deadline = client.dequeue(limit)
        if not deadline:
            self._note(client)
        self._check_done(index, dequeued)
        return dequeued, deadline

    def _finish(
        self, index: int, endings: Sequence[Ending], limit: int
    ) -> tuple[Dequeued | None, int]:
        self._before_call()
        self._reporting = True
        try:
            dequeued, deadline = self._clients[index].finish(endings, limit)
        except NotReportedError:
            self._note(self._clients[index])
            raise
        finally:
            self._reporting = False
        if dequeued is not None:
            self._check_done(index, dequeued)
        return dequeued, deadline

    def release(self, index: int, leases: Sequence[Lease]) -> bool:
        """Give back messages that weren't started; False if that happens later."""
        self.executor.home.only()
        done = not leases or self._clients[index].release(leases)
        if not done:
            self._note(self._clients[index])
        return done

    def _check_done(self, index: int, dequeued: Dequeued) -> None:
        if self._done_calls is not None and dequeued.messages:
            self._done_calls.look(self._queues[index].name, dequeued.messages)

    def _on_replies(self, index: int, endings: Sequence[Ending], finished: Finished) -> None:
        log_refused(endings, finished)
        if self._done_calls is not None:
            self._done_calls.note(self._queues[index].name, endings, finished.replies)

    def _note(self, client: QueueClient) -> None:
        if client.has_report and client not in self._unreported:
            self._unreported.append(client)

    # Reports.

    def ended(self, index: int, slot: int, ending: Ending) -> bool:
        """Keep an ending for the next report; whether that can wait until other jobs have run.

        Only what is plainly done can: the supervisor reports it if this child dies.
        """
        plain = ending.outcome == "done" and ending.result is None
        self.slots.ended(slot, plain)
        self._outboxes[index].ended.append((slot, ending, monotonic_ns()))
        return plain

    def stopped(self, index: int, slot: int, call: Call, why: object) -> None:
        """Free the slot of a job that was stopped: its lock is lost, or it is given back."""
        message = call.message
        logger.warning("%s %s stopped: %s", call.job.name, message.mid, why)
        if why == "hurry":
            self.release(index, [Lease(message.mid, message.token)])
        self.slots.free((slot,))

    def give_back(self, index: int, slots: Sequence[int]) -> None:
        """Give back what wasn't started of these."""
        unstarted, leases = self.slots.withdraw(slots)
        if self.release(index, leases):
            self.slots.free(unstarted)
        else:
            self._park(index, unstarted)

    def _park(self, index: int, slots: Sequence[int]) -> None:
        """Hold these until the queue was told, so that leases are renewed and a death is cleaned up."""
        self.nparked += len(slots)
        self._clients[index].when_reported(partial(self._unpark, slots))

    def _unpark(self, slots: Sequence[int]) -> None:
        self.nparked -= len(slots)
        self.slots.free(slots)

    def report(self, take: bool = False) -> bool:
        """Report what ended; whether each queue was told.

        take: take more with it where the next turn is the same queue's.
        """
        told = True
        for index, outbox in enumerate(self._outboxes):
            if outbox.ended:
                told = self._report_queue(index, outbox, take) and told
        return told

    def report_unsafe(self) -> None:
        """Report if an ending can't be reported by the supervisor, should this child die."""
        if any(not _is_plain(one) for outbox in self._outboxes for _, one, _ in outbox.ended):
            self.report()

    def _report_queue(self, index: int, outbox: Outbox, take: bool) -> bool:
        limit, number = 0, len(outbox.ended)
        if take and not self.asleep and self._may_take_with(index, number):
            limit = self._limited(self.runner.room(index, number))
        try:
            dequeued, deadline = self._finish(index, outbox.endings(), limit)
        except NotReportedError:
            self._park(index, outbox.drop(number))
            return False
        self.slots.free(outbox.drop(number))
        if dequeued is not None:
            self._accept(index, dequeued, deadline)
        return True

    def _may_take_with(self, index: int, freed: int) -> bool:
        if self.leaving() or self.slots.asks(Control.QUIET):
            return False
        return self.runner.room(index, freed) > 0 and self.polling.stays(index)

    def repeat_reports(self) -> None:
        """Tell each queue what waits to be reported, where it may be asked now.

        Nothing is taken now, so what a repeated call hands out is given back.
        """
        for client in self._unreported:
            if client.has_report and self._health.may_ask(client.index):
                try:
                    handed, _ = client.report()
                except NotReportedError:
                    continue
                if handed is not None:
                    self.slots.reading_done()
                    client.release([Lease(one.mid, one.token) for one in handed.messages])
        self._unreported = [client for client in self._unreported if client.has_report]

    def report_wait_s(self) -> float | None:
        """Until a queue that must be told something may be asked again; None if there is none."""
        waits = [self._health.wait_ms(client.index) for client in self._unreported]
        return min(waits) / 1000 if waits else None

    def _settle(self) -> None:
        """Before leaving, wait for the servers that don't know yet how runs ended here."""
        self.repeat_reports()
        while not self.slots.asks(Control.HURRY) and any(
            client.has_endings and self._health.state(client.index) != BROKEN
            for client in self._unreported
        ):
            self.rest()
            self.repeat_reports()
        if self._unreported:
            # What it holds, and what a lost call may have handed out, is the supervisor's to give back.
            logger.warning(
                "left with %d queues that couldn't be told what ran", len(self._unreported)
            )
            self.exit_code = exit_codes.FENCED

    # Waits.

    def ask_ahead(self, nap_s: float) -> tuple[str | bytes | int, ...] | None:
        """The dequeue to send behind the wait for a message.

        Only with a single queue, and for waits that are short compared with a lease, which counts from now.
        """
        settings = self.settings
        if self.is_busy or len(self._queues) > 1 or nap_s * 3 > settings.lease_s:
            return None
        if self._health.any_trouble:
            return None
        asked_at = boot_ns()
        ahead = self._queues[0].dequeue_ahead(
            self._limited(self.runner.room(0)), lease=settings.lease_s,
            crash_limit=settings.crash_limit, caller=self._clients[0].caller,
        )  # fmt: skip
        self._ahead = (ahead, asked_at)
        return ahead.command

    def take_ahead(self) -> None:
        """Run what the dequeue behind a wait handed out, once the wait is over; call it again if its reply was lost."""
        if self._ahead is None or self.asleep:
            return
        (ahead, asked_at), self._ahead = self._ahead, None
        self.polling.next()
        reply, self.polling.waiter.reply = self.polling.waiter.reply, None
        dequeued = self._clients[0].answer(ahead, reply, asked_at)
        self._check_done(0, dequeued)
        deadline = lease_deadline(asked_at, self.settings.lease_s)
        if self.may_take():
            self._accept(0, dequeued, deadline)
        else:
            self.give_back(0, self.slots.publish(0, dequeued.messages, deadline))

    def sleep(self) -> None:
        """Wait until a message is ready, a signal comes or the supervisor is gone."""
        context, waiter = self.context, self.polling.waiter
        nap_s = self.polling.nap_s()
        behind = self.ask_ahead(nap_s)
        self.slots.phase = Phase.IDLE
        others = (context.plan.alive_read, context.signalled)
        waiter.wait(nap_s, others, behind, self.polling.skipped())
        self.polling.note_silence()
        self.polling.wake()
        self.drain_signals()
        self.slots.phase = Phase.WORKING

    def rest(self) -> None:
        """Wait until a report may be repeated, a signal comes or the supervisor is gone."""
        context = self.context
        self.slots.phase = Phase.IDLE
        files = [context.plan.alive_read, context.signalled]
        select.select(files, [], [], self.report_wait_s())
        self.drain_signals()
        self.slots.phase = Phase.WORKING

    def return_wakes(self) -> None:
        """When this child stops waiting, return the markers that it may have taken."""
        self.polling.return_wakes(self._hasty_queues)

    def drain_signals(self) -> None:
        """Empty the pipe that signals fill; end at once when the supervisor is gone."""
        alive, signalled = self.context.plan.alive_read, self.context.signalled
        readable, _, _ = select.select([alive, signalled], [], [], 0)
        if alive in readable:
            os._exit(exit_codes.FENCED)
        if signalled in readable:
            os.read(signalled, 4096)

    # A sync job in the main thread, and what goes on beside it.

    def run_sync(self, slot: int, call: Call) -> Ending:
        """Run a job in this thread. Raises JobAborted if it was stopped."""
        timers = self.timers
        self._sync_slot, self.abort = slot, ""
        timers.arm()
        try:
            timers.in_job = True
            if call.job.is_async:  # registered after this child had started
                return asyncio.run(self.executor.arun(call, self._told_to_stop))
            return self.executor.run(call, self._told_to_stop)
        finally:
            timers.job_over()
            self._sync_slot = None

    def on_control(self) -> None:
        """Called in a signal handler, after the supervisor has asked for something or a lock was lost."""
        if self._told_to_leave():
            self.draining = True
        if not self.timers.in_job or self._sync_slot is None:
            return
        if self.slots.is_lost(self._sync_slot):
            self._raise_abort("lost", "its lock was lost, or it was cancelled")
        if self.slots.asks(Control.HURRY):
            self._raise_abort("hurry", "the worker must leave now")

    def _raise_abort(self, abort: str, why: str) -> None:
        self.abort = abort
        raise JobAborted(why)

    def _look_around(self, now: int) -> float:
        """While a sync job runs long: watch supervisor and lease, and report what ended before it.

        Return the seconds until the next look.
        """
        self.check_parent()
        self._fence_sync()
        if self._has_endings:
            self.timers.in_job = False  # nothing may be raised halfway through
            try:
                self._report_amid()
            finally:
                self.timers.in_job = True
            self._fence_sync()
            self.on_control()
        return self.next_look_s()

    def _report_amid(self) -> None:
        """Report if the server answers soon and the lease allows it."""
        for index, outbox in enumerate(self._outboxes):
            if not outbox.ended or self.polling.in_trouble(index):
                continue
            if self.slots.deadline() - boot_ns() <= self._hasty_ns:
                return
            endings, queue = outbox.endings(), self._hasty_queues[index]
            try:
                finished = queue.finish(endings, crash_limit=self.settings.crash_limit)
            except JobqError:
                return  # the loop tries again, with all patience
            self._on_replies(index, endings, finished)
            self.slots.free(outbox.drop(len(endings)))

    # The fence.

    def _fence_sync(self) -> None:
        self.fence(lambda: self._raise_abort("lost", "its lease could not be renewed in time"))

    def fence(self, stop: Callable[[], None]) -> None:
        """Call `stop` when a lease deadline has passed; end the process if a job then goes on for too long."""
        now = boot_ns()
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
        """Until what runs must be looked at again: at the earliest deadline or before."""
        left_s = (self.slots.deadline() - boot_ns()) / 1e9
        return max(0.01, min(left_s, self.settings.lease_s / 6))

    def all_stopped(self) -> None:
        """Nothing runs any more, so an abort is over."""
        self.abort, self._aborted_at = "", 0

    def check_parent(self) -> None:
        """End at once when the supervisor is gone."""
        if os.getppid() != self.context.parent:
            os._exit(exit_codes.FENCED)


def _is_plain(ending: Ending) -> bool:
    return ending.outcome == "done" and ending.result is None
