"""A child that runs one job at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import monotonic, monotonic_ns

from jobq.client.clock import boot_ns
from jobq.errors import JobAborted, JobqError
from jobq.jobs.context import Call
from jobq.queue.types import Dequeued, Ending, Lease, Message
from jobq.worker import logger
from jobq.worker import shared_state as slots
from jobq.worker.holding import Child, Surroundings, aged
from jobq.worker.queue_client import NotReportedError
from jobq.worker.timers import kill_after_s


class SyncChild(Child):
    """Takes a batch, runs it, ends it with the next dequeue in the same round trip."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._index = 0
        self._running: int | None = None
        # Endings of this batch that the server hasn't heard of, and when each run ended.
        self._pending: list[Ending] = []
        self._ended_at: list[int] = []
        # Whether the queue of this batch can't be told how it ended.
        self._unheard = False

    def take_and_run(self) -> None:
        """One batch after another."""
        while not self.leaving():
            if self.quiet:
                self._rest_quietly()
                continue
            index = self.turns.next()
            if index is not None:
                self._work(index, *self.dequeue(index, self.batch_size(index)))
            elif self.settings.burst and not self.waits_for_server():
                break
            else:
                self._sleep()

    def _rest_quietly(self) -> None:
        self.pay()
        self.rest(self.wait_to_pay_s() if self.owing else None, woken=False)

    def _sleep(self) -> None:
        nap_s = self.nap_s()
        ahead, deadline = self.ask_ahead(0, self.batch_size(0), nap_s)
        self.rest(nap_s, ahead)
        if ahead is None:
            return
        index = self.turns.next() or 0
        dequeued = self.answer(ahead, deadline)
        if not (self.leaving() or self.quiet):
            self._work(index, dequeued, deadline)
        elif self._took(index, dequeued, deadline):
            self._end_batch(index)

    def _work(self, index: int, dequeued: Dequeued, deadline: int) -> None:
        while self._took(index, dequeued, deadline):
            self._run_batch(index, dequeued.messages)
            following, deadline = self._end_batch(index)
            if following is None:
                return
            dequeued = following

    def _took(self, index: int, dequeued: Dequeued, deadline: int) -> bool:
        messages = dequeued.messages
        self.slots.publish(index, messages, deadline)
        self.found(index, dequeued)
        return bool(messages)

    def _run_batch(self, index: int, messages: Sequence[Message]) -> None:
        self._index = index
        began, ran = monotonic(), 0
        for slot, message in enumerate(messages):
            if self.draining or not self._run_one(slot, message):
                break
            ran += 1
        self.slots.words[slots.FINISHED] += ran
        self.prefetch[index].ran(max(1, ran), monotonic() - began)

    def _run_one(self, slot: int, message: Message) -> bool:
        """Run a message to its outcome; whether the batch goes on."""
        call = self.resolve(slot, self._index, message)
        limit = kill_after_s(call.job) if isinstance(call, Call) else None
        if not self.slots.start(slot, limit):
            return bool(self.slots.lost[slot])
        ending = self._outcome(slot, call) if isinstance(call, Call) else call
        if ending is None:
            return not self.draining and boot_ns() < self.slots.words[slots.UNTIL + slot]
        self._pending.append(ending)
        self._ended_at.append(monotonic_ns())
        if ending.outcome == "done" and ending.result is None:
            self.slots.states[slot] = slots.ENDED
        else:
            # Until the server knows, this isn't ended: a death here must count neither as done nor as a crash.
            self.slots.states[slot] = slots.REPORTING
            try:
                self.finish(self._index, self._take_pending())
            except NotReportedError:
                self._unheard = True
                return False
            self.slots.states[slot] = slots.FREE
        return True

    def _outcome(self, slot: int, call: Call) -> Ending | None:
        """None: it was stopped, and its lock is lost or has been given back."""
        timers = self.timers
        self._running, self.abort = slot, ""
        timers.arm()
        try:
            timers.in_job = True
            if call.job.is_async:
                return self._outcome_async(call)
            return self.executor.run(call, self._told_to_stop)
        except JobAborted as aborted:
            timers.in_job = False
            logger.warning("%s %s stopped: %s", call.job.name, call.message.mid, aborted)
            if self.abort == "hurry":
                self.release(self._index, [Lease(call.message.mid, call.message.token)])
            self.slots.states[slot] = slots.FREE
            self.settled()
            return None
        finally:
            timers.job_over()
            self._running = None

    def _told_to_stop(self) -> bool:
        return bool(self.abort)

    def _outcome_async(self, call: Call) -> Ending:
        """A job registered only after this child had begun as a sync one."""
        import asyncio

        return asyncio.run(self.executor.arun(call, self._told_to_stop))

    def _end_batch(self, index: int) -> tuple[Dequeued | None, int]:
        if not (self._unheard or self._unstarted() or self.leaving() or self.quiet) and self.stays(
            index
        ):
            try:
                return self.finish(index, self._take_pending(), self.batch_size(index))
            except NotReportedError:
                self._unheard = True
        if self._pending:
            try:
                self.finish(index, self._take_pending())
            except NotReportedError:
                self._unheard = True
        with self.slots.lock:
            unstarted = self._unstarted()
            for held in unstarted:
                self.slots.states[held.slot] = slots.TAKEN
        told = self.release(index, [Lease(held.mid, held.token) for held in unstarted])
        if self._unheard or not told:
            # It stays in the shared memory, so that leases are renewed and a death is cleared up after.
            self._unheard = False
            self.lines[index].when_paid(partial(self.slots.unpark, self.slots.park()))
        self.slots.publish(index, (), 0)
        return None, 0

    def _unstarted(self) -> list[slots.HeldMessage]:
        if slots.HELD not in bytes(self.slots.states):
            return []
        return [held for held in self.slots.held() if held.state == slots.HELD]

    def _take_pending(self) -> list[Ending]:
        endings, self._pending = self._pending, []
        ended_at, self._ended_at = self._ended_at, []
        return aged(endings, ended_at)

    def look_around(self, now: int) -> float:
        """In a long job: watch supervisor and lease, and report what ended before it if there is time for it."""
        self.check_parent()
        self.fence(boot_ns(), self._stop)
        if self.slots.deadline() - boot_ns() > self.quick_ns:
            self._report_ended()
        return self.next_look_s()

    def _report_ended(self) -> None:
        endings, ended_at = list(self._pending), list(self._ended_at)
        if not endings or self.in_trouble(self._index):
            return
        try:
            finished = self.quick[self._index].finish(
                aged(endings, ended_at), crash_limit=self.settings.crash_limit
            )
        except JobqError:
            return  # the end of the batch tries again, with all patience
        self.heard(self._index, endings, finished)
        del self._pending[: len(endings)], self._ended_at[: len(endings)]
        for slot, state in enumerate(bytes(self.slots.states)):
            if state == slots.ENDED:
                self.slots.states[slot] = slots.FREE

    def _stop(self) -> None:
        raise JobAborted("its lease could not be renewed in time")

    def told(self) -> None:
        """The supervisor has set something."""
        control = self.slots.words[slots.CONTROL]
        self.draining = self.draining or bool(control & (slots.DRAIN | slots.HURRY))
        if not self.timers.in_job or self._running is None:
            return
        if self.slots.lost[self._running]:
            self.abort = "lost"
            raise JobAborted("its lock was lost, or it was cancelled")
        if control & slots.HURRY:
            self.abort = "hurry"
            raise JobAborted("the worker must leave now")
