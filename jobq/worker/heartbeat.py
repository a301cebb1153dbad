"""What others see of a worker: its heartbeat in the list of workers, its queues in the list, its state on TTIN."""

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
from jobq.worker.pool import PoolMember, dump_stacks

#: Names in one log line.
MOST_NAMES = 10


def declared(registry: Registry) -> list[str]:
    """Return the queues that jobs declare, sorted."""
    return sorted({job.queue for job in registry})


def warn_of_unserved(client: Client, registry: Registry, settings: WorkerSettings) -> None:
    """Log a warning for each queue of a job here that neither this worker nor another one serves."""
    unserved = set(declared(registry)) - {name for name, _ in settings.queues}
    if not unserved:
        return
    try:
        unserved -= directory.served(client).keys()
    except JobqError as error:
        logger.debug("the queues that other workers serve are unknown: %s", error)
    for queue in sorted(unserved):
        jobs = sorted(job.name for job in registry if job.queue == queue)
        logger.warning(
            "no worker serves queue %s, of %s: start one with --queues %s",
            queue,
            listed(jobs),
            queue,
        )


def listed(names: Sequence[str]) -> str:
    """Return names for a log line; of many, the first ones and a count."""
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


class Heartbeat:
    """Sent with every renewal of leases."""

    def __init__(self, client: Client, settings: WorkerSettings, queues: list[str]) -> None:
        self._client, self._settings, self._queues = client, settings, queues
        self._started_at = round(time.time() * 1000)
        self._list_at = 0.0
        self._may_warn = True

    def send(self, members: list[PoolMember]) -> None:
        """Renew the worker's entry; now and then also the list of queues, in case the server lost it."""
        facts: dict[str, Any] = {
            "host": socket.gethostname(), "pid": os.getpid(), "queues": self._queues,
            "children": [member.pid for member in members if member.pid],
            "running": sum(member.slots.nrunning for member in members if member.pid),
            "lease_ms": round(self._settings.lease_s * 1000), "started_at": self._started_at,
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
            self._warn(error)
            return
        self._may_warn = True

    def _warn(self, error: JobqError) -> None:
        if self._may_warn:
            logger.warning("this worker can't write its entry in the list of workers: %s", error)
        self._may_warn = False

    def leave(self) -> None:
        """Remove the entry. If that fails, its `seen_at` shows that it is old."""
        try:
            directory.forget_worker(self._client, self._settings.name)
        except JobqError:
            pass

    def describe(self, members: list[PoolMember]) -> None:
        """Log what each child does, with the stacks of its threads."""
        stacks = dump_stacks({m.pid: m.stacks for m in members if m.pid})
        for member in members:
            if member.pid:
                logger.info(
                    "child %d: %d running, %d waiting, %d jobs ended\n%s",
                    member.pid, member.slots.nrunning, member.slots.nwaiting,
                    member.slots.nfinished, stacks[member.pid],
                )  # fmt: skip
