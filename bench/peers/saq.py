"""SAQ: uvloop, 100 concurrent jobs per process, finished jobs aren't kept.

`map` and `apply` wait for results, so `many` keeps 20 calls in flight, its `max_concurrent_ops`. The job of 1
ms runs on the loop, which is faster than in a thread.

Swept, jobs/s of one process and of two, one run on a machine with some other work: 10 at once 1,100 / 1,000,
30 1,600 / 1,100, 100 3,000 / 4,100 (5,700 in a quieter run), 300 2,800 / 4,300.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import uvloop
from redis.asyncio import Redis
from saq.queue.redis import RedisQueue

from bench.peers import handlers, place

AT_ONCE = 20
uvloop.install()
_loop = uvloop.new_event_loop()
queue = RedisQueue(Redis(**place.SERVER), name="bench")


def _job(name: str, function: Callable[..., Any]) -> tuple[str, Any]:
    async def run(_: Any, *, arguments: list[Any]) -> None:
        if (waits := function(*arguments)) is not None:
            await waits

    return name, run


settings = {
    "queue": queue,
    "functions": [_job(name, function) for name, function in handlers.WITH_NAP.items()],
    "concurrency": int(place.knob("CONCURRENCY", "100")),
}


async def _send(
    handler: str, arguments: list[tuple[Any, ...]], at_once: int, **options: Any
) -> None:
    for start in range(0, len(arguments), at_once):
        calls = [
            queue.enqueue(handler, arguments=argument, ttl=-1, **options)
            for argument in arguments[start : start + at_once]
        ]
        await asyncio.gather(*calls) if at_once > 1 else await calls[0]


def each(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """Enqueue with `enqueue`."""
    _loop.run_until_complete(_send(handler, arguments, 1))


def many(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """`enqueue`, many in flight."""
    _loop.run_until_complete(_send(handler, arguments, AT_ONCE))


def later(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """Enqueue with `scheduled`."""
    _loop.run_until_complete(_send(handler, arguments, AT_ONCE, scheduled=int(time.time()) + 3600))


def worker(processes: int) -> list[list[str]]:
    """Return the worker's command."""
    return [
        [
            place.program("saq"),
            "bench.peers.saq.settings",
            "--workers",
            str(processes),
            *place.quiet("--quiet"),
        ],
    ]
