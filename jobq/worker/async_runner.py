"""Runs up to `concurrency` async jobs on an event loop, and at the same time up to `threads` sync jobs in threads.

Jobs continue while a report awaits its reply. Other calls to the server run on the event loop itself, because they are
short. If the server is unreachable, these calls block the event loop.
"""

from __future__ import annotations

import asyncio
import importlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import Context, copy_context
from time import monotonic
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from jobq import extras
from jobq.client.clock import boot_ns
from jobq.client.waiter import GRACE_S, lateness
from jobq.errors import ConfigError, JobAborted, UnavailableError
from jobq.jobs.batch_executor import TakeEnding
from jobq.jobs.context import Call, running
from jobq.jobs.forks import ForkedProcessError, leave
from jobq.queue.types import Ending, Lease, Message
from jobq.worker import logger
from jobq.worker.batches import Gathering, Group, batch_sizes
from jobq.worker.child import Child, Next, Runner
from jobq.worker.scheduling import GATHER_S, EndingPace
from jobq.worker.shared_state import COUNT, Control, Phase
from jobq.worker.thread_runner import LOOK_WITHIN_S, JobThreads, ThreadRun
from jobq.worker.timers import kill_after_s

Answer = TypeVar("Answer")
_ELSEWHERE = ForkedProcessError()

#: How long jobs continue without a reply from the server.
SILENT_S = 1.0
#: Why a run in a thread has not begun: its message was taken back, or its lease may have ended.
WITHDRAWN = "withdrawn"


def loop_library(name: str = "auto") -> ModuleType:
    """Return the module that creates the children's event loops.

    For "auto", this is uvloop if it is installed, else asyncio.
    """
    if name != "asyncio":
        try:
            return importlib.import_module("uvloop")
        except ImportError as error:
            if name == "uvloop":
                raise ConfigError(
                    f"event_loop='uvloop' needs uvloop, which isn't installed; {extras.install('uvloop')}"
                ) from error
    return asyncio


class StartedCall(NamedTuple):
    """A call that is starting or waiting to start, with the index of its queue and its slot.

    If the job runs in batches, `calls` has all calls of the batch by slot.
    """

    queue: int
    slot: int
    call: Call
    calls: Mapping[int, Call] | None = None


