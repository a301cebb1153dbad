"""A child: its loop fetches messages, runs them, reports their outcomes, and checks their leases.

A runner runs the jobs: sequentially (`sync_runner`), or concurrently (`async_runner`), with async jobs on an event loop
and sync jobs in threads (`thread_runner`). This module has the code that all runners share.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from types import FrameType
from typing import NamedTuple, Protocol

from jobq.client.clock import boot_ns
from jobq.client.connection import Client
from jobq.client.waiter import LONG_S
from jobq.config import WorkerSettings
from jobq.errors import JobAborted, ServerFullError, UnavailableError
from jobq.jobs.attempt_log import AttemptLogs
from jobq.jobs.batch_executor import BatchExecutor
from jobq.jobs.context import Call, JobLines
from jobq.jobs.crashes import MonitorListener
from jobq.jobs.endings import UnknownJobs
from jobq.jobs.executor import RunHooks
from jobq.jobs.receipt_calls import result_waits
from jobq.jobs.registry import Registry
from jobq.jobs.signing import seal_of
from jobq.jobs.timer import BUILT_IN
from jobq.queue.queue import Queue
from jobq.queue.types import Dequeued, Ending, Lease, Message
from jobq.worker import exit_codes, logger
from jobq.worker.child_queues import ChildQueues
from jobq.worker.counters import Counters
from jobq.worker.flow_drains import FlowDrains, LateFlows
from jobq.worker.full_pool import FullPool
from jobq.worker.holdings import Keeper
from jobq.worker.polling import Polling
from jobq.worker.programs import end_programs
from jobq.worker.queue_health import QueueHealth
from jobq.worker.queue_line import NotReportedError
from jobq.worker.recycle import Recycling
from jobq.worker.shared_state import Control, Phase, SharedSlots, lease_and_margin
from jobq.worker.signals import Signals
from jobq.worker.timers import Timers

#: How long a leaving child waits for a thread that delivers entries to flows.
SETTLE_FLOWS_S = 2.0


class TickSource(Protocol):
    """Enqueues the jobs of due schedules, in the supervisor."""

    def names(self) -> dict[str, list[str]]:
        """Return the names of the schedules that the code declares, by queue."""
        ...

    def next_s(self) -> float:
        """Return the seconds until the next schedule is due."""
        ...

    def enqueue_due(self, ask: Callable[[int, Callable[[], object]], bool]) -> None:
        """Enqueue the jobs of due schedules.

        `ask(index, call)` runs `call`, which calls the server of the queue with this index; see QueueUpkeep.ask.
        """
        ...


class Hooks(NamedTuple):
    """Functions and objects of other packages that a worker uses.

    Attributes:
        start: Each child calls this function before its first message.
        exit: Each child calls this function before it exits.
        keeper: The supervisor uses this object to renew resources that jobs hold elsewhere. If it is None, each child
            renews its own resources.
        ticks: Returns the object with which the supervisor enqueues calls of schedules.
        changed: Returns whether the program's files have changed. If so, the worker exits with exit_codes.RELOAD.
        listeners: Functions that the monitor process calls. Without listeners, the worker has no monitor process.
    """

    start: Callable[[], object] = lambda: None
    exit: Callable[[], object] = lambda: None
    keeper: Keeper | None = None
    ticks: Callable[[Sequence[Queue], Registry], TickSource] | None = None
    changed: Callable[[], bool] | None = None
    listeners: Sequence[MonitorListener] = ()


class PoolPlan(NamedTuple):
    """The state that a child inherits from its supervisor.

    Attributes:
        alive_read: A file descriptor that becomes readable once the supervisor has exited.
        counters: The child's counters; None if metrics are off.
    """

    settings: WorkerSettings
    client: Client
    registry: Registry
    hooks: Hooks
    alive_read: int
    alive_write: int
    health: QueueHealth
    log: JobLines | None = None
    counters: Counters | None = None


class ChildContext(NamedTuple):
    """The start parameters of one child.

    Attributes:
        signalled: A file descriptor that becomes readable after any signal.
    """

    plan: PoolPlan
    slots: SharedSlots
    parent: int
    signalled: int
    signals: Signals


class Next(Enum):
    """The next step of the loop: another turn, a wait for a message, a wait for something else, or the end."""

    TURN = 0
    SLEEP = 1
    WAIT = 2
    END = 3


class Runner(Protocol):
    """Runs the messages of one child, and calls `Child.turn` until it returns END.

    Attributes:
        overlaps: Whether jobs run while the reply to a report is pending.
    """

    overlaps: bool

    @property
    def is_running(self) -> bool:
        """Return whether any message is running or waiting to run."""
        ...

    @property
    def nuncounted(self) -> int:
        """Return the number of finished runs that `Child` hasn't processed yet."""
        ...

    def drive(self) -> None:
        """Call `Child.turn` until it returns END. Wait whenever it returns SLEEP or WAIT."""

    def room(self, index: int, freed: int = 0) -> int:
        """Return how many messages to request from this queue if `freed` more slots become free."""
        ...

    def begin(self, index: int, slots: Sequence[int], messages: Sequence[Message]) -> None:
        """Run these messages of one queue. A runner for concurrent jobs only starts them."""

    def reported(self) -> None:
        """Called after each report of outcomes."""

    def soft_timeout(self, seconds: float) -> AbstractContextManager[None]:
        """Return a context in which JobTimeout is raised, in the thread of a sync job, after this many seconds."""
        ...

    def sent(self) -> None:
        """Called after a report was sent, before its reply is read."""

    def in_fork(self) -> None:
        """Called in the new process after a job in this child has forked."""


