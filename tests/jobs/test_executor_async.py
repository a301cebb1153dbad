"""Async jobs: many on one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import jobq
from jobq.errors import JobAborted, Snooze
from jobq.events import decode
from jobq.jobs.context import Call
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.jobs.results import decode_result
from jobq.queue.types import Ending, Message


@pytest.fixture
def call_of(
    registry: Registry, message: Callable[..., Message]
) -> Callable[..., tuple[Executor, Call]]:
    def resolve(function: Any, *args: Any, **options: Any) -> tuple[Executor, Call]:
        executor = Executor(registry)
        call = executor.resolve(
            "low", message(job(name="f", registry=registry, **options)(function), *args)
        )
        assert isinstance(call, Call)
        return executor, call

    return resolve


@pytest.fixture
def arun(call_of: Callable[..., tuple[Executor, Call]]) -> Callable[..., Ending]:
    def run(function: Any, *args: Any, **options: Any) -> Ending:
        executor, call = call_of(function, *args, **options)
        return asyncio.run(executor.arun(call))

    return run


def test_async_job_ends_as_done_with_its_result(arun: Callable[..., Ending]):
    async def add(x: int, y: int) -> int:
        await asyncio.sleep(0)
        assert jobq.current().mid == "mid-1"
        return x + y

    ended = arun(add, 1, 2, result_ttl=9)
    assert ended.outcome == "done" and decode_result(ended.result, "add", "m") == 3


def test_async_job_ends_by_its_rules_when_it_raises(arun: Callable[..., Ending]):
    async def fail() -> None:
        await asyncio.sleep(0)
        raise Snooze(3)

    assert (arun(fail).outcome, arun(fail).backoff) == ("snooze", 3)


def test_async_job_is_stopped_at_its_timeout(arun: Callable[..., Ending]):
    cancelled = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    ended = arun(hang, timeout=0.01, retries=0)
    assert cancelled == [True]
    assert ended.outcome == "dead"
    assert ended.reason.startswith("jobq.errors.JobTimeout: ran past its timeout of 0.01 s")


def test_timeout_error_of_the_job_itself_is_its_own(arun: Callable[..., Ending]):
    async def fail() -> None:
        raise TimeoutError("upstream")

    assert arun(fail, timeout=30, retries=0).reason.startswith("TimeoutError: upstream")


def test_cancellation_from_outside_escapes(call_of: Callable[..., tuple[Executor, Call]]):
    async def hang() -> None:
        await asyncio.Event().wait()

    executor, call = call_of(hang)

    async def main() -> None:
        running = asyncio.ensure_future(executor.arun(call))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())


def test_cancelled_error_of_the_job_itself_is_a_failure(arun: Callable[..., Ending]):
    async def fail() -> None:
        raise asyncio.CancelledError

    assert arun(fail).outcome == "retry"


def test_abort_escapes(call_of: Callable[..., tuple[Executor, Call]]):
    async def fail() -> None:
        raise JobAborted

    executor, call = call_of(fail)
    with pytest.raises(JobAborted):
        asyncio.run(executor.arun(call))


def test_cpu_time_is_that_of_the_job_alone(call_of: Callable[..., tuple[Executor, Call]]):
    async def idle() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    executor, call = call_of(idle)

    async def burn() -> None:
        for _ in range(5):
            end = time.thread_time() + 0.1
            while time.thread_time() < end:
                pass
            await asyncio.sleep(0)

    async def main() -> Ending:
        ended, _ = await asyncio.gather(executor.arun(call), burn())
        return ended

    written = decode(f"done\x1fmid-1\x1f1\x1f{asyncio.run(main()).record}".encode())
    assert written.cpu_us < 250_000 < written.run_us


def test_each_concurrent_job_sees_its_own_context(registry: Registry):
    seen: list[tuple[str, str]] = []

    async def look(name: str) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append((name, jobq.current().mid))

    looks = job(name="look", registry=registry)(look)
    executor = Executor(registry)

    def call(mid: str) -> Call:
        content = jobq.jobs.codec.encode("look", (mid,))
        resolved = executor.resolve("low", Message(mid, content, 1, 0, 1, "g", "t", 0))
        assert isinstance(resolved, Call) and resolved.job is looks
        return resolved

    async def main() -> None:
        await asyncio.gather(*(executor.arun(call(mid)) for mid in "abc"))

    asyncio.run(main())
    assert len(seen) == 9 and all(name == mid for name, mid in seen)


def test_awaits_reach_the_job_as_if_it_were_awaited_directly(arun: Callable[..., Ending]):
    async def job_body() -> list[Any]:
        async def fail() -> None:
            await asyncio.sleep(0)
            raise KeyError("inner")

        results = await asyncio.gather(asyncio.sleep(0, "a"), fail(), return_exceptions=True)
        with pytest.raises(KeyError):
            await fail()
        return [str(result) for result in results]

    assert decode_result(arun(job_body, result_ttl=1).result, "f", "m") == ["a", "'inner'"]
