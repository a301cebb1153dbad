"""The supervisor's regular work for each queue: remove, promote and recover messages.

An error in one queue doesn't affect other queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from jobq.client.clock import boot_ns
from jobq.client.names import is_partition
from jobq.config import WorkerSettings
from jobq.errors import JobqError
from jobq.queue import keys
from jobq.queue.queue import Queue
from jobq.worker import logger
from jobq.worker.cautions import OnceAMinute
from jobq.worker.flow_drains import LateFlows
from jobq.worker.queue_health import AWAY, BROKEN, OutageLog, QueueHealth, QueueTrouble
from jobq.worker.queue_line import REFUSED, same_node

FIRST_PAUSE_NS = 400_000_000
#: How often a queue is asked that has messages to promote, recover or collect.
EVERY_NS = 2_000_000_000
#: Maximum number of queues asked in a row. Children may have to wait for the supervisor that long.
PER_LOOK = 100
#: How often the other queues are checked, the minimum time between two checks, and the number of queues per command.
SWEEP_NS, SWEEP_PART_NS, PER_COMMAND = 5_000_000_000, 800_000_000, 250
#: Maximum number of outbox entries that the supervisor delivers to flows in a row. Leases must be renewed in time.
MAX_ENTRIES = 256
#: A node that doesn't answer takes at most a fifth of the supervisor's time. The longest pause bounds the case that the
#: worker itself was stopped for an hour during a try.
PAUSE_PER_TRY, MAX_PAUSE_NS = 4, 10_000_000_000


#: Keys that show that a queue may need upkeep.
_WORK = ("ready", "due", "circle", "flow_outbox", "partitions")


class QueueUpkeep:
    """Does the supervisor's regular work for all queues. A queue has the same index here as in children."""

    def __init__(
        self,
        queues: Sequence[Queue],
        settings: WorkerSettings,
        health: QueueHealth,
        *,
        on_dead: bool = False,
    ) -> None:
        self._queues, self._settings, self._health = queues, settings, health
        self._names: list[str] = []
        self._outages, self._on_dead = OutageLog(self._names), on_dead
        # Queues in which dead messages don't add a message for on_dead yet.
        self._to_note: set[int] = set()
        # Queues for which the server rejects the supervisor's calls. Children record their own troubles.
        self._refused: dict[int, QueueTrouble] = {}
        self._not_before: dict[int, int] = {}
        self._quarantined: dict[int, int] = {}
        self._flows, self._once = LateFlows(queues[0].client), OnceAMinute()
        # When to ask each queue. All queues are asked at first. A queue without an entry is idle.
        self._due: dict[int, int] = {}
        self._asked_at: dict[int, int] = {}
        self._sweep_at = boot_ns() + SWEEP_NS
        # Queues that have partitions. Their maps are read in each round, without other work.
        self._partitioned: set[int] = set()
        #: Sealed queues that were found; the supervisor takes them, and serves the partitions that replace them.
        self.sealed: set[str] = set()
        self.begin(0)

    def begin(self, first: int) -> None:
        """Start maintaining the queues whose index is at least `first`."""
        count = len(self._queues)
        new = range(first, count)
        self._names += [queue.name for queue in self._queues[first:]]
        if self._on_dead:
            self._to_note.update(new)
        self._due.update(dict.fromkeys(new, 0))
        size = 1 if self._queues[0].client.is_cluster else PER_COMMAND
        self._parts = [range(at, min(at + size, count)) for at in range(0, count, size)]
        self._next_part = 0

    def ask(self, index: int, call: Callable[[], object]) -> bool:
        """Run `call`, which calls the server of one queue. Return whether the call succeeded.

        Raises JobqError if the server is unreachable, unless the server is a Cluster.
        """
        asked_at = boot_ns()
        if asked_at < self._not_before.get(index, 0):
            return False
        try:
            call()
        except REFUSED as error:
            since = self._refused[index].since if index in self._refused else asked_at
            self._refused[index] = QueueTrouble(BROKEN, since, str(error))
            self._not_before[index] = boot_ns() + round(self._settings.lease_s * 0.3e9)
            return False
        except JobqError as error:
            if not self._queues[index].client.is_cluster:
                raise
            self._away(index, error, asked_at)
            return False
        self._refused.pop(index, None)
        if self._health.any_trouble and self._health.state(index) == AWAY:
            self._health.server_answered(same_node(self._queues, index))
        return True

    def _away(self, index: int, error: JobqError, asked_at: int) -> None:
        there, now = same_node(self._queues, index), boot_ns()
        self._health.failed(there, AWAY, error, asked_at)
        for each in there:
            pause = min(PAUSE_PER_TRY * (now - asked_at), MAX_PAUSE_NS)
            self._not_before[each] = now + max(FIRST_PAUSE_NS, pause)

    def look_after(self) -> None:
        """Promote, recover and remove due messages. Also check a few other queues for due messages.

        Raises JobqError if the server is unreachable, unless the server is a Cluster.
        """
        now = boot_ns()
        for index in self._health.touched():
            self._schedule(index, now)
        if self._due and min(self._due.values()) <= now:
            due = sorted((at, index) for index, at in self._due.items() if at <= now)
            for _, index in due[:PER_LOOK]:
                if not self.ask(index, partial(self._collect, index)):
                    self._due[index] = max(now + EVERY_NS, self._not_before.get(index, 0))
        if now >= self._sweep_at:
            self._sweep(now)

    def next_s(self) -> float:
        """Return the seconds until the next queue must be queried."""
        at = min(self._due.values(), default=self._sweep_at)
        return max(0.001, (min(at, self._sweep_at) - boot_ns()) / 1e9)

    def collect(self) -> None:
        """Remove finished messages from queues before the supervisor exits."""
        for index in self._health.touched():
            self._due[index] = 0
        for index in list(self._due):
            self.ask(index, partial(self._collect, index, 1_000))

    def _schedule(self, index: int, at: int) -> None:
        at = max(at, self._asked_at.get(index, 0) + EVERY_NS)
        self._due[index] = min(at, self._due.get(index, at))

    def _collect(self, index: int, limit: int = 100) -> None:
        self._asked_at[index] = now = boot_ns()
        if index in self._to_note:
            self._queues[index].admin.call_on_dead()
            self._to_note.discard(index)
        left = self._queues[index].admin.upkeep(limit, crash_limit=self._settings.crash_limit)
        self._due.pop(index, None)
        if left.sealed != b"0":
            self.sealed.add(name := self._queues[index].name)
            if not is_partition(name):
                self._partitioned.add(index)
        if left.outbox:
            self._tell_flows(index)
        if left.circle or left.surplus or left.outbox:
            self._schedule(index, now)
        elif left.due_ms:
            self._schedule(index, now + left.due_ms * 1_000_000)
        more = left.quarantined - self._quarantined.get(index, 0)
        self._quarantined[index] = left.quarantined
        if more > 0:
            logger.warning(
                "queue %s: quarantined %d entr%s that can't be message ids, %d in all; "
                "jobq check fsck shows them",
                self._queues[index].name, more, "y" if more == 1 else "ies", left.quarantined,
            )  # fmt: skip

    def _tell_flows(self, index: int) -> None:
        name = self._queues[index].name
        try:
            self._flows.drain(name, MAX_ENTRIES)
        except JobqError as error:
            if self._once.is_due(name):
                logger.warning(
                    "results in queue %s can't be delivered to flows yet: %s", name, error
                )

    def _sweep(self, now: int) -> None:
        """Check the next few queues for work that was missed because a host died or a marker was lost."""
        part = self._parts[self._next_part]
        self._next_part = (self._next_part + 1) % len(self._parts)
        self._sweep_at = now + max(SWEEP_PART_NS, SWEEP_NS // len(self._parts))
        retired = self._health.retired()
        self.sealed.update(self._names[each] for each in part if each in self._partitioned)
        self._find([each for each in part if each not in self._due and each not in retired], now)

    def _find(self, indexes: Sequence[int], now: int) -> None:
        """Schedule a check of each of these queues that isn't empty.

        First ask whether any queue has messages. If so, search each half of the queues.
        """
        if not indexes:
            return
        names = [
            keys.key(self._queues[index].prefix, place)
            for index in indexes
            for place in _WORK
            if place != "partitions" or index not in self._partitioned
        ]
        exist = partial(self._queues[indexes[0]].client.command, "EXISTS", *names)
        counts: list[int] = []
        if not self.ask(indexes[0], lambda: counts.append(exist())) or not counts[0]:
            return
        if len(indexes) == 1:
            self._schedule(indexes[0], now)
            return
        self._find(indexes[: len(indexes) // 2], now)
        self._find(indexes[len(indexes) // 2 :], now)

    def log_troubles(self) -> None:
        self._outages.update(self._refused | self._health.troubles())
