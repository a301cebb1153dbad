"""What the supervisor asks of each queue, so that trouble with one stops nothing in the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from jobq.config import WorkerSettings
from jobq.engine.queue import Queue
from jobq.errors import JobqError
from jobq.worker.clock import boot_ns
from jobq.worker.holding import neighbours
from jobq.worker.line import REFUSED
from jobq.worker.log import logger
from jobq.worker.outages import Outages
from jobq.worker.standing import AWAY, BROKEN, Standing, Trouble

FIRST_PAUSE_NS = 400_000_000
#: A node that doesn't answer takes at most a fifth of the supervisor's time.
SELDOM = 4


class Upkeep:
    """`queues` in the order in which children number them."""

    def __init__(
        self, queues: Sequence[Queue], settings: WorkerSettings, standing: Standing
    ) -> None:
        self._queues, self._settings, self._standing = queues, settings, standing
        self._outages = Outages([queue.name for queue in queues])
        # What the server refuses the supervisor. Children may fare otherwise, and note that themselves.
        self._refused: dict[int, Trouble] = {}
        self._not_before: dict[int, int] = {}
        self._quarantined: dict[int, int] = {}

    def ask(self, index: int, call: Callable[[], object]) -> bool:
        """Make the calls of one queue; whether they succeeded. JobqError: the one server of all is away."""
        asked_at = boot_ns()
        if asked_at < self._not_before.get(index, 0):
            return False
        try:
            call()
        except REFUSED as error:
            since = self._refused[index].since if index in self._refused else asked_at
            self._refused[index] = Trouble(BROKEN, since, str(error))
            self._not_before[index] = boot_ns() + self._settings.lease_ms * 300_000
            return False
        except JobqError as error:
            if not self._queues[index].client.is_cluster:
                raise
            self._away(index, error, asked_at)
            return False
        self._refused.pop(index, None)
        if self._standing.words[0] and self._standing.state(index) == AWAY:
            self._standing.server_answered(neighbours(self._queues, index))
        return True

    def _away(self, index: int, error: JobqError, asked_at: int) -> None:
        there, now = neighbours(self._queues, index), boot_ns()
        self._standing.failed(there, AWAY, error, asked_at)
        for each in there:
            self._not_before[each] = now + max(FIRST_PAUSE_NS, SELDOM * (now - asked_at))

    def collect(self, limit: int = 100) -> None:
        """Promote, recover and remove what has come to its time in every queue."""
        for index in range(len(self._queues)):
            self.ask(index, partial(self._collect, index, limit))

    def _collect(self, index: int, limit: int) -> None:
        queue = self._queues[index]
        quarantined = queue.upkeep(limit, crash_limit=self._settings.crash_limit).quarantined
        more = quarantined - self._quarantined.get(index, 0)
        self._quarantined[index] = quarantined
        if more > 0:
            logger.warning(
                "queue %s: %d entr%s that can't be message ids were set aside, %d in all; "
                "jobq fsck shows them",
                queue.name, more, "y" if more == 1 else "ies", quarantined,
            )  # fmt: skip

    def tell(self) -> None:
        """Log which queues came into trouble and which left it."""
        self._outages.tell(self._refused | self._standing.troubles())
