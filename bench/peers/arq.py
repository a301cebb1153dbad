"""arq: uvloop, 100 concurrent jobs, polls every 10 ms (its default of 500 would dominate its latency), no results.

A worker is one process, so several are several workers. There is no bulk call; `many` keeps 100 calls in
flight. The job of 1 ms runs on the loop, which is faster than in a thread.

Swept, jobs/s of one process and of two, one run on a machine with some other work: 10 at once 3,400 / 3,000,
100 3,400 / 2,900, 500 3,300 / 2,300; a poll every 500 ms 1,000 / 1,100, 50 2,800 / 1,800, 10 2,200 / 2,300, 1
2,700 / 2,400.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import uvloop
from arq import ArqRedis, create_pool, func
from arq.connections import RedisSettings

from bench.peers import handlers, place

SETTINGS = RedisSettings(**place.SERVER)
AT_ONCE = 100
MAX_JOBS = int(place.knob("MAX_JOBS", "100"))
_loop = uvloop.new_event_loop()
_pools: list[ArqRedis] = []


def _job(name: str, function: Callable[..., Any]) -> Any:
    async def run(_: dict[Any, Any], *arguments: Any) -> None:
        if (waits := function(*arguments)) is not None:
            await waits

    return func(run, name=name, keep_result=0)


async def _quiet(_: dict[Any, Any]) -> None:
    if not place.AS_INSTALLED:
        logging.getLogger("arq").setLevel(logging.WARNING)


class WorkerSettings:
    """Settings for the command line."""

    functions = tuple(_job(name, function) for name, function in handlers.WITH_NAP.items())
    redis_settings = SETTINGS
    max_jobs = MAX_JOBS
    poll_delay = float(place.knob("POLL", "0.01"))
    keep_result = 0
    on_startup = _quiet


async def _pool() -> ArqRedis:
    if not _pools:
        _pools.append(await create_pool(SETTINGS))
    return _pools[0]


async def _send(
    handler: str, arguments: list[tuple[Any, ...]], at_once: int, **options: Any
) -> None:
    pool = await _pool()
    for start in range(0, len(arguments), at_once):
        calls: list[Coroutine[Any, Any, Any]] = [
            pool.enqueue_job(handler, *argument, **options)
            for argument in arguments[start : start + at_once]
        ]
        await asyncio.gather(*calls) if at_once > 1 else await calls[0]


def each(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """Enqueue with `enqueue_job`."""
    _loop.run_until_complete(_send(handler, arguments, 1))


def many(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """`enqueue_job`, many in flight."""
    _loop.run_until_complete(_send(handler, arguments, AT_ONCE))


def later(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """Enqueue with `_defer_by`."""
    _loop.run_until_complete(_send(handler, arguments, AT_ONCE, _defer_by=timedelta(hours=1)))


def worker(processes: int) -> list[list[str]]:
    """Return the commands of this many workers."""
    start = "import asyncio,uvloop;asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())"
    command = (
        f"{start};asyncio.set_event_loop(uvloop.new_event_loop());from arq.cli import cli;cli()"
    )
    return [[place.program("python"), "-c", command, "bench.peers.arq.WorkerSettings"]] * processes
