"""Runs jobs one at a time, and fetches messages in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from time import monotonic

from jobq.errors import JobAborted
from jobq.jobs.context import Call
from jobq.queue.types import Ending, Message
from jobq.worker.batches import Gathering, Group, batch_sizes
from jobq.worker.child import Child, Next, Runner
from jobq.worker.scheduling import BatchSize
from jobq.worker.shared_state import Control
from jobq.worker.timers import kill_after_s

#: The next batch is fetched while the last jobs of a batch run, if the batch has at least MIN_BATCH jobs, and they take
#: at most SHORT_S each.
MIN_BATCH, SHORT_S = 4, 0.01
#: About how long a fetch takes.
FETCH_S = 0.002


class SyncRunner(Runner):
    """Runs one job at a time. It fetches as many messages as it can run in a short time."""

    overlaps = False

    def __init__(self, child: Child) -> None:
        self._child = child
        settings = child.settings
        # A burst ends when the queues are empty, so its batches don't wait for more calls.
        self._gathering = Gathering(child.slots, not settings.burst, child.queues.renew)
        queues = [name for name, _ in settings.queues]
        self._sizes = [
            BatchSize(settings.prefetch, settings.prefetch_s, number)
            for number in batch_sizes(child.executor.registry, queues)
        ]

    @property
    def is_running(self) -> bool:
        """Return whether messages wait for their batch to fill. The loop checks this while no job runs."""
        return bool(self._gathering)

    @property
    def nuncounted(self) -> int:
        return 0

    def drive(self) -> None:
        child = self._child
        while (following := child.turn()) is not Next.END:
            if following is Next.SLEEP:
                child.sleep(self._gathering.left_s())
            elif following is Next.WAIT:
                child.rest(self._gathering.left_s())

    def room(self, index: int, freed: int = 0) -> int:
        """Return how many messages to fetch, given the free slots and how long messages run."""
        size = self._sizes[index].size
        if self._gathering:
            size = max(1, size - self._gathering.largest(index))
        return min(size, self._child.slots.nfree + freed)

    def begin(self, index: int, slots: Sequence[int], messages: Sequence[Message]) -> None:
        """Run these messages. If the runner must stop early, give the remaining messages back to their queue."""
        if self._sizes[index].together:
            self._begin_batches(index, slots, messages)
            return
        child, began, nran = self._child, monotonic(), 0
        send_at = len(messages) - self._nlast(index, len(messages))
        for slot, message in zip(slots, messages, strict=True):
            if child.draining:
                break
            if nran == send_at:
                child.send_ahead(index)
            call = child.resolve(slot, index, message)
            limit_s = kill_after_s(call.job) if isinstance(call, Call) else None
            if not child.slots.start(slot, limit_s):
                if child.slots.is_lost(slot):
                    continue
                break
            nran += 1
            ending = self._run(index, slot, call) if isinstance(call, Call) else call
            if ending is None:
                if child.draining or child.slots.is_expired(slot):
                    break
                continue
            waits = child.queues.ended(index, slot, ending) or nran == len(messages)
            if not (waits or child.report()):
                break
        self._ran(index, nran, began, slots if nran < len(slots) else ())

    def _ran(self, index: int, nran: int, began: float, unstarted: Sequence[int]) -> None:
        """Record a run of `nran` messages. Give unstarted messages back to the queue."""
        child = self._child
        child.context.signals.after_batch()
        child.slots.count_finished(nran)
        self._sizes[index].ran(max(1, nran), monotonic() - began)
        if unstarted:
            child.report()
            child.queues.give_back(index, unstarted)

    def _begin_batches(self, index: int, slots: Sequence[int], messages: Sequence[Message]) -> None:
        """Run the messages of a queue that has a batch job: calls of this job in batches, other messages one by one."""
        child, began, nran = self._child, monotonic(), 0
        resolved = (
            (slot, child.resolve(slot, index, message))
            for slot, message in zip(slots, messages, strict=True)
        )
        left = set(slots)
        for group in self._gathering.groups(index, resolved):
            left.update(slot for slot, _ in group)
            if child.draining:
                break
            started = self._run_group(index, group)
            nran += len(started)
            left.difference_update(started)
            if child.queues.has_unsafe_endings() and not child.report():
                break
        self._ran(index, nran, began, sorted(left - self._gathering.slots(index)))

    def _run_group(self, index: int, group: Group) -> Sequence[int]:
        """Run a batch or a single message; return the slots of started messages."""
        child, first = self._child, group[0][1]
        limit_s = kill_after_s(first.job) if isinstance(first, Call) else None
        started = [(slot, call) for slot, call in group if child.slots.start(slot, limit_s)]
        calls = {slot: call for slot, call in started if isinstance(call, Call)}
        if calls and next(iter(calls.values())).job.settings.batch is not None:
            self._run_calls(index, calls)
            return list(calls)
        for slot, call in started:
            ending = self._run(index, slot, call) if isinstance(call, Call) else call
            if ending is not None:
                child.queues.ended(index, slot, ending)
        return [slot for slot, _ in started]

    def _run_calls(self, index: int, calls: Mapping[int, Call]) -> None:
        child = self._child
        try:
            child.run_calls(index, list(calls), list(calls.values()))
        except JobAborted as aborted:
            why = child.abort or aborted
            for slot, call in calls.items():
                if child.slots.is_running(slot):
                    child.stopped(index, slot, call, why)
            child.all_stopped()

    def _nlast(self, index: int, count: int) -> int:
        """Return how many of `count` jobs to run while the next messages are fetched; 0 if jobs are long.

        Also return 0 if jobs are so short that too many would finish before the reply: fetching fewer messages at a
        time would cost more than waiting.
        """
        size = self._sizes[index]
        if count < MIN_BATCH or size.each_s > SHORT_S:
            return 0
        nlast = 1 + int(FETCH_S / size.each_s)
        return nlast if nlast <= count // 4 else 0

    def sent(self) -> None:
        """Do nothing, because this runner never sends a report while jobs run."""

    def _run(self, index: int, slot: int, call: Call) -> Ending | None:
        """Run a started message. Return its outcome; None if the job was stopped, or if it is a batch job."""
        child = self._child
        if call.job.settings.batch is not None:
            # The call was enqueued to a queue that isn't its job's. This queue's next calls run together.
            self._sizes[index].together = call.job.settings.batch
            self._run_calls(index, {slot: call})
            return None
        try:
            return child.run_sync(slot, call)
        except JobAborted as aborted:
            child.stopped(index, slot, call, child.abort or aborted)
            child.all_stopped()
            return None

    def reported(self) -> None:
        """Run batches whose linger time has passed.

        If this child must not fetch, give all waiting calls back to their queues.
        """
        child = self._child
        if not self._gathering:
            return
        if child.leaving() or child.slots.asks(Control.QUIET):
            for index, slot in self._gathering.drop():
                child.queues.give_back(index, (slot,))
            return
        for index, group in self._gathering.due():
            started = self._run_group(index, group)
            child.slots.count_finished(len(started))
            unstarted = [slot for slot, _ in group if slot not in started]
            if unstarted:
                child.queues.give_back(index, unstarted)
            child.report_unsafe()

    def soft_timeout(self, seconds: float) -> AbstractContextManager[None]:
        """Return a context in which JobTimeout is raised after this many seconds, by a timer's signal."""
        return self._child.timers.soft_timeout(seconds)

    def in_fork(self) -> None:
        """Do nothing, because the executor already ends processes that a job forks."""
