"""A child that runs up to `concurrency` jobs at once on its event loop; sync jobs hold the loop up.

Calls to the server are short and made from the loop itself. While the server is away the loop stands still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import NamedTuple, TypeVar

from jobq.client.clock import boot_ns
from jobq.client.waiter import GRACE_S
from jobq.errors import JobAborted, JobqError, UnavailableError
from jobq.jobs.context import Call
from jobq.jobs.forks import ForkedProcessError, leave
from jobq.queue.types import DequeueAhead, Dequeued, Ending, Lease, Message
from jobq.worker import logger
from jobq.worker import shared_state as slots
from jobq.worker.holding import Child, Surroundings, aged
from jobq.worker.job_run import JobRun
from jobq.worker.queue_client import NotReportedError
from jobq.worker.timers import kill_after_s

Answer = TypeVar("Answer")


class Ended(NamedTuple):
    """An attempt that ended; `ending` None: nothing to report, its lock is lost."""

    slot: int
    queue: int
    ending: Ending | None
    at: int  # monotonic_ns


class AsyncChild(Child):
    """Takes as many messages as it has room for and begins them all."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        # More than may be used at once: what can't be reported now keeps its slot.
        self._free = list(range(slots.COUNT))
        self._nparked = 0
        self._running: dict[int, JobRun] = {}
        self._why: dict[int, str] = {}
        self._ended: list[Ended] = []
        # A message with a crash on record, which waits until it can run alone.
        self._alone: tuple[int, int, Call] | None = None
        self._sleeping = False
        self._asleep: list[int] = []
        self._pay_alarm: asyncio.TimerHandle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        # A dequeue behind the wait for a message, and until when what it gives is held.
        self._ahead: DequeueAhead | None = None
        self._ahead_until = 0
        self._sync_slot: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = self._failing = False

    def take_and_run(self) -> None:
        """On an event loop, which goes on where it was if a job stops it."""
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            main = loop.create_task(self._main())
            while not main.done():
                try:
                    loop.run_until_complete(main)
                except BaseException as error:
                    if isinstance(error, RuntimeError) and not main.done() and not loop.is_closed():
                        continue
                    # What runs is cancelled now, and stays charged with the death of this child.
                    self._failing = True
                    raise

    async def _main(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        loop.add_reader(self.around.woken, self._on_signal)
        loop.add_reader(self.around.alive, self.hear)
        watch = loop.create_task(self._watch())
        while not self._over:
            try:
                await self._turn()
            except asyncio.CancelledError:
                # By a job that cancels all tasks of its loop: nobody else does, while this goes on.
                if self._failing:
                    raise
                _stay()
        self._wake_up(())
        self._take_ahead()
        watch.cancel()

    async def _turn(self) -> None:
        """Report, take, and wait until there is something to do."""
        self._changed.clear()
        self._fenced(self._report)
        self._fenced(self._take_ahead)
        if self.owing:
            self._pay_on_time()
        if self.leaving() and not self._held():
            self._over = True
            return
        if self._may_take() and not self._sleeping:
            if self._fenced(self._take):
                await asyncio.sleep(0)
                return
            if self.settings.burst and not self._held() and not self.waits_for_server():
                self._over = True
                return
            self._fenced(self._fall_asleep)
        await self._changed.wait()

    def _pay_on_time(self) -> None:
        self._fenced(self.pay)
        if self.owing and self._pay_alarm is None:
            loop = asyncio.get_running_loop()
            self._pay_alarm = loop.call_later(self.wait_to_pay_s(), self._pay_again)

    def _pay_again(self) -> None:
        self._pay_alarm = None
        self._changed.set()

    def _held(self) -> bool:
        return bool(self._running or self._ended or self._alone)

    def _vacant(self) -> int:
        """How many slots may still be used."""
        used = slots.COUNT - len(self._free) - self._nparked
        return min(len(self._free), self.settings.concurrency - used)

    def _room(self) -> int:
        return self.settings.concurrency - len(self._running)

    def _may_take(self) -> bool:
        crowded = self._vacant() <= 0 or self._alone is not None or self._has_loner()
        return not (crowded or self.quiet or self.leaving())

    def _has_loner(self) -> bool:
        return any(task.get_name() == "alone" for task in self._running.values())

    def _take(self) -> bool:
        """Ask the queues in their turns until one gives something; False once all are empty."""
        if self._running:
            self.look_for_wakes()
        while (index := self.turns.next()) is not None:
            dequeued, deadline = self.dequeue(index, min(self._vacant(), self._left()))
            if self._took(index, dequeued, deadline):
                return True
        return False

    def _left(self) -> int:
        return self.recycling.left(self._room(), self.slots.words[slots.FINISHED])

    def _took(self, index: int, dequeued: Dequeued, deadline: int) -> bool:
        messages = dequeued.messages
        self.found(index, dequeued)
        taken = [(self._free.pop(), message) for message in messages]
        for slot, message in taken:
            self.slots.add(slot, index, message, deadline)
        self.slots.words[slots.SUSPECT] = 0
        for slot, message in taken:
            self._begin(slot, index, message)
        return bool(messages)

    def _begin(self, slot: int, index: int, message: Message) -> None:
        call = self.resolve(slot, index, message)
        self.slots.words[slots.SUSPECT] = 0
        if isinstance(call, Ending):
            self._end(slot, index, call)
        elif message.ncrashes and self._running:
            self._alone = (slot, index, call)
        else:
            self._start(slot, index, call)

    def _start(self, slot: int, index: int, call: Call) -> None:
        name = "alone" if call.message.ncrashes else call.message.mid
        made = JobRun(self._run(slot, index, call), call, name)
        self._running[slot] = made
        # Cancelled before its first step, its coroutine never runs.
        made.add_done_callback(lambda _: self._never_ran(slot, index, call, made))

    def _never_ran(self, slot: int, index: int, call: Call, made: JobRun) -> None:
        if self._running.get(slot) is not made:
            return
        del self._running[slot]
        self._why.pop(slot, None)
        message, ending = call.message, None
        if made.cancelled():
            self.release(index, [Lease(message.mid, message.token)])
        else:
            error = made.exception()
            logger.error("%s %s broke its child's loop", call.job.name, message.mid, exc_info=error)
            ending = Ending(
                mid=message.mid, token=message.token, outcome="crashed", reason=repr(error)
            )
        self._end(slot, index, ending)

    async def _run(self, slot: int, index: int, call: Call) -> None:
        ending: Ending | None = None
        try:
            if not call.job.is_async:
                self._fenced(self._report_unsafe)
            # Only now: while a sync job holds the loop up, what waits behind it may be taken back.
            if not self.slots.start(slot, kill_after_s(call.job)):
                self.release(index, [Lease(call.message.mid, call.message.token)])
            elif call.job.is_async:
                ending = await self.executor.arun(call, lambda: self._told_to_stop(slot))
            else:
                ending = self._run_sync(slot, call)
        except (asyncio.CancelledError, JobAborted) as stopped:
            why = self._why.pop(slot, self.abort)
            logger.warning("%s %s stopped: %s", call.job.name, call.message.mid, why or stopped)
            if why == "hurry":
                self.release(index, [Lease(call.message.mid, call.message.token)])
        if ending is not None:
            plain = ending.outcome == "done" and ending.result is None
            self.slots.states[slot] = slots.ENDED if plain else slots.REPORTING
        self._running.pop(slot, None)
        self._why.pop(slot, None)
        self._end(slot, index, ending)

    def _told_to_stop(self, slot: int) -> bool:
        return slot in self._why or self._failing

    def _run_sync(self, slot: int, call: Call) -> Ending:
        self._sync_slot = slot
        self.timers.arm()
        try:
            self.timers.in_job = True
            return self.executor.run(call, lambda: bool(self.abort))
        finally:
            self.timers.job_over()
            self._sync_slot = None

    def _end(self, slot: int, index: int, ending: Ending | None) -> None:
        self._ended.append(Ended(slot, index, ending, monotonic_ns()))
        self._changed.set()

    def _report(self) -> None:
        """Tell the server what ended, and take more with it where the turn is the same queue's."""
        self._report_all(take=True)
        if self._alone and not self._running:
            alone, self._alone = self._alone, None
            self._start(*alone)
        if not self._running:
            self.settled()

    def _report_all(self, take: bool) -> None:
        ended, self._ended = self._ended, []
        for index in {one.queue for one in ended}:
            self._report_queue(index, [one for one in ended if one.queue == index], take)

    def _report_unsafe(self) -> None:
        """Before a sync job, which may kill this child: endings that nobody else could tell the server."""
        ended = self._ended
        if any(self.slots.states[one.slot] == slots.REPORTING for one in ended):
            try:
                self._report_all(take=False)
            except JobqError:
                # The loop meets it again, and ends this child by it; here it would pass for the job's.
                self._ended = [one for one in ended if self.slots.states[one.slot] != slots.FREE]

    def _report_queue(self, index: int, ended: list[Ended], take: bool) -> None:
        endings = _endings(ended)
        room = 0
        if take and endings and self._may_take() and not self._sleeping and self.stays(index):
            room = min(self._vacant() + len(ended), self._left())
        try:
            dequeued, deadline = self.finish(index, endings, room) if endings else (None, 0)
        except NotReportedError:
            self._nparked += len(ended)
            self.lines[index].when_paid(partial(self._unpark, ended))
            return
        self._free_all(ended)
        if dequeued is not None:
            self._took(index, dequeued, deadline)

    def _report_amid(self) -> None:
        """In a long sync job: as `_report_all`, as far as the server answers soon and the lease bears it."""
        for index in {one.queue for one in self._ended}:
            if self.slots.deadline() - boot_ns() <= self.quick_ns:
                return
            if self.in_trouble(index):
                continue
            ended = [one for one in self._ended if one.queue == index]
            endings, limit = _endings(ended), self.settings.crash_limit
            try:
                if endings:
                    self.heard(index, endings, self.quick[index].finish(endings, crash_limit=limit))
            except JobqError:
                return  # the loop tries again, with all patience
            self._ended = [one for one in self._ended if one.queue != index]
            self._free_all(ended)

    def _unpark(self, ended: list[Ended]) -> None:
        self._nparked -= len(ended)
        self._free_all(ended)

    def _free_all(self, ended: list[Ended]) -> None:
        for one in ended:
            self.slots.states[one.slot] = slots.FREE
            self._free.append(one.slot)
            self.slots.words[slots.FINISHED] += one.ending is not None

    def _fall_asleep(self) -> None:
        if not self._held():
            self.slots.words[slots.STATE] = slots.IDLE
        nap_s = self.nap_s()
        if not self._held():
            limit = min(self._vacant(), self._left())
            self._ahead, self._ahead_until = self.ask_ahead(0, limit, nap_s)
        try:
            self._asleep = self.sleep.begin(
                nap_s, self._ahead and self._ahead.command, self.passed_over()
            )
        except UnavailableError:
            self._wake_up(())
            return
        finally:
            self.note_silence()
        self._sleeping = True
        loop = asyncio.get_running_loop()
        for file in self._asleep:
            loop.add_reader(file, self._wake_up, (file,))
        self._alarm = loop.call_later(nap_s, self._overslept)

    def _overslept(self) -> None:
        for file in self._fenced(self.sleep.cut_short):
            asyncio.get_running_loop().remove_reader(file)
            self._asleep.remove(file)
        self.note_silence()
        self._alarm = asyncio.get_running_loop().call_later(GRACE_S, self._wake_up, ())

    def _wake_up(self, ready: tuple[int, ...]) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        for file in self._asleep:
            asyncio.get_running_loop().remove_reader(file)
        self._asleep, self._sleeping = [], False
        self.sleep.end(ready)
        self.wake()
        self.slots.words[slots.STATE] = slots.WORKING
        self._changed.set()

    def _take_ahead(self) -> None:
        """What the dequeue behind a wait gave, once that is over. Not from a callback: errors must end the child."""
        if self._ahead is None or self._sleeping:
            return
        ahead, self._ahead = self._ahead, None
        dequeued = self.answer(ahead, self._ahead_until)
        if not (self.leaving() or self.quiet):
            self._took(self.turns.next() or 0, dequeued, self._ahead_until)
        else:
            self.slots.words[slots.SUSPECT] = 0
            self.release(0, [Lease(message.mid, message.token) for message in dequeued.messages])

    def _on_signal(self) -> None:
        self.hear()
        self._obey()
        if self._sleeping and (self.quiet or self.leaving()):
            self._wake_up(())
            self.pass_on_wake()
        self._changed.set()

    def _obey(self) -> None:
        hurried = self.slots.words[slots.CONTROL] & slots.HURRY
        for slot in list(self._running):
            if self.slots.lost[slot]:
                self._cancel(slot, "lost")
            elif hurried:
                self._cancel(slot, "hurry")
        if self._alone and hurried:
            (slot, index, call), self._alone = self._alone, None
            self.release(index, [Lease(call.message.mid, call.message.token)])
            self._end(slot, index, None)

    def _cancel(self, slot: int, why: str) -> None:
        if slot not in self._why:
            self._why[slot] = why
            self._running[slot].cancel()

    async def _watch(self) -> None:
        """Look around while jobs run; also the age and memory of this child."""
        while True:
            try:
                await asyncio.sleep(self.next_look_s())
            except asyncio.CancelledError:
                if self._over or self._failing:
                    raise
                _stay()
            self.check_parent()
            self._fence_running()
            if self.leaving():
                self._changed.set()

    def _fence_running(self) -> None:
        if self._running:
            self.fence(boot_ns(), self._stop_all)

    def _fenced(self, ask: Callable[[], Answer]) -> Answer:
        """While the server is silent the loop stands still: no job whose lease is over then may go one step on."""
        asked_at = boot_ns()
        answer = ask()
        if boot_ns() - asked_at > self.margin_ns:
            self._fence_running()
        return answer

    def _stop_all(self) -> None:
        now = boot_ns()
        for slot in list(self._running):
            if now >= self.slots.words[slots.UNTIL + slot]:
                self._cancel(slot, "lost")

    def forked(self) -> None:
        """Where a job forked: of this loop nothing runs there but the end, once the job's step is over."""
        if self._loop is not None:
            for handle in getattr(self._loop, "_ready", ()):
                handle.cancel()
            self._loop.call_soon(leave, ForkedProcessError())

    def look_around(self, now: int) -> float:
        """While a sync job holds the loop up."""
        self.check_parent()
        self.fence(boot_ns(), self._abort_sync)
        if self._ended:
            self.timers.in_job = False  # `told` must not raise halfway through
            try:
                self._report_amid()
            finally:
                self.timers.in_job = True
            self.fence(boot_ns(), self._abort_sync)
            self.told()
        return self.next_look_s()

    def _abort_sync(self) -> None:
        raise JobAborted("its lease could not be renewed in time")

    def told(self) -> None:
        """The supervisor has set something; the loop hears of it too, unless a sync job holds it up."""
        if not self.timers.in_job or self._sync_slot is None:
            return
        if self.slots.lost[self._sync_slot]:
            self.abort = "lost"
            raise JobAborted("its lock was lost, or it was cancelled")
        if self.slots.words[slots.CONTROL] & slots.HURRY:
            self.abort = "hurry"
            raise JobAborted("the worker must leave now")


def _stay() -> None:
    """Take back the cancellation of the task that runs."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _endings(ended: list[Ended]) -> list[Ending]:
    told = [(one.ending, one.at) for one in ended if one.ending is not None]
    return aged([ending for ending, _ in told], [at for _, at in told])
