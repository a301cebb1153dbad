"""Facts and reports of a running job."""

from __future__ import annotations

import asyncio
import decimal
import logging
import time
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

import jobq
from jobq.errors import NoCurrentJobError
from jobq.jobs.context import Call
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.queue.types import Ending, Message

Run = Callable[..., Ending]


@pytest.fixture
def inside(registry: Registry, run: Run) -> Callable[..., Any]:
    """inside(look, executor={…}): the return value of look() while a job runs."""

    def look_inside(look: Callable[[], Any], **more: Any) -> Any:
        seen: list[Any] = []
        run(
            job(name="mail.send", registry=registry, retries=4)(lambda: seen.append(look())), **more
        )
        return seen[0]

    return look_inside


def test_current_is_refused_outside_a_job():
    with pytest.raises(NoCurrentJobError, match="outside a running job"):
        jobq.current()


def test_current_knows_the_attempt(inside: Callable[..., Any]):
    context = inside(jobq.current, attempt=3, ncrashes=1, headers={"tenant": "x"})
    assert (context.job, context.queue, context.mid, context.attempt) == (
        "mail.send",
        "low",
        "mid-1",
        3,
    )
    assert (context.failures, context.max_attempts, context.fence) == (2, 5, 7)
    assert (context.generation, context.enqueued_at, context.headers) == (
        "first.token",
        1,
        {"tenant": "x"},
    )
    assert (context.worker, context.size) == ("here", 60)
    assert repr(context) == "Context(job='mail.send', mid='mid-1', attempt=3, queue='low')"
    with pytest.raises(NoCurrentJobError):
        jobq.current()


def test_lease_is_endless_where_nobody_keeps_one(inside: Callable[..., Any]):
    assert inside(lambda: (jobq.current().lease_left, jobq.current().lease_valid())) == (
        float("inf"),
        True,
    )


@pytest.mark.parametrize(("ahead", "valid"), [(600.0, True), (-1.0, False)])
def test_lease_left_counts_down_to_the_deadline(
    inside: Callable[..., Any], ahead: float, valid: bool
):
    deadline = time.clock_gettime(time.CLOCK_BOOTTIME) + ahead
    left, holds = inside(
        lambda: (jobq.current().lease_left, jobq.current().lease_valid()),
        executor={"lease_deadline": lambda: deadline},
    )
    assert ahead - 500 < left <= ahead
    assert holds is valid


def test_progress_is_throttled_but_for_the_last(
    inside: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("jobq.jobs.context.PROGRESS_EVERY_S", 20)
    sent: list[tuple[str, str, str, str]] = []

    def work() -> list[bool]:
        context = jobq.current()
        return [context.progress(done, 100, note="rows") for done in range(101)]

    def report(*said: str) -> bool:
        sent.append(said)  # type: ignore[arg-type]
        return True

    assert all(inside(work, executor={"report_progress": report}))
    assert sent == [
        ("low", "mid-1", "caller.1.0", "0 rows"),
        ("low", "mid-1", "caller.1.0", "1 rows"),
    ]


def test_progress_tells_when_another_attempt_took_over(inside: Callable[..., Any]):
    def work() -> tuple[bool, bool, bool]:
        context = jobq.current()
        return context.lease_valid(), context.progress(1.0), context.lease_valid()

    assert inside(work, executor={"report_progress": lambda *said: False}) == (True, False, False)


def test_progress_does_nothing_where_nobody_listens(inside: Callable[..., Any]):
    assert inside(lambda: jobq.current().progress(0.5, note="half")) is True


def test_logger_adds_the_job_to_each_record(
    inside: Callable[..., Any], caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.INFO):
        inside(
            lambda: jobq.current().logger.info(
                "hello %s", "you", extra={"queue": "mine", "more": 1}
            )
        )
    # A leftover thread of an earlier test may also log.
    records: list[Any] = [record for record in caplog.records if record.name == "mail.send"]
    [record] = records
    assert (record.name, record.message, record.job, record.mid, record.attempt) == (
        "mail.send",
        "hello you",
        "mail.send",
        "mid-1",
        1,
    )
    assert (record.queue, record.more) == ("mine", 1)


tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def _seen() -> tuple[str, int]:
    """Leftovers of the previous job, and marks for the next job."""
    seen = tenant.get(), decimal.getcontext().prec
    tenant.set("acme")
    decimal.getcontext().prec = 5
    return seen


async def _aseen() -> tuple[str, int]:
    return _seen()


def test_job_leaves_context_variables_and_decimal_precision_as_they_were(
    registry: Registry, message: Callable[..., Message]
):
    def trial() -> tuple[list[tuple[str, int]], tuple[str, int]]:
        decimal.getcontext().prec = 11  # as a module does
        tenant.set("module")
        executor = Executor(registry)
        seen: list[tuple[str, int]] = []
        sync = job(name="sync", registry=registry)(lambda: seen.append(_seen()))
        for _ in range(2):
            call = executor.resolve("low", message(sync))
            assert isinstance(call, Call)
            assert executor.run(call).outcome == "done"

        @job(name="async", registry=registry)
        async def look() -> None:
            seen.append(await _aseen())

        for _ in range(2):
            call = executor.resolve("low", message(look))
            assert isinstance(call, Call)
            assert asyncio.run(executor.arun(call)).outcome == "done"
        return seen, (tenant.get(), decimal.getcontext().prec)

    assert copy_context().run(trial) == ([("module", 11)] * 4, ("module", 11))
