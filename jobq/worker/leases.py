"""Renews the leases of children's messages in the supervisor, takes messages back, and enforces timeouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from jobq.client.clock import boot_ns
from jobq.config import WorkerSettings
from jobq.errors import JobqError
from jobq.queue.queue import Queue
from jobq.queue.types import Lease
from jobq.worker import logger
from jobq.worker.pool import PoolMember
from jobq.worker.shared_state import HeldMessage, SlotState, lease_and_margin, lease_deadline

PER_CALL = 500
#: A timer that is this late has probably been stopped.
LATE_NS = 50_000_000

#: Makes the calls of one queue; returns whether they succeeded.
Ask = Callable[[int, Callable[[], object]], bool]


class Leases:
    """Renews the leases of all children's messages. Queues have the same order as in the children.

    `on_lost` is called with the number of leases that were lost.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        queues: list[Queue],
        on_lost: Callable[[int], object] | None = None,
    ) -> None:
        self._settings = settings
        self._queues = queues
        self._margin_ns = lease_and_margin(settings.lease_s)[1]
        # Messages taken from children and not yet released. If a release failed, it may have taken effect.
        self._taken: list[HeldMessage] = []
        # Dequeues with unread replies: queue, caller to close, and the tokens of the child's messages.
        self._claimed: list[tuple[int, str, frozenset[str]]] = []
        self._slow_ns = round(2 * settings.prefetch_s * 1e9)
        self._on_lost = on_lost

    def renew(self, members: Iterable[PoolMember], ask: Ask) -> bool:
        """Renew all leases. One call renews up to 500 locks of a queue.

        Return whether the server confirmed every renewal.
        """
        if self._taken or self._claimed:
            self.release_taken(ask)
        by_queue: dict[int, list[tuple[PoolMember, HeldMessage]]] = {}
        all_read = True
        for member in members:
            noted = member.slots.snapshot() if member.pid else []
            # The child is in the middle of a change. Its messages are renewed by the next call, which comes soon.
            all_read = all_read and noted is not None
            for held in noted or ():
                by_queue.setdefault(held.queue, []).append((member, held))
        outcomes = [
            ask(index, partial(self._renew_queue, index, mine)) for index, mine in by_queue.items()
        ]
        return all_read and all(outcomes)

    def _renew_queue(self, index: int, mine: list[tuple[PoolMember, HeldMessage]]) -> None:
        deadline = lease_deadline(boot_ns(), self._settings.lease_s)
        renewed: dict[PoolMember, list[HeldMessage]] = {member: [] for member, _ in mine}
        lost: dict[PoolMember, list[HeldMessage]] = {member: [] for member, _ in mine}
        for start in range(0, len(mine), PER_CALL):
            part = mine[start : start + PER_CALL]
            leases = [Lease(held.mid, held.token) for _, held in part]
            kept = self._queues[index].extend(leases, self._settings.lease_s)
            for (member, held), ok in zip(part, kept, strict=True):
                (renewed if ok else lost)[member].append(held)
        for member in renewed:
            self._confirm(member, renewed[member], lost[member], deadline)

    def _confirm(
        self,
        member: PoolMember,
        renewed: list[HeldMessage],
        lost: list[HeldMessage],
        deadline: int,
    ) -> None:
        was_live = boot_ns() < member.slots.deadline()
        gone = member.slots.confirm(renewed, lost, deadline)
        if lost:
            member.notify()
        if gone and self._on_lost is not None:
            self._on_lost(len(gone))
        for held in gone:
            if held.state != SlotState.RUNNING:
                continue
            if was_live and self._is_cancelled(held):
                logger.info("stopping %s, which was cancelled", held.mid)
            else:
                logger.warning(
                    "stopping %s, because its lock was lost or it was cancelled", held.mid
                )

    def _is_cancelled(self, held: HeldMessage) -> bool:
        """Return whether a user cancelled the message. Call this only before the message's lease can expire.

        Until then, only its child can finish the message, and only a user can cancel it.
        """
        try:
            word = self._queues[held.queue].status(held.mid).word
        except JobqError:
            return False
        return word in ("done-with-backoff", "done-awaiting-gc", "done-with-requeue")

    def take_back(self, member: PoolMember, ask: Ask) -> None:
        """Take back messages waiting for a slow job to end, and fetched messages that the child hasn't read."""
        slots = member.slots
        if not slots.nrunning or slots.ran_ns() < self._slow_ns:
            return
        taken = slots.take_back() if slots.nwaiting else []
        claimed = slots.claim_fetch()
        if claimed is not None:
            self._claimed.append(claimed)
        if taken or claimed:
            self._taken += taken
            self.release_taken(ask)

    def release_taken(self, ask: Ask) -> None:
        """Give messages taken from children back to their queues. After an error, the next renewal tries again."""
        for index in {held.queue for held in self._taken}:
            leases = [Lease(held.mid, held.token) for held in self._taken if held.queue == index]
            if ask(index, partial(self._release, index, leases)):
                self._taken = [held for held in self._taken if held.queue != index]
        for claimed in list(self._claimed):
            if ask(claimed[0], partial(self._close, *claimed)):
                self._claimed.remove(claimed)

    def _close(self, index: int, caller: str, held: frozenset[str]) -> None:
        """End the session in which a child made its dequeue calls.

        Give the messages of its last call back to the queue, except messages whose token is in `held`.

        If that call reaches the server later, the server rejects it.
        """
        handed = self._queues[index].end_session(caller)
        self._release(index, [lease for lease in handed if lease.token not in held])

    def _release(self, index: int, leases: list[Lease]) -> None:
        for start in range(0, len(leases), PER_CALL):
            self._queues[index].release(leases[start : start + PER_CALL])

    def enforce(self, member: PoolMember) -> None:
        """Kill a child whose job exceeded its hard timeout, or whose lease expired while the job still runs."""
        if member.killed_for:
            return
        now = boot_ns()
        overdue = member.slots.overdue(now)
        if overdue:
            member.hard_slots = set(overdue)
            logger.error("killing child %d: a job exceeded its hard timeout", member.pid)
            member.kill("hard timeout")
            return
        self._look_for(member, now)
        if not member.slots.nrunning or now < member.slots.deadline() + self._margin_ns:
            member.late_since = 0
        elif not member.late_since:
            # After a pause of the whole worker, the child first gets time to stop the job itself.
            member.late_since = now
        elif now - member.late_since > 2 * self._margin_ns:
            logger.error(
                "killing child %d: its leases ended and its job is still running", member.pid
            )
            member.kill("lease")

    def _look_for(self, member: PoolMember, now: int) -> None:
        """If a child's timer is late, make the child check its job."""
        at = member.slots.look_at
        if member.looked_for < at < now - LATE_NS and member.slots.nrunning:
            member.looked_for = at
            member.notify()
