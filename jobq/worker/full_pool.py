"""Warns about jobs that occupy all workers' slots while they wait for results of queued jobs."""

from __future__ import annotations

from typing import Any

from jobq.client.connection import Client
from jobq.errors import JobqError
from jobq.jobs.context import running
from jobq.jobs.results import Receipt
from jobq.queue import presence
from jobq.worker import logger


class FullPool:
    """Warns, once per process, if a job waits for another job that can't start because all slots are busy."""

    def __init__(self, client: Client) -> None:
        self._client, self._warned = client, False

    def on_wait(self, receipt: Receipt[Any]) -> None:
        """Warn if a job waits for a queued message while all slots of the queue's workers are taken."""
        context = running.get(None)
        if context is None or self._warned:
            return
        try:
            if not receipt.status().word.startswith("queued"):
                return
            now_ms = self._client.clock_ms()
            serving = [
                worker for worker in presence.workers(self._client)
                if worker.is_live(now_ms) and worker.serves(receipt.queue)
            ]  # fmt: skip
        except JobqError:  # perhaps this user isn't allowed to read the list
            return
        if serving and all(worker.running >= worker.slots for worker in serving):
            self._warned = True
            logger.warning(
                "%s %s is waiting for the result of %s %s, which is waiting for a slot: all %d slots of the workers "
                "of queue %s are busy. If the running jobs all wait like this, none can finish: use a flow "
                "(jobq.Flow), or run the awaited jobs on separate workers",
                context.job, context.mid, receipt.job, receipt.mid,
                sum(worker.slots for worker in serving), receipt.queue,
            )  # fmt: skip
