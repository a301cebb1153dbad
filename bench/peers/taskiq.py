"""Taskiq: its list broker, which is its fastest, uvloop, no parsing by pydantic, 100 concurrent jobs, 100
prefetched.

BRPOP takes a job out of Redis before it runs: a killed process loses it and all it had prefetched. There is
no bulk call; `many` keeps 100 calls in flight. The job of 1 ms runs on the loop, which is faster than in a
thread.

Swept, jobs/s of one process and of two, one run on a machine with some other work: 10 at once 3,600 / 8,200,
100 3,200 / 4,100, 1,000 3,200 / 3,300; prefetched 0 4,500 / 3,900, 100 3,600 / 8,300, 1,000 4,600 / 5,300: no
more than the machine moved.
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
from collections.abc import Callable
from typing import Any

import uvloop
from taskiq_redis import ListQueueBroker, ListRedisScheduleSource

from bench.peers import handlers, place

AT_ONCE = 100
TASKS, PREFETCH = place.knob("TASKS", "100"), place.knob("PREFETCH", "100")
broker = ListQueueBroker(place.URL, queue_name="bench", socket_timeout=None)
source = ListRedisScheduleSource(place.URL)
_loop = uvloop.new_event_loop()
_started: list[bool] = []


#: As in own.py: the case with sync jobs and async jobs in a worker.
BESIDE = place.knob("COROUTINES", "")


def _job(name: str, function: Callable[..., Any]) -> Any:
    async def run(arguments: list[Any]) -> None:
        if (waits := function(*arguments)) is not None:
            await waits

    def in_thread(arguments: list[Any]) -> None:
        function(*arguments)

    made: Any = in_thread if BESIDE and not inspect.iscoroutinefunction(function) else run
    made.__name__ = name
    return broker.task(task_name=name)(made)


_jobs = {name: _job(name, function) for name, function in handlers.WITH_NAP.items()}


async def _send(call: Callable[[Any], Any], arguments: list[tuple[Any, ...]], at_once: int) -> None:
    if not _started:
        _started.append(True)
        await broker.startup()
    for start in range(0, len(arguments), at_once):
        calls = [call(list(argument)) for argument in arguments[start : start + at_once]]
        await asyncio.gather(*calls) if at_once > 1 else await calls[0]


def each(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """Enqueue with `kiq`."""
    _loop.run_until_complete(_send(_jobs[handler].kiq, arguments, 1))


def many(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """`kiq`, many in flight."""
    _loop.run_until_complete(_send(_jobs[handler].kiq, arguments, AT_ONCE))


def later(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """`schedule_by_time` into the list source."""
    due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)

    async def call(one: list[Any]) -> None:
        await _jobs[handler].schedule_by_time(source, due, one)

    _loop.run_until_complete(_send(call, arguments, AT_ONCE))


def worker(processes: int) -> list[list[str]]:
    """Return the worker's command."""
    return [
        [place.program("taskiq"), "worker", "bench.peers.taskiq:broker", "-w", str(processes), "--no-parse",
         *place.quiet("--log-level", "WARNING"), "--max-async-tasks", TASKS, "--max-prefetch", PREFETCH],
    ]  # fmt: skip
