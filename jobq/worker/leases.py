"""What the supervisor does for messages that its children hold: renews, takes back, enforces."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from functools import partial

from jobq.client.clock import boot_ns
from jobq.config import WorkerSettings
from jobq.queue.queue import Queue
from jobq.queue.types import Lease
from jobq.worker import logger
from jobq.worker import shared_state as slots
from jobq.worker.pool import PoolMember
from jobq.worker.shared_state import HeldMessage, lease_and_margin

PER_CALL = 500

#: Makes a queue's calls; whether they succeeded.
Ask = Callable[[int, Callable[[], object]], bool]


class Leases:
    """`queues` in the order in which children number them."""

    def __init__(self, settings: WorkerSettings, queues: list[Queue]) -> None:
        self._settings = settings
        self._queues = queues
        self._lease_ns, self._margin_ns = lease_and_margin(settings.lease_ms)
        # Taken from children, not yet released: whether a release that failed took effect is unknown.
        self._owed: list[HeldMessage] = []
        self._slow_ns = 2 * settings.prefetch_ms * 1_000_000

    def renew(self, members: Iterable[PoolMember], ask: Ask) -> bool:
        """One call per queue and 500 locks, confirmed queue by queue; whether all were.

        ask: makes the calls of one queue, and says whether they succeeded.
        """
        if self._owed:
            self.pay(ask)
        held = {member: self._snapshot(member) for member in members if member.pid}
        by_queue: dict[int, list[tuple[PoolMember, HeldMessage]]] = {}
        for member, holds in held.items():
            for one in holds or ():
                by_queue.setdefault(one.queue, []).append((member, one))
        outcomes = [
            ask(index, partial(self._renew_queue, index, mine)) for index, mine in by_queue.items()
        ]
        return all(outcomes)

    def _renew_queue(self, index: int, mine: list[tuple[PoolMember, HeldMessage]]) -> None:
        asked_at = boot_ns()
        lost: list[tuple[PoolMember, HeldMessage]] = []
        for start in range(0, len(mine), PER_CALL):
            lost += self._extend(index, mine[start : start + PER_CALL])
        for member in dict.fromkeys(member for member, _ in mine):
            holds = [held for other, held in mine if other is member]
            gone = [held for other, held in lost if other is member]
            self._confirm(member, asked_at, holds, gone)

    def take_back(self, member: PoolMember, ask: Ask) -> None:
        """Release what waits behind a job that turned out slow."""
        memory = member.slots
        if slots.RUNNING not in bytes(memory.states) or slots.HELD not in bytes(memory.states):
            return
        if boot_ns() - memory.words[slots.STARTED_AT] < self._slow_ns:
            return
        if not memory.lock.acquire(block=False):
            return
        try:
            taken = [held for held in memory.held() if held.state == slots.HELD]
            for one in taken:
                memory.states[one.slot] = slots.TAKEN
        finally:
            memory.lock.release()
        self._owed += taken
        self.pay(ask)

    def enforce(self, member: PoolMember) -> None:
        """Kill for a hard timeout, or for a lease that ended while the job goes on."""
        if member.killed_for:
            return
        now = boot_ns()
        overdue = member.slots.overdue(now)
        if overdue:
            member.hard_slots = set(overdue)
            logger.error("child %d is killed: a job ran past its hard timeout", member.pid)
            member.kill("hard timeout")
            return
        running = slots.RUNNING in bytes(member.slots.states)
        if not running or now < member.slots.deadline() + self._margin_ns:
            member.late_since = 0
        elif not member.late_since:
            # First seen now: after a pause of the whole worker the child gets its chance to stop itself.
            member.late_since = now
        elif now - member.late_since > 2 * self._margin_ns:
            logger.error("child %d is killed: its leases ended and its job goes on", member.pid)
            member.kill("lease")

    def _snapshot(self, member: PoolMember) -> list[HeldMessage] | None:
        """None: the child is in the middle of a change, or was stopped there."""
        if not member.slots.lock.acquire(timeout=0.005):
            return None
        try:
            return member.slots.held()
        finally:
            member.slots.lock.release()

    def _extend(
        self, index: int, mine: list[tuple[PoolMember, HeldMessage]]
    ) -> list[tuple[PoolMember, HeldMessage]]:
        holds = [Lease(held.mid, held.token) for _, held in mine]
        kept = self._queues[index].extend(holds, self._settings.lease_ms)
        return [one for one, ok in zip(mine, kept, strict=True) if not ok]

    def _confirm(
        self, member: PoolMember, asked_at: int, holds: list[HeldMessage], lost: list[HeldMessage]
    ) -> None:
        """Note what was renewed, of what is still held: the child may have taken others meanwhile."""
        memory = member.slots
        if not memory.lock.acquire(timeout=0.005):
            return
        try:
            until = asked_at + self._lease_ns - self._margin_ns
            # Tokens are one queue's: those of two queues may be alike.
            still = {(held.slot, held.queue, held.token): held for held in memory.held()}
            told = [one for one in lost if (one.slot, one.queue, one.token) in still]
            for one in holds:
                if (one.slot, one.queue, one.token) in still and one not in told:
                    memory.words[slots.UNTIL + one.slot] = until
            for one in told:
                memory.lost[one.slot] = 1
        finally:
            memory.lock.release()
        for one in told:
            if still[one.slot, one.queue, one.token].state == slots.RUNNING:
                logger.warning("%s: its lock is lost or it was cancelled; stopping it", one.mid)
        if told:
            member.send(signal.SIGUSR2)

    def pay(self, ask: Ask) -> None:
        """Release what was taken from children; again with the next renewal where that fails."""
        for index in {one.queue for one in self._owed}:
            holds = [Lease(one.mid, one.token) for one in self._owed if one.queue == index]
            if ask(index, partial(self._release, index, holds)):
                self._owed = [one for one in self._owed if one.queue != index]

    def _release(self, index: int, holds: list[Lease]) -> None:
        for start in range(0, len(holds), PER_CALL):
            self._queues[index].release(holds[start : start + PER_CALL])
