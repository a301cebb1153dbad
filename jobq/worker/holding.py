"""What sync and async children have in common: their queues, their slots, and what the supervisor says."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic_ns
from typing import NamedTuple

from msgspec import structs

from jobq.config import ServerSettings, WorkerSettings
from jobq.engine.ahead import Ahead
from jobq.engine.caller import Caller
from jobq.engine.connection import Client, connect
from jobq.engine.message import Dequeued, Ending, Finished, Hold, Message
from jobq.engine.queue import Queue
from jobq.errors import Full, JobqError, Unavailable
from jobq.jobs.absent import UnknownJobs
from jobq.jobs.call import Call
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry
from jobq.jobs.seal import seal_of
from jobq.worker import exits, slots
from jobq.worker.clock import boot_ns
from jobq.worker.idle import Sleep
from jobq.worker.log import logger
from jobq.worker.prefetch import Prefetch
from jobq.worker.recycle import Recycling
from jobq.worker.slots import Slots
from jobq.worker.spent import Spent
from jobq.worker.timers import Timers
from jobq.worker.turns import Turns

#: A child has nothing better to do than to wait for its server.
FOR_EVER_S = 1e9
QUICK_S = 0.5


class Surroundings(NamedTuple):
    """What a child is born with."""

    settings: WorkerSettings
    client: Client
    registry: Registry
    slots: Slots
    parent: int
    alive: int  # readable once the supervisor is gone
    woken: int  # readable after any signal


class Child:
    """One process of the pool, after its birth."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.settings, self.slots = around.settings, around.slots
        server = replace(around.client.settings, url=around.client.url)
        patient = connect(settings=replace(server, patience_s=FOR_EVER_S))
        # A child that is to leave waits for a lost server only to report what it ran.
        patient.enough = lambda: self._told_to_leave() and not self._reporting
        hasty = self._hasty(server)
        quick = connect(settings=replace(server, patience_s=QUICK_S))
        names = [name for name, _ in self.settings.queues]
        self.queues = [Queue(name, patient) for name in names]
        self.quick = [Queue(name, hasty) for name in names]
        self.turns = Turns([weight for _, weight in self.settings.queues], self.settings.strict)
        self.prefetch = [Prefetch(self.settings.prefetch, self.settings.prefetch_ms) for _ in names]
        self.caller = Caller(self._arrived)
        self.slots.caller = self.caller.id
        self.sleep = Sleep(patient, [queue.wake_key for queue in self.queues])
        self.recycling = Recycling(self.settings)
        self.timers = Timers(2 * self.settings.prefetch_ms / 1000, self.look_around)
        # Not those of `quick`: an alarm may come in the middle of a job's report of its progress.
        self.executor = self._executor({name: Queue(name, quick) for name in names})
        seal = seal_of(around.client)
        self.spent = None if seal is None else Spent(hasty, seal)
        self.lease_ns, self.margin_ns = lease_and_margin(self.settings.lease_ms)
        self.draining = self._reporting = False
        self.abort = ""
        self._aborted_at = 0

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
            self.pass_on_wake()
        except (Unavailable, Full) as error:
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
        return self.recycling.left(self.prefetch[index].size, self.slots.words[slots.FINISHED])

    def forked(self) -> None:
        """Called in a process that a job forked from this one."""

    def dequeue(self, index: int, limit: int) -> tuple[Dequeued, int]:
        """Ask one queue; what it gave, and until when that is surely held."""
        self.executor.home.only()
        asked_at = boot_ns()
        settings = self.settings
        dequeued = self.queues[index].dequeue(
            limit, lease_ms=settings.lease_ms, crash_limit=settings.crash_limit, caller=self.caller
        )
        self._arrivals(index, dequeued)
        return dequeued, asked_at + self.lease_ns - self.margin_ns

    def finish(
        self, index: int, endings: Sequence[Ending], dequeue: int = 0
    ) -> tuple[Dequeued | None, int]:
        """End attempts and, if asked, dequeue; as `dequeue`."""
        self.executor.home.only()
        asked_at = boot_ns()
        settings = self.settings
        self._reporting = True
        try:
            finished = self.queues[index].finish(
                endings, dequeue=dequeue, lease_ms=settings.lease_ms,
                crash_limit=settings.crash_limit, caller=self.caller,
            )  # fmt: skip
        finally:
            self._reporting = False
        self.heard(index, endings, finished)
        self._arrivals(index, finished.dequeued)
        return finished.dequeued, asked_at + self.lease_ns - self.margin_ns

    def heard(self, index: int, endings: Sequence[Ending], finished: Finished) -> None:
        """What the server said of endings."""
        tell_refused(endings, finished)
        if self.spent is not None:
            self.spent.note(self.queues[index].name, endings, finished.replies)

    def _arrivals(self, index: int, dequeued: Dequeued | None) -> None:
        if self.spent is not None and dequeued is not None and dequeued.messages:
            self.spent.look(self.queues[index].name, dequeued.messages)

    def release(self, index: int, holds: Sequence[Hold]) -> None:
        """Give back what wasn't started."""
        self.executor.home.only()
        if holds:
            self.queues[index].release(holds)

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
            os._exit(exits.FENCED)

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
            os._exit(exits.FENCED)

    def ask_ahead(self, index: int, limit: int, nap_s: float) -> tuple[Ahead | None, int]:
        """A dequeue to send behind the wait for a message, and until when what it gives is surely held.

        Only where nobody else's turn may come first, and for waits that are short beside a lease, since it
        counts from when it was sent.
        """
        settings = self.settings
        if len(self.queues) > 1 or nap_s * 3000 > settings.lease_ms:
            return None, 0
        asked_at = boot_ns()
        ahead = self.queues[index].dequeue_ahead(
            limit, lease_ms=settings.lease_ms, crash_limit=settings.crash_limit, caller=self.caller
        )
        return ahead, asked_at + self.lease_ns - self.margin_ns

    def answer(self, ahead: Ahead) -> Dequeued:
        """What the dequeue behind the wait gave; asked for again where that isn't known."""
        reply, self.sleep.reply = self.sleep.reply, None
        dequeued = ahead.again() if reply is None else ahead.read(reply)
        self._arrivals(0, dequeued)
        return dequeued

    def rest(self, seconds: float | None, ahead: Ahead | None = None) -> None:
        """Sleep until woken by a message (None: not by one), a signal or the supervisor's end."""
        around = self.around
        self.slots.words[slots.STATE] = slots.IDLE
        if seconds is None:
            select.select([around.alive, around.woken], [], [])
        else:
            behind = ahead.command if ahead is not None else None
            self.sleep.wait(seconds, (around.alive, around.woken), behind)
        self.hear()
        self.slots.words[slots.STATE] = slots.WORKING

    def hear(self) -> None:
        """Empty the pipe that signals fill."""
        alive, woken = self.around.alive, self.around.woken
        readable, _, _ = select.select([alive, woken], [], [], 0)
        if alive in readable:
            os._exit(exits.FENCED)
        if woken in readable:
            os.read(woken, 4096)

    def pass_on_wake(self) -> None:
        """A marker may have come as this child stopped waiting: have the engine push it again."""
        try:
            for queue in self.quick:
                queue.collect(1, crash_limit=self.settings.crash_limit)
        except JobqError as error:
            logger.warning("left without a word to the server: %s", error)


def lease_and_margin(lease_ms: int) -> tuple[int, int]:
    """In ns: a lease, and how long before its end a child must have stopped."""
    return lease_ms * 1_000_000, min(lease_ms * 100_000, 500_000_000)


def aged(endings: list[Ending], ended_at: list[int]) -> list[Ending]:
    """With how long ago each run ended (monotonic_ns, the first one first), where that is a millisecond or more."""
    now = monotonic_ns()
    if not endings or now - ended_at[0] < 1_000_000:
        return endings
    return [
        structs.replace(ending, age_ms=(now - at) // 1_000_000)
        for ending, at in zip(endings, ended_at, strict=True)
    ]


def tell_refused(endings: Sequence[Ending], finished: Finished) -> None:
    """Log the endings that came too late."""
    if "stale" not in finished.replies:
        return
    for ending, reply in zip(endings, finished.replies, strict=True):
        if reply == "stale":
            logger.warning(
                "%s: outcome %r refused, its lock was lost or it was cancelled",
                ending.mid, ending.outcome,
            )  # fmt: skip
