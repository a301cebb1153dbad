"""Facts about workers for `jobq workers` and the dashboard."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from jobq.client.connection import Client
from jobq.queue import presence
from jobq.queue.presence import ChildEntry, WorkerEntry
from jobq.records import JsonRecord, MomentOrZero, words

#: States, most urgent first.
STATES = ("lost", "damaged", "leaving", "quiet", "working")


class WorkerRecord(JsonRecord):
    """A worker's last heartbeat, and its children's jobs.

    Attributes:
        version: The worker's version of jobq.
        slots: Maximum number of concurrent jobs.
        jobs: A digest of the names of the worker's jobs.
        running: Number of running jobs.
        started_at: When the worker started, by the worker's clock.
        seen_at: Time of the worker's last heartbeat, by the server's clock.
        strict: True if the worker empties a queue before it fetches from the next queue.
        rss: Resident memory of the worker's children, in bytes.
    """

    worker: str
    state: Annotated[str, words(STATES)]
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    slots: int
    quiet: bool
    jobs: str
    running: int
    lease_ms: int
    started_at: MomentOrZero
    seen_at: MomentOrZero
    leaving: bool
    strict: bool
    seen_ms: int
    rss: int
    children: tuple[ChildEntry, ...]


def state_of(worker: WorkerEntry, now_ms: int) -> str:
    """Return the worker's state, one of STATES, from its last heartbeat.

    Args:
        now_ms: The server's time in epoch ms.
    """
    if worker.damaged:
        return "damaged"
    if not worker.is_live(now_ms):
        return "lost"
    if worker.leaving:
        return "leaving"
    return "quiet" if worker.quiet else "working"


def workers_of(client: Client, queues: Collection[str] = ()) -> list[WorkerEntry]:
    """Return the last heartbeats of the workers that serve any of these queues, or of all workers."""
    wanted = set(queues)
    return [
        worker for worker in presence.workers(client) if not wanted or wanted & set(worker.queues)
    ]


def worker_record(
    worker: WorkerEntry, children: tuple[ChildEntry, ...] | None, now_ms: int
) -> WorkerRecord:
    """Return a record about a worker.

    Args:
        children: The worker's children; None if its entry is damaged.
    """
    return WorkerRecord.of(
        worker, worker=worker.name, seen_ms=max(0, now_ms - worker.seen_at), children=children or (),
        state="damaged" if children is None else state_of(worker, now_ms),
        rss=sum(child.rss for child in children or ()),
    )  # fmt: skip


def worker_records(
    client: Client, workers: Sequence[WorkerEntry], now_ms: int
) -> list[WorkerRecord]:
    """Return records about these workers, with their running jobs."""
    children = presence.running(client, [worker.name for worker in workers])
    return [worker_record(worker, children.get(worker.name, ()), now_ms) for worker in workers]
