"""Huey: process workers on a blocking pop, no results, no periodic jobs, no health check.

BRPOP takes a job out of Redis before it runs: a killed process loses it. There is no bulk call.

Swept, jobs/s of one worker and of two, one run on a machine with some other work: processes 5,200 / 3,500
(9,900 in a quieter run), threads 3,100 / 2,600.
"""

from __future__ import annotations

from typing import Any

from huey import RedisHuey
from redis import ConnectionPool

from bench.peers import handlers, place

huey = RedisHuey(
    "bench",
    results=False,
    connection_pool=ConnectionPool.from_url(place.URL, socket_timeout=None),
)
_jobs = {name: huey.task(name=name)(function) for name, function in handlers.HANDLERS.items()}


KIND = place.knob("KIND", "process")


def each(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """Enqueue by calling the task."""
    for each_arguments in arguments:
        _jobs[handler](*each_arguments)


many = each


def later(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """Enqueue with `schedule`."""
    for each_arguments in arguments:
        _jobs[handler].schedule(args=each_arguments, delay=3600)


def worker(processes: int) -> list[list[str]]:
    """Return the command of the consumer."""
    return [
        [place.program("huey_consumer"), "bench.peers.huey.huey", "-k", KIND, "-w", str(processes),
         *place.quiet("-q"), "-n", "-C"],
    ]  # fmt: skip
