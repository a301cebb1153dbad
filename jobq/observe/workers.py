"""What a person sees of workers: the facts of `jobq workers` and of the dashboard, from one function."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from jobq.client.connection import Client
from jobq.queue import presence
from jobq.queue.presence import ChildEntry, WorkerEntry

#: States, those that a person should look at first.
STATES = ("lost", "damaged", "leaving", "quiet", "working")


def state_of(worker: WorkerEntry, now_ms: int) -> str:
    """Return one of STATES, by the worker's last heartbeat. now_ms: the server's clock."""
    if worker.damaged:
        return "damaged"
    if not worker.is_live(now_ms):
        return "lost"
    if worker.leaving:
        return "leaving"
    return "quiet" if worker.quiet else "working"


def workers_of(client: Client, queues: Collection[str] = ()) -> list[WorkerEntry]:
    """Return the last heartbeats of the workers that serve any of these queues, of all workers if none is given."""
    wanted = set(queues)
    return [one for one in presence.workers(client) if not wanted or wanted & set(one.queues)]


def worker_record(
    worker: WorkerEntry, children: Sequence[ChildEntry] | None, now_ms: int
) -> dict[str, Any]:
    """Return the facts of a worker as JSON data. children: what it runs; None if that is damaged."""
    facts = {
        key: value for key, value in worker._asdict().items() if key not in ("name", "damaged")
    }
    return {
        "worker": worker.name,
        "state": "damaged" if children is None else state_of(worker, now_ms), **facts,
        "seen_ms": max(0, now_ms - worker.seen_at), "rss": sum(child.rss for child in children or ()),
        "children": [
            {**child._asdict(), "running": [job._asdict() for job in child.running]}
            for child in children or ()
        ],
    }  # fmt: skip


def worker_records(
    client: Client, workers: Sequence[WorkerEntry], now_ms: int
) -> list[dict[str, Any]]:
    """Return the facts of these workers, with what they run."""
    children = presence.running(client, [one.name for one in workers])
    return [worker_record(one, children.get(one.name, ()), now_ms) for one in workers]
