"""What others see of a worker: its entry among the workers, its queues in the list, its state on TTIN."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from jobq.client.connection import Client
from jobq.config import WorkerSettings
from jobq.errors import JobqError, ScriptError
from jobq.jobs.registry import Registry
from jobq.queue import directory
from jobq.worker import logger
from jobq.worker import shared_state as slots
from jobq.worker.pool import PoolMember, seen_together

#: Names in one line of a log; of more, the number.
MOST_NAMES = 10


def declared(registry: Registry) -> list[str]:
    """The queues that jobs declare, sorted."""
    return sorted({job.queue for job in registry})


def warn_of_unserved(client: Client, registry: Registry, settings: WorkerSettings) -> None:
    """Log a warning for each queue of a job here that neither this worker nor another one serves."""
    unserved = set(declared(registry)) - {name for name, _ in settings.queues}
    if not unserved:
        return
    try:
        unserved -= directory.served(client).keys()
    except JobqError as error:
        logger.debug("which queues other workers serve isn't known: %s", error)
    for queue in sorted(unserved):
        jobs = sorted(job.name for job in registry if job.queue == queue)
        logger.warning(
            "no worker serves queue %s, of %s: start one with --queues %s",
            queue,
            listed(jobs),
            queue,
        )


def listed(names: Sequence[str]) -> str:
    """Names for a line of a log."""
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


class Heartbeat:
    """Shown with every renewal of leases."""

    def __init__(self, client: Client, settings: WorkerSettings, queues: list[str]) -> None:
        self._client, self._settings, self._queues = client, settings, queues
        self._started_at = round(time.time() * 1000)
        self._list_at = 0.0
        self._untold = True

    def show(self, members: list[PoolMember]) -> None:
        """A sign of life; now and then the queues' names, should somebody have lost them."""
        facts: dict[str, Any] = {
            "host": socket.gethostname(), "pid": os.getpid(), "queues": self._queues,
            "children": [member.pid for member in members if member.pid],
            "running": sum(bytes(m.slots.states).count(slots.RUNNING) for m in members if m.pid),
            "lease_ms": self._settings.lease_ms, "started_at": self._started_at,
            "seen_at": round(time.time() * 1000),
        }  # fmt: skip
        try:
            directory.put_worker(self._client, self._settings.name, facts)
            if time.monotonic() >= self._list_at:
                directory.register_queues(self._client, self._queues)
                self._list_at = time.monotonic() + directory.LIST_EVERY_S
        except JobqError as error:
            if not isinstance(error, ScriptError) and not self._client.is_cluster:
                raise
            self._tell(error)
            return
        self._untold = True

    def _tell(self, error: JobqError) -> None:
        if self._untold:
            logger.warning("this worker can't enter itself in the list of workers: %s", error)
        self._untold = False

    def leave(self) -> None:
        """Strike the entry out; one that stays is old by its `seen_at`."""
        try:
            directory.forget_worker(self._client, self._settings.name)
        except JobqError:
            pass

    def describe(self, members: list[PoolMember]) -> None:
        """Log what each child does, child by child, with the stacks of its threads."""
        stacks = seen_together({m.pid: m.stacks for m in members if m.pid})
        for member in members:
            if member.pid:
                state = bytes(member.slots.states)
                logger.info(
                    "child %d: %d running, %d waiting, %d jobs ended\n%s",
                    member.pid, state.count(slots.RUNNING), state.count(slots.HELD),
                    member.slots.words[slots.FINISHED], stacks[member.pid],
                )  # fmt: skip
