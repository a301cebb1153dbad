"""Receipts on an event loop: on its own connections, without threads and without asyncio's default pool."""

from __future__ import annotations

import ast
import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import jobq
from bench import sources
from jobq.client import item_waits
from jobq.client.connection import Client
from jobq.client.item_waits import MAX_BLOCKING
from jobq.errors import ConfigError, FlowClosedError, JobFailedError, ResultTimeoutError
from jobq.jobs.context import Call
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.queue.durability import UnconfirmableError
from jobq.queue.queue import Queue

pytestmark = pytest.mark.one_server


@pytest.fixture
def double(registry: Registry, client: Client) -> Any:
    @job(queue="low", registry=registry, result_ttl=60, retries=0)
    def double(number: int) -> int:
        if number < 0:
            raise ValueError("negative")
        return 2 * number

    return double


@pytest.fixture
def work(registry: Registry, queue: Queue) -> Callable[[], None]:
    """work(): run ready messages, like a worker's child."""

    def once() -> None:
        executor = Executor(registry)
        calls = [executor.resolve("low", message) for message in queue.dequeue(100).messages]
        queue.finish([executor.run(call) if isinstance(call, Call) else call for call in calls])

    return once


class RefusingPool(ThreadPoolExecutor):
    """Stands for asyncio's default pool."""

    def submit(self, *_: Any, **__: Any) -> Any:
        """Fail the test."""
        raise AssertionError("the default pool of asyncio was used")


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine on a loop whose default pool rejects work."""

    async def guarded() -> Any:
        asyncio.get_running_loop().set_default_executor(RefusingPool())
        return await main()

    return asyncio.run(guarded())


async def met(condition: Callable[[], object]) -> None:
    """Return once the condition holds."""
    while not condition():
        await asyncio.sleep(0.001)


def test_waits_start_no_thread_and_share_a_few_connections_when_there_are_many(
    double, work, redis, monkeypatch
):
    monkeypatch.setattr(item_waits, "POLL_S", 0.01)

    def refuse(thread: threading.Thread) -> None:
        raise AssertionError(f"{thread} was started")

    async def main() -> list[int]:
        receipts = await double.aenqueue_many([(number,) for number in range(80)])
        monkeypatch.setattr(threading.Thread, "start", refuse)
        before = len(redis.client_list())
        waits = [asyncio.create_task(receipt.aresult(timeout=100)) for receipt in receipts]
        await met(lambda: redis.info("clients")["blocked_clients"] == MAX_BLOCKING)
        # A client of an earlier test may reconnect meanwhile, so a few more don't matter beside 80 waits.
        assert len(redis.client_list()) - before <= MAX_BLOCKING + 4
        work()
        return await asyncio.gather(*waits)

    assert asyncio.run(main()) == [2 * number for number in range(80)]


def test_wait_ends_at_its_timeout_and_leaves_its_connection_to_the_next(double, redis):
    async def main() -> None:
        receipt = await double.aenqueue(1)
        before = len(redis.client_list())
        for _ in range(3):
            with pytest.raises(ResultTimeoutError):
                await receipt.aresult(timeout=0.01)
        assert len(redis.client_list()) <= before + 1

    run(main)


def test_cancelled_wait_gives_its_place_to_the_next_one(double, work, redis):
    async def main() -> None:
        receipt = await double.aenqueue(1)
        waits = [asyncio.create_task(receipt.aresult()) for _ in range(MAX_BLOCKING)]
        await met(lambda: redis.info("clients")["blocked_clients"] == MAX_BLOCKING)
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
        await met(lambda: redis.info("clients")["blocked_clients"] == 0)
        wait = asyncio.create_task(receipt.aresult(timeout=100))
        await met(lambda: redis.info("clients")["blocked_clients"] == 1)
        work()
        assert await wait == 2

    run(main)


def test_receipt_is_cancelled_and_revived_on_the_loop(double, work, queue):
    async def main() -> None:
        waiting = await double.aenqueue(1)
        assert (await waiting.astatus()).word == "queued"
        assert await waiting.acancel() is True
        assert await waiting.acancel() is False
        dead = await double.aenqueue(-1)
        assert await dead.arevive() is False
        work()
        with pytest.raises(JobFailedError, match="negative"):
            await dead.aresult(timeout=5)
        assert await dead.arevive() is True
        assert (await dead.astatus()).word == "queued"

    run(main)


def test_receipt_is_revived_by_a_thread(double, work):
    receipt = double.enqueue(-1)
    work()
    assert receipt.status().word == "dead"
    assert receipt.revive() is True
    assert receipt.revive() is False
    assert receipt.status().word == "queued"


def test_no_public_call_uses_the_default_pool_of_asyncio(double, client, work):
    """Every coroutine function of the public classes is called here."""
    walked: set[str] = set()

    async def call(bound: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        walked.add(f"{type(bound.__self__).__name__}.{bound.__name__}")  # type: ignore[attr-defined]
        return await bound(*args)

    async def receipts() -> None:
        await call(double.aenqueue_many, [(1,)])
        # Waits for a disk happen in a thread.
        with pytest.raises(UnconfirmableError):
            await call(double.options(durability="disk").aenqueue, 1)
        receipt = await call(double.aenqueue, 1)
        await call(receipt.astatus)
        await call(receipt.astate)
        work()
        await call(receipt.aresult, 5)
        await call(receipt.acancel)
        await call(receipt.arevive)

    async def flows() -> None:
        flow = jobq.Flow("report", queue="low", client=client)
        step = flow.step(double, 1)
        flow_run = await call(flow.astart)
        await call(flow_run.astatus)
        with pytest.raises(ConfigError):
            await call(flow_run.asignal, "unknown")
        await call(flow_run.acancel)
        await call(flow_run.await_end, 10)
        with pytest.raises(JobFailedError):
            await call(flow_run.aresult, step, 5)
        with pytest.raises(FlowClosedError):
            await call(flow_run.aretry)
        await call(jobq.Batch(double, [double.args(1)], client=client).astart)

    async def limits() -> None:
        limit = jobq.RateLimit("calls", "10/s", client=client)
        await call(limit.aacquire)
        await call(limit.atry_acquire)
        await call(limit.ahold, 1)
        await call(jobq.ConcurrencyLimit("slots", 2, client=client).ahold, 1)

    async def main() -> None:
        await receipts()
        await flows()
        await limits()

    run(main)
    public = {
        f"{name}.{method}"
        for name in jobq.__all__
        if inspect.isclass(kind := getattr(jobq, name))
        for method, _ in inspect.getmembers(kind, inspect.iscoroutinefunction)
    }
    # Workers call these. The methods of jobs are the same in each class.
    public -= {"RateLimit.aadmit", "ConcurrencyLimit.aadmit"} | {
        name for name in public if "Job." in name
    }
    assert public | {"SyncJob.aenqueue", "SyncJob.aenqueue_many"} == walked


def test_no_module_names_the_default_pool_of_asyncio():
    users = {
        f"{path.name}:{node.lineno}"
        for path in (Path(jobq.__file__).parent).rglob("*.py")
        for node in sources.nodes(path, ast.Attribute)
        if node.attr in ("to_thread", "run_in_executor")
    }
    assert users == set()
