"""RQ: `SimpleWorker`, which doesn't fork per job, in a worker pool; JSON; no results kept.

Forking, RQ's default and its protection against crashing jobs, is about five times slower. Bulk is `enqueue_many`,
1,000 jobs to a pipeline.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from redis import Redis
from rq import Queue, Retry

from bench.peers import place

_queue = Queue("bench", connection=Redis(**place.SERVER), serializer="json")
PATH = "bench.peers.handlers."
PER_CALL = 1_000
#: Where a process is killed: a process of its own for each job, whose death the worker sees, and another try.
RETRY = Retry(max=3) if place.SAFE else None
CLASS = place.knob("CLASS", "rq.worker.Worker" if place.SAFE else "rq.worker.SimpleWorker")


def each(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """Enqueue with `enqueue`."""
    for each_arguments in arguments:
        _queue.enqueue(PATH + handler, args=each_arguments, result_ttl=0, retry=RETRY)


def many(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """Enqueue with `enqueue_many`."""
    for start in range(0, len(arguments), PER_CALL):
        _queue.enqueue_many(
            [
                Queue.prepare_data(PATH + handler, args=argument, result_ttl=0, retry=RETRY)
                for argument in arguments[start : start + PER_CALL]
            ]
        )


def later(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """Enqueue with `enqueue_in`."""
    for each_arguments in arguments:
        _queue.enqueue_in(timedelta(hours=1), PATH + handler, args=each_arguments, result_ttl=0)


def worker(processes: int) -> list[list[str]]:
    """Return the command of the pool."""
    return [
        [place.program("rq"), "worker-pool", "bench", "-n", str(processes), *place.quiet("-q"), "-S", "json",
         "-w", CLASS, "-P", str(place.ROOT), "-u", place.URL],
    ]  # fmt: skip