class Child:
    """One child process of the pool."""

    def __init__(self, context: ChildContext) -> None:
        plan = context.plan
        self.context, self.settings, self.slots = context, plan.settings, context.slots
        self.queues = ChildQueues(
            self.settings, plan.client, plan.health, self.slots, self._before_call, plan.counters
        )
        self.polling = Polling(self.settings, self.queues.client, self.queues.queues, plan.health)
        self.recycling = Recycling(self.settings)
        self.timers = Timers(2 * self.settings.prefetch_s, self._look_around, self.slots.note_look)
        self.executor = self._executor()
        result_waits.on_wait = FullPool(plan.client).on_wait
        self.log = plan.log
        if self.log is not None:
            self.log.keep_in(self.slots.lines)
            os.register_at_fork(before=self.log.flush)
        self.margin_ns = lease_and_margin(self.settings.lease_s)[1]
        self.exit_code = exit_codes.OK
        self.draining = False
        # Whether this child waits for a message while jobs run or may start.
        self.asleep = False
        # Whether a dequeue was pipelined after the wait for a message.
        self._is_behind = False
        # Result of a pipelined call: queue, slots and messages.
        self._fetched: deque[tuple[int, Sequence[int], Sequence[Message]]] = deque()
        #: Run time after which a job is slow: messages queued after it are returned.
        self.slow_ns = round(2 * self.settings.prefetch_s * 1e9)
        # Slots of the sync job in the main thread.
        self._sync_slots: Sequence[int] = ()
        # Ended calls of the batch in the main thread: queue, slot and ending.
        self._ended_calls: deque[tuple[int, int, Ending]] = deque()
        # Slots of the batch whose endings were kept.
        self._kept_slots: set[int] = set()
        # Why running jobs are stopped: "lost", "hurry", or "" while they aren't.
        self.abort = ""
        self._aborted_at = 0
        self._is_stopping = lambda: bool(self.abort)

    def _executor(self) -> BatchExecutor:
        plan, members = self.context.plan, LateFlows(self.queues.progress_client)
        hooks = RunHooks(
            soft_timeout=lambda seconds: self.runner.soft_timeout(seconds),
            lease_deadline=lambda: self.slots.deadline() / 1e9,
            report_progress=self.queues.progress, checkpoint=self.queues.checkpoint,
            attempt_logs=AttemptLogs(self.queues.store_log), find_dead=self.queues.find_dead,
            fill_inputs=members.fill_inputs, flow_of=members.flow_of, log=plan.log, built_in=BUILT_IN,
            tracebacks=self.settings.tracebacks, counted=plan.counters is not None,
        )  # fmt: skip
        return BatchExecutor(
            plan.registry,
            worker=self.settings.name,
            seal=seal_of(plan.client),
            unknown_jobs=UnknownJobs(self.settings.unknown_wait_s, self.settings.unknown_for_s),
            hooks=hooks,
        )

    # The loop.

    def run(self, runner: Runner) -> None:
        """Fetch and run messages until the supervisor requests the child's exit."""
        self.runner = runner
        self._threads_before = set(threading.enumerate())
        self.flows = FlowDrains(
            self.queues.hasty_client,
            [name for name, _ in self.settings.queues],
            aside=runner.overlaps,
        )
        try:
            runner.drive()
            self._settle()
            self.flows.settle(SETTLE_FLOWS_S)
            self.return_wakes()
            self._warn_of_threads()
        except (UnavailableError, ServerFullError) as error:
            if not self._must_leave():
                raise
            logger.warning("the child exits without an answer from the server: %s", error)
        except (SystemExit, KeyboardInterrupt):
            # A job ended the event loop. If it failed as well, it would run again, and end the next child as well.
            self.report_unsafe()
            raise

    def _warn_of_threads(self) -> None:
        """Log a warning if jobs left threads running. The process exits without waiting for these threads."""
        frames = sys._current_frames()
        cut_off = [
            thread
            for thread in set(threading.enumerate()) - self._threads_before
            if not thread.daemon and not _is_idle(frames.get(thread.ident or 0))
        ]
        if cut_off:
            names = ", ".join(sorted(described(thread) for thread in cut_off))
            logger.warning(
                "a job left threads running, which end with child %d: %s; join them in the job, or make them daemon "
                "threads if they may be stopped at any point", os.getpid(), names,
            )  # fmt: skip

    def turn(self) -> Next:
        """Report finished runs, fetch as many messages as can run, and return the next step of the loop."""
        self._collect()
        self._begin_fetched()
        self._report(take=True)
        if self.queues.ended_members:
            self._tell_flows_of_ends()
        self.runner.reported()
        self.take_ahead()
        if self.queues.has_endings:
            return Next.TURN
        if self.leaving() and not self.is_busy:
            return Next.END
        if self.asleep or not self.may_take():
            self.queues.repeat_reports()
            return Next.WAIT
        if self._take():
            return Next.TURN
        if self.settings.burst and not (self.is_busy or self._waits_for_others()):
            return Next.END
        return Next.SLEEP

    def _waits_for_others(self) -> bool:
        waits = bool(self.flows.left) or self.polling.waits_for_server()
        return waits or (self.settings.burst != "ready" and self.slots.is_due_again)

    @property
    def is_busy(self) -> bool:
        """Return whether any message is running or waiting, or any outcome isn't reported yet."""
        return self.runner.is_running or self.queues.has_endings

    def leaving(self) -> bool:
        """Return whether this child must exit once it holds no more messages."""
        self.draining = self.draining or self._must_leave()
        return self.draining or self.recycling.due(self.slots.nfinished)

    def _must_leave(self) -> bool:
        return self.slots.asks(Control.DRAIN | Control.HURRY)

    def may_take(self) -> bool:
        """Return whether this child may fetch messages now."""
        if self.leaving() or self.slots.asks(Control.QUIET):
            return False
        return self._limited(self.runner.room(0)) > 0

    def _take(self) -> bool:
        """Query the queues in turn until one returns messages; return False if all are empty."""
        if self.runner.is_running:
            self.polling.look_for_wakes()
        while (index := self.polling.next()) is not None:
            limit = self._limited(self.runner.room(index))
            if self.runner.is_running and self._send(index, limit):
                return True
            if self._accept(index, *self.queues.dequeue(index, limit)) or not self.may_take():
                return True
        return False

    def _limited(self, room: int) -> int:
        """Reduce `room` to the number of messages that this child may still run before it is replaced."""
        if self.settings.max_jobs is None:
            return room
        slots = self.slots
        # In this order, a message that starts or ends in a thread now may be counted twice, but never missed.
        taken = slots.nwaiting + slots.nrunning + self.runner.nuncounted + slots.nfinished
        return self.recycling.left(room, taken)

    def _accept(self, index: int, dequeued: Dequeued, deadline: int) -> bool:
        """Run fetched messages. Return whether messages were fetched or flows may have enqueued new messages."""
        self.polling.record(index, dequeued)
        messages = dequeued.messages
        if not messages:
            self.slots.reading_done()
            return self._tell_flows(index, dequeued)
        if dequeued.outbox:
            self._tell_flows(index, dequeued)
        self.runner.begin(index, self.slots.publish(index, messages, deadline), messages)
        return True

    def _tell_flows(self, index: int, dequeued: Dequeued) -> bool:
        """Deliver entries of the queue's outbox to flows. Return whether flows may have enqueued messages."""
        if not dequeued.outbox:
            self.flows.left.discard(index)
            return False
        if not self.flows.noticed(index, is_busy=len(dequeued.messages) > 1):
            return False
        self.polling.ask_all()
        return True

    def _tell_flows_of_ends(self) -> None:
        """After reports that didn't check a queue's outbox, deliver the outbox's entries to flows.

        While a report is unanswered, do nothing.
        """
        ended, sent = self.queues.ended_members, self.queues.is_sent
        while ended and not sent:
            if self.flows.noticed(ended.pop(), is_busy=self.runner.is_running):
                self.polling.ask_all()

    def resolve(self, slot: int, index: int, message: Message) -> Call | Ending:
        """Decode a message. If that makes this child crash, the message counts as the cause."""
        self.slots.reading(slot)
        name = self.settings.queues[index][0]
        if self.queues.was_done(message):
            why = "this sealed call had already run and was enqueued again by someone else"
            return self.executor.refuse(name, message, why)
        return self.executor.resolve(name, message)

    def _before_call(self) -> None:
        """Exit if a job forked this process. Otherwise, restore signal handlers that a job has replaced."""
        self.executor.home.only()
        self.context.signals.keep_own()

    # Ended runs.

    def stopped(self, index: int, slot: int, call: Call, why: object) -> None:
        """Log and count a stopped job: its lock was lost, or its message was returned. Free its slot."""
        message = call.message
        if self.slots.is_lost(slot):
            # The supervisor logs the reason, because only the supervisor queries the server.
            logger.info(
                "stopped %s %s: it was cancelled, or its lease was lost", call.job.name, message.mid
            )
        else:
            logger.warning("stopped %s %s: %s", call.job.name, message.mid, why)
        if self.context.plan.counters is not None:
            self.context.plan.counters.aborted(index, call.job.name)
        if why == "hurry":
            self.queues.release(index, [Lease(message.mid, message.token)])
        self.slots.free((slot,))

    def report(self) -> bool:
        """Report finished runs; return whether the server received every report."""
        return self._report(take=False)

    def report_unsafe(self) -> None:
        """Report outcomes that would be lost if this child died."""
        if self.queues.has_unsafe_endings():
            self.report()

    def _report(self, take: bool) -> bool:
        """Report finished runs. With `take`, also fetch messages from the queue that has the next turn."""
        if take and self.queues.is_sent:
            return False  # the next turn reads that reply
        # A run's log line is written before the run is reported.
        self.flush_log()
        told = self._collect()
        for index, number in self.queues.nended().items():
            limit = self._limit_with(index, number) if take and not self.asleep else 0
            if take and self._send(index, limit):
                return False
            try:
                dequeued, deadline = self.queues.report(index, limit)
            except NotReportedError:
                told = False
                continue
            if dequeued is not None:
                self._accept(index, dequeued, deadline)
        return told

    def flush_log(self) -> None:
        if self.log is not None:
            self.log.flush()

    def _limit_with(self, index: int, freed: int) -> int:
        """Return how many messages to fetch in the same call as a report that frees `freed` slots."""
        if self.leaving() or self.slots.asks(Control.QUIET):
            return 0
        room = self.runner.room(index, freed)
        return self._limited(room) if room > 0 and self.polling.stays(index) else 0

    def _send(self, index: int, limit: int) -> bool:
        """If jobs run in parallel, send a report, but don't read the reply yet. Return whether a report was sent."""
        # Other work of the loop takes milliseconds, so only a blocked loop is late.
        after_ns = round(self.settings.lease_s / 3 * 1e9)
        if not self.runner.overlaps or not self.queues.send(index, limit, after_ns):
            return False
        self.runner.sent()
        return True

    def send_ahead(self, index: int) -> None:
        """While the last jobs of a batch run, report finished jobs and request the next messages."""
        if self.settings.max_jobs is None:
            limit = self._limit_with(index, self.queues.nended().get(index, 0))
            if limit:
                self.flush_log()
                self.queues.send(index, limit, self.slow_ns)

    def _collect(self) -> bool:
        """Read the reply to a sent report, and queue the received messages. Return False if the reply was lost."""
        if not self.queues.is_sent:
            return True
        try:
            index, dequeued, deadline = self.queues.collect()
        except NotReportedError:
            return False
        if dequeued is None:
            return True
        self.polling.record(index, dequeued)
        messages = dequeued.messages
        self._tell_flows(index, dequeued)
        if messages:
            self._fetched.append((index, self.slots.publish(index, messages, deadline), messages))
        else:
            self.slots.reading_done()
        return True

    def _begin_fetched(self) -> None:
        while self._fetched:
            index, slots, messages = self._fetched.popleft()
            if self.leaving():
                self.queues.give_back(index, slots)
            else:
                self.runner.begin(index, slots, messages)

    def _settle(self) -> None:
        """Before the child exits, wait until the servers have received its reports."""
        self.queues.repeat_reports()
        while not self.slots.asks(Control.HURRY) and self.queues.must_wait():
            self.rest()
            self.queues.repeat_reports()
        if self.queues.log_unreported():
            # The supervisor returns held messages, and messages that a lost call may have handed out.
            self.exit_code = exit_codes.FENCED

    # Waits.

    def begin_nap(self) -> tuple[float, bytes | None]:
        """Return how many seconds to wait for a message, and the dequeue command to pipeline after the wait, if any."""
        nap_s = self.polling.nap_s()
        if nap_s >= LONG_S and not self.is_busy:
            self.queues.close_idle()
        return nap_s, self._pipeline_ask(nap_s)

    def _pipeline_ask(self, nap_s: float) -> bytes | None:
        """Return the dequeue command to send together with the wait for a message, or None.

        The messages' leases start when the server executes the command. So the result is None if the wait is long
        compared with a lease, or if this child has several queues.
        """
        settings = self.settings
        if self.is_busy or len(settings.queues) > 1 or nap_s * 3 > settings.lease_s:
            return None
        if self.context.plan.health.any_trouble:
            return None
        command = self.queues.send_behind_wait(self._limited(self.runner.room(0)))
        self._is_behind = command is not None
        return command

    def take_ahead(self) -> None:
        """After a wait, run the messages dequeued in the same round trip. If their reply was lost, repeat the call."""
        if not self._is_behind or self.asleep:
            return
        self._is_behind = False
        self.polling.next()
        reply, self.polling.waiter.reply = self.polling.waiter.reply, None
        dequeued, deadline = self.queues.take_behind_wait(reply)
        if self.may_take():
            self._accept(0, dequeued, deadline)
        else:
            self.queues.give_back(0, self.slots.publish(0, dequeued.messages, deadline))

    def sleep(self, at_most_s: float | None = None) -> None:
        """Sleep until a message is ready, a signal arrives or the supervisor has exited."""
        context, waiter = self.context, self.polling.waiter
        nap_s, behind = self.begin_nap()
        if at_most_s is not None:
            nap_s = min(nap_s, max(0.001, at_most_s))
        self.slots.phase = Phase.IDLE
        others = (context.plan.alive_read, context.signalled)
        waiter.wait(nap_s, others, behind, self.polling.skipped())
        self.polling.note_silence()
        self.polling.wake()
        self.drain_signals()
        self.slots.phase = Phase.WORKING

    def rest(self, at_most_s: float | None = None) -> None:
        """Sleep until a failed report may be repeated, a signal arrives or the supervisor has exited."""
        context = self.context
        self.slots.phase = Phase.IDLE
        files = [context.plan.alive_read, context.signalled]
        waits = (self.queues.report_wait_s(), at_most_s)
        select.select(files, [], [], min((s for s in waits if s is not None), default=None))
        self.drain_signals()
        self.slots.phase = Phase.WORKING

    def return_wakes(self) -> None:
        """When this child stops waiting, give back to the server any wake markers that it may have taken."""
        self.polling.return_wakes(self.queues.hasty)

    def drain_signals(self) -> None:
        """Empty the pipe into which signals write. If the supervisor has exited, exit immediately."""
        alive, signalled = self.context.plan.alive_read, self.context.signalled
        readable, _, _ = select.select([alive, signalled], [], [], 0)
        if alive in readable:
            self.flush_log()
            os._exit(exit_codes.FENCED)
        if signalled in readable:
            os.read(signalled, 4096)

    # A sync job in the main thread, and the checks while it runs.

    def run_sync(self, slot: int, call: Call) -> Ending:
        """Run a job in this thread and return its outcome. Raises JobAborted if the job was stopped."""
        timers = self.timers
        self._sync_slots, self.abort = (slot,), ""
        timers.arm()
        try:
            timers.in_job = True
            if call.job.is_async:  # registered after this child had started
                return asyncio.run(self.executor.arun(call, self._is_stopping))
            return self.executor.run(call, self._is_stopping)
        finally:
            timers.in_job, self._sync_slots = False, ()
            if (signals := self.context.signals).touched:
                signals.after_job(call.job.name)

    def run_calls(self, index: int, slots: Sequence[int], calls: Sequence[Call]) -> None:
        """Run calls of a batch job in this thread.

        Raises JobAborted if the calls were stopped; some calls may have finished before.
        """
        timers = self.timers
        self._sync_slots, self.abort = slots, ""

        self._kept_slots.clear()

        def take(position: int, ending: Ending) -> None:
            slot = slots[position]
            # In this order, because a marked call must be in the list.
            self._ended_calls.append((index, slot, ending))
            if self.slots.is_running(slot):
                self.queues.mark_ended(slot, ending)

        timers.arm()
        try:
            timers.in_job = True
            self.executor.run_calls(
                calls, take, self._is_stopping, lambda position: self.slots.is_lost(slots[position])
            )
        finally:
            timers.in_job, self._sync_slots = False, ()
            if (signals := self.context.signals).touched:
                signals.after_job(calls[0].job.name)
            self._keep_ended_calls()

    def _keep_ended_calls(self) -> None:
        while self._ended_calls:
            index, slot, ending = self._ended_calls.popleft()
            if slot not in self._kept_slots:  # an interrupted run delivers an ending again
                self._kept_slots.add(slot)
                self.queues.ended(index, slot, ending)

    def on_notice(self) -> None:
        """Handle the signal by which the supervisor announces a request, a lost lock or a late timer."""
        self.timers.late()
        self.on_control()

    def on_control(self) -> None:
        """Carry out the supervisor's requests, which may stop the job in the main thread."""
        if self._must_leave():
            self.draining = True
        if not self.timers.in_job or not self._sync_slots:
            return
        if self.slots.are_lost(self._sync_slots):
            self._raise_abort("lost", "its lock was lost, or it was cancelled")
        if self.slots.asks(Control.HURRY):
            self._raise_abort("hurry", "the worker must exit now")

    def _raise_abort(self, abort: str, why: str) -> None:
        # Once per run: a second exception would interrupt the job's handling of the first.
        if not self.abort:
            self.abort = abort
            raise JobAborted(why)

    def _look_around(self, now: int) -> float:
        """Check the supervisor and the lease during a long sync job, and report earlier outcomes.

        Return the seconds until the next check.
        """
        self.check_parent()
        self._fence_sync()
        self.flush_log()
        if self._ended_calls or self.queues.has_endings:
            self.timers.in_job = False  # nothing may be raised halfway through
            try:
                self._keep_ended_calls()
                self.queues.report_during_job()
            finally:
                self.timers.in_job = True
            self._fence_sync()
            self.on_control()
        return self.next_look_s()

    # The fence.

    def _fence_sync(self) -> None:
        self.fence(lambda: self._raise_abort("lost", "its lease could not be renewed in time"))

    def fence(self, stop: Callable[[], None]) -> None:
        """If a lease has expired, call `stop` to stop jobs. If a job doesn't stop soon, end the process."""
        now = boot_ns()
        if now < self.slots.deadline():
            self._aborted_at = 0
            return
        if not self._aborted_at:
            self._aborted_at = now
            logger.error("could not renew the leases in time; stopping the running jobs")
            stop()
            self.abort = "lost"
        elif now - self._aborted_at >= self.margin_ns:
            logger.error("a job didn't stop after its lease ended; this child exits")
            end_programs(os.getpid(), self.slots.began_at())
            os._exit(exit_codes.FENCED)

    def next_look_s(self) -> float:
        """Return the seconds until running jobs must be checked again, at the latest when a lease expires."""
        left_s = (self.slots.deadline() - boot_ns()) / 1e9
        return max(0.01, min(left_s, self.settings.lease_s / 6))

    def all_stopped(self) -> None:
        """Reset the stop request once all running jobs have ended."""
        self.abort, self._aborted_at = "", 0

    def check_parent(self) -> None:
        """Exit immediately if the supervisor has exited."""
        if os.getppid() != self.context.parent:
            self.flush_log()
            os._exit(exit_codes.FENCED)


def _is_idle(frame: FrameType | None) -> bool:
    """Return whether the thread has ended, or waits for work in a thread pool."""
    return frame is None or frame.f_code.co_filename.endswith("concurrent/futures/thread.py")


def described(thread: threading.Thread) -> str:
    """Return a thread's name and function, such as `poller (shop.polling.run)`."""
    target = getattr(thread, "_target", None) or type(thread)
    module, name = getattr(target, "__module__", "?"), getattr(target, "__qualname__", target)
    return f"{thread.name} ({module}.{name})"
