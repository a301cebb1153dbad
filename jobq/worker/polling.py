"""Decides which queue a child queries next, and how long it waits when all queues are empty.

With a single queue, the server determines the wait. With several queues, an empty queue isn't queried until its wake
marker arrives. The supervisor handles messages that become due later.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from jobq.client.connection import Client
from jobq.client.names import base_of
from jobq.client.waiter import WakeWaiter
from jobq.config import WorkerSettings
from jobq.errors import JobqError
from jobq.queue.queue import Queue
from jobq.queue.types import Dequeued
from jobq.worker import logger
from jobq.worker.queue_health import AWAY, QueueHealth
from jobq.worker.queue_line import same_node
from jobq.worker.scheduling import QueueTurns

#: With several queues: the maximum wait for markers. The child itself asks again for messages due within NEAR_MS.
MAX_NAP_S, NEAR_MS = 30.0, 2_000
#: How often a busy child looks for markers, the share of its time that this may take on a Cluster, and how often it
#: asks all queues if it can't look.
LOOK_EVERY_S, LOOK_SHARE, ASK_ALL_EVERY_S = 0.05, 0.1, 2.0


class Polling:
    """Decides which of one child's queues to query, and how long to wait for messages."""

    def __init__(
        self,
        settings: WorkerSettings,
        client: Client,
        queues: Sequence[Queue],
        health: QueueHealth,
    ) -> None:
        self._settings, self._queues, self._health = settings, queues, health
        served = {name for name, _ in settings.queues}
        bases = [base if (base := base_of(name)) in served else name for name, _ in settings.queues]
        self._turns = QueueTurns([each[1] for each in settings.queues], settings.strict, bases)
        self.waiter = WakeWaiter(client, [queue.wake_key for queue in queues])
        # Whether queues sleep until their marker comes. A burst asks each queue in turn until all are empty.
        self._many = len(queues) > 1 and not settings.burst
        self._nap_ms: int | None = None
        self._ask_at: dict[int, float] = {}
        # Queues whose marker this child took and that it hasn't asked since.
        self._unasked: set[int] = set()
        for index in self._health.retired():
            self._turns.sleeps(index)
        # Queues that had messages, or whose marker came, since they were last found empty.
        self._active: set[int] = set()
        self._looked_at, self._look_from = 0.0, 0

    def next(self) -> int | None:
        """Return which queue to query now, or None if the last query of each queue returned nothing."""
        return self._turns.next()

    def record(self, index: int, dequeued: Dequeued) -> None:
        """Record the queue's reply to a dequeue call."""
        something = bool(dequeued.messages) or dequeued.poll_after_ms == 0
        if something or dequeued.next_due_ms or index in self._active or not self._many:
            self._health.touch(index)
        if not self._many:
            self._turns.record(index, something)
            if not something:
                self._nap_ms = min(self._nap_ms or dequeued.poll_after_ms, dequeued.poll_after_ms)
            return
        self._unasked.discard(index)
        if something:
            self._active.add(index)
            self._turns.record(index, True)
            if self._settings.strict:
                self.waiter.by_priority()
            return
        self._active.discard(index)
        self._turns.sleeps(index)
        if 0 < dequeued.next_due_ms <= NEAR_MS or self.in_trouble(index):
            self._ask_at[index] = monotonic() + min(dequeued.next_due_ms, NEAR_MS) / 1000

    def ask_all(self) -> None:
        """Query empty queues again, because this child may have enqueued messages."""
        self._turns.record(0, True)

    def nap_s(self) -> float:
        """Return how many seconds to wait for a wake marker."""
        if not self._many:
            nap_s, self._nap_ms = (self._nap_ms or 1) / 1000, None
            return nap_s
        self.skipped()  # notes when to ask them again
        # On a Cluster each queue's wait is a command of its own.
        longest_s = max(MAX_NAP_S, float(len(self._queues)))
        soonest = min(self._ask_at.values(), default=0.0)
        return min(longest_s, max(0.001, soonest - monotonic())) if soonest else longest_s

    def wake(self) -> None:
        """Resume queries to queues whose wake marker has arrived or whose next query is due."""
        if not self._many:
            return
        for index in self.waiter.woken:
            self._unasked.add(index)
            self._active.add(index)
            self._turns.wakes(index)
        self.waiter.woken.clear()
        if self._ask_at:
            now = monotonic()
            for index in [index for index, at in self._ask_at.items() if at <= now]:
                del self._ask_at[index]
                self._turns.wakes(index)

    def look_for_wakes(self) -> None:
        """Check, between jobs, whether wake markers of empty queues have arrived. Idle children get markers first."""
        if not self._many or not self._turns.asleep:
            return
        now = monotonic()
        passed_s = now - self._looked_at
        if passed_s < LOOK_EVERY_S and not self._settings.strict:
            return
        self._looked_at = now
        retired = self._health.retired()
        asleep = [
            index
            for index in self._turns.asleep
            if index not in retired and not self.in_trouble(index)
        ]
        if asleep:
            first = self._look_from % len(asleep)
            try:
                self._look_from += self.waiter.look(
                    asleep if self._settings.strict else asleep[first:] + asleep[:first],
                    passed_s * LOOK_SHARE,
                )
            except JobqError:
                # A marker is broken, or this user isn't allowed to read it: asking each queue shows which.
                self._looked_at = now + ASK_ALL_EVERY_S
                for index in asleep:
                    self._turns.wakes(index)
        self.wake()

    def stays(self, index: int) -> bool:
        """Return whether the next turn belongs to this queue. If so, calling this method uses up that turn."""
        self.look_for_wakes()
        return self._turns.stays(index)

    def in_trouble(self, index: int) -> bool:
        """Return whether this queue is currently unavailable."""
        return self._health.any_trouble and bool(self._health.state(index))

    def waits_for_server(self) -> bool:
        """Return whether any queue is on an unreachable server."""
        return any(self._health.state(index) == AWAY for index in range(len(self._queues)))

    def skipped(self) -> frozenset[int]:
        """Return the queues for which a child shouldn't wait: drained partitions and unavailable queues.

        Unavailable queues are queried again after a while.
        """
        retired = self._health.retired()
        if not self._health.any_trouble:
            return retired
        troubled = frozenset(i for i in range(len(self._queues)) if self._health.state(i))
        for index in troubled if self._many else ():
            self._ask_at.setdefault(index, monotonic() + ASK_ALL_EVERY_S)
        return troubled | retired

    def note_silence(self) -> None:
        """On a Cluster, mark queues as unavailable if their node didn't answer a blocking command."""
        for index, asked_at in self.waiter.silent:
            if self._queues[index].client.is_cluster:
                why = "no answer to a blocking wait"
                self._health.failed(same_node(self._queues, index), AWAY, why, asked_at)
        self.waiter.silent.clear()

    def return_wakes(self, queues: Sequence[Queue]) -> None:
        """Make the server restore wake markers that this child may have taken but not used. Call this before exiting.

        `queues` are the child's queues on a client with short timeouts.
        """
        taken = self._unasked.union(self.waiter.woken) if self._many else range(len(queues))
        for index in taken:
            if self.in_trouble(index):
                continue
            queue = queues[index]
            try:
                queue.admin.collect(1, crash_limit=self._settings.crash_limit)
            except JobqError as error:
                logger.warning("the child exits without an answer from the server: %s", error)
                if not queue.client.is_cluster:
                    return