class JobRun(asyncio.Task[None]):
    """An asyncio task that runs one call or a batch. Only the worker and the job itself may cancel it."""

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, None],
        loop: asyncio.AbstractEventLoop,
        run: StartedCall,
        context: Context,
        on_cut_short: Callable[[asyncio.Task[None]], None],
    ) -> None:
        """Create the task. If the task is cancelled, `on_cut_short` is called when the task ends."""
        self.index, self.slot, self.call, self.calls = run
        #: Whether messages were started, slots of ended calls, and the ending of a batch's first call; see ThreadRun.
        self.began, self.ended = False, set[int]()
        self.first: Ending | None = None
        #: Why the run is cancelled.
        self.why = ""
        self._on_cut_short = on_cut_short
        super().__init__(coroutine, loop=loop, name=self.call.message.mid, context=context)

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the run. If a different job tries to cancel the run, do nothing and return False."""
        context = running.get(None)
        if context is not None and not context.is_of(self.call):
            return False
        self.add_done_callback(self._on_cut_short)
        return super().cancel(msg)

    def stop(self, why: str) -> None:
        if not self.why:
            self.why = why
            self.cancel()


class AsyncRunner(Runner):
    """Runs several jobs concurrently. It fetches as many messages as can start, and a few more if jobs are short."""

    overlaps = True

    def __init__(self, child: Child) -> None:
        self._child = child
        self._runs: dict[int, JobRun | ThreadRun] = {}
        # Messages waiting because the limit of their kind is reached. Threads take from the second queue, without the
        # loop.
        self._waiting: deque[StartedCall] = deque()
        self._for_threads: deque[ThreadRun] = deque()
        # Queue and slot of messages to return without starting them.
        self._withdrawn: deque[tuple[int, int]] = deque()
        # A message with earlier crashes, which waits until it can run alone.
        self._alone: StartedCall | None = None
        # The last message to run alone.
        self._loner: JobRun | ThreadRun | None = None
        settings = child.settings
        self._library = loop_library(settings.event_loop)
        self._most = settings.threads
        if any(job.is_async for job in child.executor.registry):
            self._most = max(settings.concurrency, settings.threads)
        queues = [name for name, _ in settings.queues]
        # Maximum number of calls in a batch, by queue; 0 for none.
        self._batches = batch_sizes(child.executor.registry, queues)
        # A burst ends when the queues are empty, so its batches don't wait for more calls.
        self._gathering = Gathering(child.slots, not settings.burst, child.queues.renew)
        self._due_alarm: asyncio.TimerHandle | None = None
        # Ended calls of running batches, from any thread.
        self._ended_calls: deque[tuple[JobRun | ThreadRun, int, Ending]] = deque()
        # Whether the loop knows that calls ended.
        self._notified = False
        self._pace = EndingPace(max(settings.concurrency, settings.prefetch), child.slow_ns / 1e9)
        # Number of jobs ended since the last report, and the sum of their run times.
        self._nended = self._ran_ns = 0
        # Whether the reply to the sent calls has arrived.
        self._replied = True
        self._reply_alarm: asyncio.TimerHandle | None = None
        self._gather_alarm: asyncio.TimerHandle | None = None
        # Whether endings and a reply wait for the gather alarm, because messages wait for a place.
        self._is_ahead = False
        self._wait_files: list[int] = []
        self._wait_alarm: asyncio.TimerHandle | None = None
        self._report_alarm: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Each job's context is a copy of this context.
        self._context = copy_context()
        self._over = self._failing = False

    @property
    def is_running(self) -> bool:
        return bool(self._runs or self._nwaiting or self._alone or self._gathering)

    @property
    def _nwaiting(self) -> int:
        return len(self._waiting) + len(self._for_threads)

    @property
    def nuncounted(self) -> int:
        """Return the number of finished runs that the event loop hasn't processed yet."""
        return self._child.slots.count_ended(list(self._threads.runs)) + len(self._ended_calls)

    def room(self, index: int, freed: int = 0) -> int:
        """Return how many messages to fetch so that all of them can start soon.

        Return 0 while a message must run alone, or if enough prefetched messages are waiting.
        """
        child = self._child
        if self._nwaiting > self._pace.nahead or self._must_run_alone:
            return 0
        nfree = child.slots.nfree - child.queues.nasked
        most = self._most + self._pace.nahead
        nused = COUNT - nfree - child.queues.nlate
        nheld = len(self._runs) + self._nwaiting
        if any(self._batches):
            # A batch has many slots, so used slots aren't a count of runs.
            batch = self._batches[index] - self._gathering.largest(index)
            wanted = max(1, batch) if self._batches[index] else most - nheld
            return min(nfree + freed, wanted) if nheld < most else 0
        return min(nfree + freed, most - nused + freed, most - nheld)

    def drive(self) -> None:
        """Run the event loop until the child ends, even if a job stops the loop."""
        with asyncio.Runner(loop_factory=self._library.new_event_loop) as runner:
            loop = runner.get_loop()
            main = loop.create_task(self._main())
            while not main.done():
                try:
                    loop.run_until_complete(main)
                except BaseException as error:
                    if isinstance(error, RuntimeError) and not main.done() and not loop.is_closed():
                        continue
                    # Running jobs are cancelled now, and count as ended by this child's death.
                    self._failing = True
                    raise

    async def _main(self) -> None:
        child, context = self._child, self._child.context
        loop = self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._threads = JobThreads(
            self._run_in_thread, self._on_thread_over, self._look, self._following,
            context.signals.after_job_in_thread,
        )  # fmt: skip
        loop.add_reader(context.signalled, self._on_signal)
        loop.add_reader(context.plan.alive_read, child.drain_signals)
        watch = loop.create_task(self._watch())
        while not self._over:
            try:
                await self._turn()
            except asyncio.CancelledError:
                # A job cancelled all tasks of its loop; no other code cancels this task.
                if self._failing:
                    raise
                _uncancel()
        self._wake_up(())
        child.take_ahead()
        watch.cancel()
        self._warn_of_tasks(asyncio.all_tasks(loop) - {watch})

    def _warn_of_tasks(self, left: set[asyncio.Task[Any]]) -> None:
        names = sorted(
            f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')})"
            for task in left
            if not isinstance(task, JobRun) and task is not asyncio.current_task()
        )
        if names:
            logger.warning(
                "cancelled tasks that a job left running: %s; await them in the job", ", ".join(names)
            )  # fmt: skip

    async def _turn(self) -> None:
        child, alarm = self._child, self._gather_alarm
        # uvloop has more steps to make before the end of a process that a job forked.
        child.executor.home.only(_ELSEWHERE)
        self._changed.clear()
        if alarm is not None:
            alarm.cancel()
            self._gather_alarm, self._is_ahead = None, False
        if child.queues.is_sent and not self._replied:
            await self._changed.wait()
            return
        if self._withdrawn:
            self._give_back([self._withdrawn.popleft() for _ in range(len(self._withdrawn))])
        if self._nwaiting and child.leaving():
            self._give_back_waiting()
        if self._gathering and (child.leaving() or child.slots.asks(Control.QUIET)):
            self._give_back(self._gathering.drop())
        if self._nended:
            child.context.signals.after_batch()
        self._pace.reports(self._nended, self._ran_ns / 1e9, monotonic())
        self._nended = self._ran_ns = 0
        following = self._fenced(child.turn)
        if following is Next.END:
            self._over = True
        elif following is Next.TURN:
            await asyncio.sleep(0)
        else:
            if following is Next.SLEEP:
                self._fenced(self._fall_asleep)
            self._report_later()
            await self._changed.wait()

    def sent(self) -> None:
        """Wait for the reply to a report while jobs run. After SILENT_S without a reply, block until it arrives."""
        assert self._loop is not None
        self._replied = False
        file = self._child.queues.reply_file()
        if file is None:
            self._replied = True
            return
        self._loop.add_reader(file, self._on_reply, file)
        self._reply_alarm = self._loop.call_later(SILENT_S, self._on_reply, file)

    def _on_reply(self, file: int) -> None:
        assert self._loop is not None
        self._loop.remove_reader(file)
        if self._reply_alarm is not None:
            self._reply_alarm.cancel()
        self._replied = True
        if not self._is_ahead:
            self._changed.set()

    def _report_later(self) -> None:
        wait_s = self._child.queues.report_wait_s()
        if wait_s is not None and self._report_alarm is None:
            self._report_alarm = asyncio.get_running_loop().call_later(wait_s, self._report_now)

    def _report_now(self) -> None:
        self._report_alarm = None
        self._changed.set()

    # Jobs.

    def begin(self, index: int, slots: Sequence[int], messages: Sequence[Message]) -> None:
        """Start each message in a task or a thread, as soon as the limit on concurrent jobs allows."""
        child = self._child
        # Read all messages before the first starts in a thread: if reading kills this child, no ending may be lost.
        calls = [
            child.resolve(slot, index, message)
            for slot, message in zip(slots, messages, strict=True)
        ]
        child.slots.reading_done()
        for slot, call in zip(slots, calls, strict=True):
            if isinstance(call, Ending):
                if child.slots.start(slot):
                    self._ended(index, slot, call)
                else:
                    child.queues.give_back(index, (slot,))
            elif call.job.settings.batch is None:
                self._put_behind(StartedCall(index, slot, call))
        self._put_batches_behind(index, zip(slots, calls, strict=True))
        self._start_waiting()

    def _put_batches_behind(self, index: int, calls: Iterable[tuple[int, Call | Ending]]) -> None:
        batched = [
            (slot, call)
            for slot, call in calls
            if isinstance(call, Call) and call.job.settings.batch is not None
        ]
        for _, call in batched:
            self._batches[index] = max(self._batches[index], call.job.settings.batch or 0)
        for group in self._gathering.groups(index, batched):
            self._put_batch_behind(index, group)
        self._start_due_later()

    def _put_batch_behind(self, index: int, group: Group) -> None:
        members = {slot: call for slot, call in group if isinstance(call, Call)}
        slot, call = next(iter(members.items()))
        self._put_behind(StartedCall(index, slot, call, members))

    def _start_due_later(self) -> None:
        """Set a timer that starts the next waiting batch when its linger time ends."""
        left_s = self._gathering.left_s()
        if self._due_alarm is not None:
            self._due_alarm.cancel()
        if left_s is not None and self._loop is not None:
            self._due_alarm = self._loop.call_later(left_s, self._start_due)

    def _start_due(self) -> None:
        if self._must_run_alone:
            return  # `reported` continues
        for index, group in self._gathering.due():
            self._put_batch_behind(index, group)
        self._start_fetched()
        self._start_due_later()
        self._changed.set()

    @property
    def _must_run_alone(self) -> bool:
        """Return whether a message that crashed earlier children is running, or will run next."""
        loner = self._loner
        return self._alone is not None or (
            loner is not None and self._runs.get(loner.slot) is loner
        )

    def _put_behind(self, started_call: StartedCall) -> None:
        if started_call.call.message.ncrashes and (self._runs or self._nwaiting):
            self._alone = started_call
        elif started_call.call.job.is_async:
            self._waiting.append(started_call)
        else:
            self._for_threads.append(ThreadRun(*started_call))

    def _may_run_async(self) -> bool:
        return len(self._runs) - len(self._threads.runs) < self._child.settings.concurrency

    def _start(self, started: StartedCall) -> None:
        assert self._loop is not None
        index, slot, call, calls = started
        coroutine = self._run(index, slot, call) if calls is None else self._run_batch(slot)
        # This may be called while another job ends, in that job's context.
        context = self._context.copy()
        run = JobRun(coroutine, self._loop, started, context, self._on_done)
        self._note(run)

    def _note(self, run: JobRun | ThreadRun) -> None:
        self._runs[run.slot] = run
        if run.call.message.ncrashes:
            self._loner = run

    def _start_waiting(self) -> None:
        child = self._child
        if child.draining:
            self._give_back_waiting()
        if self._for_threads and self._threads.nbusy < child.settings.threads:
            # The next run may kill this child: report endings that the supervisor couldn't report then.
            child.report_unsafe()
        self._start_fetched()

    def _start_fetched(self) -> None:
        """Start prefetched messages.

        The event loop may call this as a callback, so the method never calls the server.
        """
        child = self._child
        while self._waiting and not child.draining and self._may_run_async():
            self._start(self._waiting.popleft())
        while self._threads.nbusy < child.settings.threads:
            run = self._following()
            if run is None:
                break
            self._threads.start(run)

    def _following(self) -> ThreadRun | None:
        """Return the next run for this thread; None if no run is waiting, or the main thread must report first."""
        child, slots = self._child, self._child.slots
        must_wait = child.queues.has_unsafe_endings() or slots.asks(Control.DRAIN | Control.HURRY)
        if must_wait or child.draining:
            return None
        try:
            run = self._for_threads.popleft()
        except IndexError:
            return None
        # Before its start, so that a stop of all runs includes it.
        self._note(run)
        self._threads.note(run)
        # Only now: waiting messages may have been taken back.
        if slots.asks(Control.HURRY) or not self._begins(run, in_thread=True):
            run.why = run.why or WITHDRAWN
        return run

    def _begins(self, run: JobRun | ThreadRun, in_thread: bool) -> bool:
        """Mark the messages of a run as started.

        Return False if the first message can't start. Any thread may call this.
        """
        slots, limit_s = self._child.slots, kill_after_s(run.call.job)
        if not slots.start(run.slot, limit_s, in_thread):
            return False
        run.began = True
        if run.calls is not None:
            started = {
                slot: call
                for slot, call in run.calls.items()
                if slot == run.slot or slots.start(slot, limit_s, in_thread)
            }
            self._withdrawn.extend((run.index, slot) for slot in run.calls if slot not in started)
            run.calls = started
        return True

    def _on_done(self, run: asyncio.Task[None]) -> None:
        assert isinstance(run, JobRun)
        if self._runs.get(run.slot) is not run:
            return
        del self._runs[run.slot]
        child, message = self._child, run.call.message
        if run.calls is not None:
            self._on_batch_over(run, None if run.cancelled() else run.exception())
            return
        if run.cancelled():
            child.queues.release(run.index, [Lease(message.mid, message.token)])
            child.slots.free((run.slot,))
            self._changed.set()
            return
        self._broke(run, run.exception())

    def _broke(self, run: JobRun | ThreadRun, error: BaseException | None) -> None:
        for slot, call in ({run.slot: run.call} if run.calls is None else run.calls).items():
            if slot not in run.ended:
                message = call.message
                logger.error(
                    "%s %s raised an error outside the job",
                    call.job.name,
                    message.mid,
                    exc_info=error,
                )
                crashed = Ending(
                    mid=message.mid, token=message.token, outcome="crashed", reason=repr(error)
                )
                self._ended(run.index, slot, crashed)

    # Batches.

    def _take_endings(self, run: JobRun | ThreadRun) -> TakeEnding:
        """Return a function that records the outcome of each call in a batch. Any thread may call the function."""
        child, places = self._child, list(run.calls or ())

        def take(position: int, ending: Ending) -> None:
            slot = places[position]
            if slot == run.slot:
                run.first = ending
                child.slots.ended(slot, ending.outcome == "done" and ending.result is None)
                return
            # In this order, because a marked call must be in the list.
            self._ended_calls.append((run, slot, ending))
            if slot not in run.ended and child.slots.is_running(slot):
                child.queues.mark_ended(slot, ending)
            if not self._notified and self._loop is not None:
                self._notified = True
                with suppress(RuntimeError):  # the loop is closed: this process ends
                    self._loop.call_soon_threadsafe(self._keep_ended_calls)

        return take

    def _keep_ended_calls(self) -> None:
        # Reset before the check, so that later ends notify again.
        self._notified = False
        while self._ended_calls:
            run, slot, ending = self._ended_calls.popleft()
            if slot not in run.ended:  # an interrupted run delivers an ending again
                run.ended.add(slot)
                self._ended(run.index, slot, ending)

    def _is_lost(self, run: JobRun | ThreadRun) -> bool:
        slots = self._child.slots
        if run.calls is None:
            return slots.is_lost(run.slot)
        return slots.are_lost(slot for slot in run.calls if slot not in run.ended)

    async def _run_batch(self, slot: int) -> None:
        child, run = self._child, self._runs[slot]
        assert isinstance(run, JobRun)
        child.executor.home.only(_ELSEWHERE)
        try:
            if self._begins(run, in_thread=False):
                places = list(run.calls or ())
                try:
                    await child.executor.arun_calls(
                        list((run.calls or {}).values()),
                        self._take_endings(run),
                        lambda: bool(run.why) or self._failing,
                        lambda position: child.slots.is_lost(places[position]),
                    )
                finally:
                    if child.context.signals.touched:
                        child.context.signals.after_job(run.call.job.name)
        except (asyncio.CancelledError, JobAborted) as stopped:
            if self._failing:  # its calls stay RUNNING, and are charged with this child's death
                del self._runs[slot]
                raise
            run.why = run.why or child.abort or str(stopped) or "cancelled"
        except BaseException:
            run.add_done_callback(self._on_done)
            raise
        self._runs.pop(slot, None)
        self._on_batch_over(run, None)

    def _on_batch_over(self, run: JobRun | ThreadRun, error: BaseException | None) -> None:
        child = self._child
        self._keep_ended_calls()
        self._count_run(run.slot)
        if run.first is not None:
            run.ended.add(run.slot)
            self._ended(run.index, run.slot, run.first)
        calls = run.calls or {}
        if not run.began:
            self._withdrawn.extend((run.index, slot) for slot in calls)
        elif run.why:
            for slot, call in calls.items():
                if slot not in run.ended:
                    child.stopped(run.index, slot, call, run.why)
        else:
            self._broke(run, error)
        self._changed.set()

    def _run_calls_in_thread(self, run: ThreadRun, calls: Mapping[int, Call]) -> None:
        slots, places = self._child.slots, list(calls)
        self._child.executor.run_calls(
            list(calls.values()),
            self._take_endings(run),
            run.is_stopped,
            lambda position: slots.is_lost(places[position]),
        )

    def _run_in_thread(self, run: ThreadRun) -> Ending | None:
        if run.calls is not None:
            self._run_calls_in_thread(run, run.calls)
            return None
        ending = self._child.executor.run(run.call, run.is_stopped)
        # In this thread: the run is over even if this child dies before the main thread sees that.
        self._child.queues.mark_ended(run.slot, ending)
        return ending

    def _on_thread_over(self, run: ThreadRun) -> None:
        del self._runs[run.slot]
        if run.calls is not None:
            self._on_batch_over(run, run.error)
            return
        self._count_run(run.slot)
        if run.ending is not None:
            self._ended(run.index, run.slot, run.ending)
        elif run.why == WITHDRAWN:
            self._withdrawn.append((run.index, run.slot))
            self._changed.set()
        elif run.why:
            self._child.stopped(run.index, run.slot, run.call, run.why)
            self._changed.set()
        else:
            self._broke(run, run.error)

    def _count_run(self, slot: int) -> None:
        self._nended += 1
        self._ran_ns += self._child.slots.run_time_ns(slot)

    def _ended(self, index: int, slot: int, ending: Ending) -> None:
        child = self._child
        plain = child.queues.ended(index, slot, ending)
        child.slots.count_finished(1)
        if plain:
            self._start_fetched()
        gathers = plain and self._pace.gathers(monotonic())
        # Places are free once nothing waits any longer, and the next report fills them.
        if not (gathers and (self._nwaiting or (self._runs and not self._is_ahead))):
            self._changed.set()
        elif self._gather_alarm is None and self._loop is not None:
            self._is_ahead = self._nwaiting > 0
            self._gather_alarm = self._loop.call_later(GATHER_S, self._changed.set)

    async def _run(self, index: int, slot: int, call: Call) -> None:
        child, run = self._child, self._runs[slot]
        child.executor.home.only(_ELSEWHERE)
        ending: Ending | None = None
        try:
            # Only now: while a job blocks the loop, its queued messages may be returned to Redis.
            if child.slots.start(slot, kill_after_s(call.job)):
                try:
                    ending = await child.executor.arun(call, lambda: bool(run.why) or self._failing)
                finally:
                    if child.context.signals.touched:
                        child.context.signals.after_job(call.job.name)
            else:
                child.queues.give_back(index, (slot,))
        except (asyncio.CancelledError, JobAborted) as stopped:
            if self._failing:  # it stays RUNNING, and is charged with this child's death
                del self._runs[slot]
                raise
            child.stopped(index, slot, call, run.why or child.abort or stopped)
        except BaseException:
            assert isinstance(run, JobRun)
            run.add_done_callback(self._on_done)
            raise
        self._runs.pop(slot, None)
        self._count_run(slot)
        if ending is not None:
            self._ended(index, slot, ending)
        else:
            self._changed.set()

    def soft_timeout(self, seconds: float) -> AbstractContextManager[None]:
        """Return a context in which JobTimeout is raised in this thread after this many seconds."""
        return self._threads.limited(seconds)

    def reported(self) -> None:
        """Start the waiting messages. If no job runs, start the message that must run alone."""
        if self._nwaiting:
            self._start_waiting()
        if self._alone and not self._runs and not self._nwaiting:
            alone, self._alone = self._alone, None
            self._put_behind(alone)
            self._start_waiting()
        if self._gathering and self._gathering.left_s() == 0:
            self._start_due()
        if not self._runs:
            self._child.all_stopped()

    # Waits.

    def _fall_asleep(self) -> None:
        child, loop = self._child, asyncio.get_running_loop()
        polling = child.polling
        nap_s, behind = child.begin_nap()
        if not child.is_busy:
            child.slots.phase = Phase.IDLE
        try:
            self._wait_files = polling.waiter.begin(nap_s, behind, polling.skipped())
        except UnavailableError:
            self._wake_up(())
            return
        finally:
            polling.note_silence()
        child.asleep = True
        for file in self._wait_files:
            loop.add_reader(file, self._wake_up, (file,))
        self._wait_alarm = loop.call_later(nap_s + lateness(nap_s), self._overslept)

    def _overslept(self) -> None:
        loop, polling = asyncio.get_running_loop(), self._child.polling
        for file in self._fenced(polling.waiter.cut_short):
            loop.remove_reader(file)
            self._wait_files.remove(file)
        polling.note_silence()
        self._wait_alarm = loop.call_later(GRACE_S, self._wake_up, ())

    def _wake_up(self, ready: tuple[int, ...]) -> None:
        """End the wait for messages. The event loop may call this method, so it must not raise server errors."""
        child = self._child
        if self._wait_alarm is not None:
            self._wait_alarm.cancel()
        for file in self._wait_files:
            asyncio.get_running_loop().remove_reader(file)
        self._wait_files, child.asleep = [], False
        child.polling.waiter.end(ready)
        child.polling.wake()
        child.slots.phase = Phase.WORKING
        self._changed.set()

    # Requests of the supervisor, and the fence.

    def _on_signal(self) -> None:
        child = self._child
        child.drain_signals()
        hurried = child.slots.asks(Control.HURRY)
        for run in list(self._runs.values()):
            if self._is_lost(run):
                run.stop("lost")
            elif hurried:
                run.stop("hurry")
        if hurried:
            self._give_back_waiting()
        if child.asleep and (child.slots.asks(Control.QUIET) or child.leaving()):
            self._wake_up(())
            child.return_wakes()
        self._changed.set()

    def _give_back_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        if self._alone:
            waiting.append(self._alone)
            self._alone = None
        places = [
            (started.queue, slot)
            for started in waiting
            for slot in started.calls or (started.slot,)
        ]
        places += self._gathering.drop()
        with suppress(IndexError):
            while True:  # one by one, since threads take from it
                run = self._for_threads.popleft()
                places += [(run.index, slot) for slot in run.calls or (run.slot,)]
        self._give_back(places)

    def _give_back(self, places: Sequence[tuple[int, int]]) -> None:
        """Give unstarted messages back to their queues. Each message is given by its queue's index and its slot."""
        by_queue: dict[int, list[int]] = {}
        for index, slot in places:
            by_queue.setdefault(index, []).append(slot)
        for index, slots in by_queue.items():
            self._child.queues.give_back(index, slots)

    async def _watch(self) -> None:
        """While jobs run, regularly check their leases, and the age and memory of this child."""
        child = self._child
        while True:
            try:
                await asyncio.sleep(child.next_look_s())
            except asyncio.CancelledError:
                if self._over or self._failing:
                    raise
                _uncancel()
            child.check_parent()
            self._fence()
            if child.leaving():
                self._changed.set()

    def _look(self) -> float:
        """Exit if the supervisor has exited. Stop jobs if a lease has expired. Return the seconds until the next check.

        A separate thread calls this, because the main thread may be waiting for the server.
        """
        child = self._child
        child.check_parent()
        child.fence(self._stop_expired_threads)
        return min(LOOK_WITHIN_S, child.next_look_s())

    def _fence(self) -> None:
        if self._runs:
            self._child.fence(self._stop_expired)
            if self._child.abort:  # the watching thread may have noticed it
                self._stop_expired()

    def _fenced(self, ask: Callable[[], Answer]) -> Answer:
        """Call `ask` and return its result. After a slow call, stop jobs whose lease may have expired."""
        asked_at = boot_ns()
        answer = ask()
        if boot_ns() - asked_at > self._child.margin_ns:
            self._fence()
        return answer

    def _stop_expired(self) -> None:
        for run in list(self._runs.values()):
            if self._child.slots.is_expired(run.slot):
                run.stop("lost")

    def _stop_expired_threads(self) -> None:
        for run in list(self._threads.runs.values()):
            if self._child.slots.is_expired(run.slot):
                run.stop("lost")

    def in_fork(self) -> None:
        """In a process that a job forked from this child, make the event loop exit after the job's current step."""
        if self._loop is not None:
            for handle in getattr(self._loop, "_ready", ()):
                handle.cancel()
            self._loop.call_soon(leave, ForkedProcessError())


def _uncancel() -> None:
    current = asyncio.current_task()
    if current is not None:
        current.uncancel()
