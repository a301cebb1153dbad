"""Batch jobs in the kit: drained together, run alone, rehearsed."""

from __future__ import annotations

import asyncio

import pytest

import jobq as package
from jobq import Calls, Flow
from jobq.limits.concurrency_limit import ConcurrencyLimit
from jobq.testing import DrainResult

pytestmark = pytest.mark.one_server


@pytest.fixture
def sizes():
    """Arguments of each batch."""
    return []


def adding(registry, sizes, **options):
    """A batch job: negative numbers fail the first time, and the others are doubled."""

    @package.job(batch=3, name="add", registry=registry, retry=package.retry.fixed(5), **options)
    def add(calls: Calls[int]) -> list[int]:
        sizes.append([call.args[0] for call in calls])
        for at, call in enumerate(calls):
            if call.args[0] < 0 and call.attempt == 1:
                calls.fail(at, ValueError("negative"))
        return [2 * call.args[0] for call in calls]

    return add


def test_drain_runs_waiting_calls_together(jobq, registry, sizes):
    add = adding(registry, sizes, result_ttl=60)

    @package.job(name="other", registry=registry)
    def other():
        sizes.append("other")

    receipts = [add.enqueue(1), add.enqueue(2)]
    other.enqueue()
    receipts += add.enqueue_many([(3,), (4,), (5,)])
    assert jobq.drain() == DrainResult(done=6)
    assert sizes == [[1, 2], "other", [3, 4, 5]]
    assert [receipt.result(timeout=1) for receipt in receipts] == [2, 4, 6, 8, 10]


def test_drain_raises_the_error_of_a_call_and_retries_it(jobq, registry, sizes):
    add = adding(registry, sizes)
    add.enqueue_many([(1,), (-2,), (3,)])
    with pytest.raises(ValueError, match="negative"):
        jobq.drain()
    assert jobq.drain() == DrainResult(done=1)
    assert sizes == [[1, -2, 3], [-2]]


def test_drain_in_an_event_loop_runs_calls_together(jobq, registry, sizes):
    adding(registry, sizes).enqueue_many([(1,), (2,)])
    assert asyncio.run(jobq.adrain()) == DrainResult(done=2)
    assert sizes == [[1, 2]]


@pytest.mark.parametrize("in_loop", [False, True])
def test_drain_runs_calls_of_an_async_job_together(jobq, registry, sizes, in_loop):
    @package.job(batch=3, name="later", registry=registry, result_ttl=60)
    async def later(calls: Calls[int]) -> list[int]:
        await asyncio.sleep(0)
        sizes.append([call.args[0] for call in calls])
        return [2 * call.args[0] for call in calls]

    receipts = later.enqueue_many([(1,), (2,), (3,), (4,)])
    drained = asyncio.run(jobq.adrain()) if in_loop else jobq.drain()
    assert (drained, sizes) == (DrainResult(done=4), [[1, 2, 3], [4]])
    assert [receipt.result(timeout=1) for receipt in receipts] == [2, 4, 6, 8]
    assert jobq.run_job(later, 5).value == 10


def test_drain_returns_fetched_calls_after_its_limit(jobq, registry, sizes):
    add = adding(registry, sizes)
    add.enqueue_many([(1,), (2,), (3,), (4,)])
    with pytest.raises(package.errors.ConfigError, match="3 attempts ran"):
        jobq.drain(limit=3)
    assert len(jobq.all_enqueued()) == 1
    assert jobq.drain() == DrainResult(done=1)


def test_inline_mode_runs_each_enqueue_as_a_batch(jobq, registry, sizes):
    add = adding(registry, sizes)
    with jobq.mode("inline"):
        add.enqueue(1)
        add.enqueue_many([(2,), (3,)])
    assert sizes == [[1], [2, 3]]


def test_run_job_runs_a_batch_of_one(jobq, registry, sizes):
    add = adding(registry, sizes)
    ran = jobq.run_job(add, 4)
    assert (ran.outcome, ran.value) == ("done", 8)
    ran = jobq.run_job(add, -4)
    assert (ran.outcome, str(ran.error), ran.retry_in) == ("retry", "negative", 5)
    assert asyncio.run(jobq.running(attempt=2).arun(add, -4)).value == -8


def test_rehearse_interrupts_a_batch_of_one(jobq, registry):
    balance = set()

    @package.job(batch=5, name="book", registry=registry)
    def book(calls: Calls[str]) -> None:
        for call in calls:
            balance.add(call.args[0])

    done = jobq.rehearse(book, "a", before=balance.clear, observe=lambda: sorted(balance))
    assert done.trials > 3


def test_steps_of_a_flow_run_together_and_pass_their_results(jobq, registry, sizes):
    add, totals = adding(registry, sizes), []

    @package.job(name="total", registry=registry)
    def total(numbers: list[int]) -> None:
        totals.append(sum(numbers))

    flow = Flow("sums")
    added = flow.map(add, [1, 2, 3], results=True)
    flow.step(total, added.results)
    run = flow.start()
    jobq.drain()
    jobq.assert_flow(run, "done")
    assert (sizes, totals) == ([[1, 2, 3]], [12])


def test_concurrency_limit_admits_calls_of_a_batch_one_by_one(jobq, registry, sizes):
    limit = ConcurrencyLimit("erp", 2)
    add = adding(registry, sizes, limits=[limit])
    add.enqueue_many([(1,), (2,), (3,)])
    assert jobq.drain() == DrainResult(done=3)
    assert sizes == [[1, 2], [3]]
    add.enqueue(4)
    assert jobq.drain() == DrainResult(done=1), "both slots are free again"


def test_batch_job_handles_deaths_together(jobq, registry):
    died = []

    @package.job(batch=5, name="tell", registry=registry)
    def tell(calls: Calls[package.DeadCall]) -> None:
        died.append([call.args[0].args for call in calls])

    @package.job(name="fail", registry=registry, on_dead=tell)
    def fail(number):
        raise package.Dead("no use")

    fail.enqueue_many([(1,), (2,)])
    assert jobq.drain(raises=False) == DrainResult(done=2, dead=2)
    assert died == [[[1], [2]]]


def test_drain_runs_calls_of_one_key_together(jobq, registry, sizes):
    @package.job(batch=3, name="keyed", registry=registry, key="arg1")
    def keyed(calls: Calls[str, int]) -> None:
        sizes.append([call.args for call in calls])

    keyed.enqueue_many((name, n) for name in ("a", "b") for n in range(4))
    assert jobq.drain() == DrainResult(done=8)
    assert all(len({name for name, _ in batch}) == 1 for batch in sizes)
    assert sorted(n for batch in sizes for _, n in batch) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert max(map(len, sizes)) > 1
