"""Async functions behind decorators, and jobs that return work which nobody does."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import starmap
from typing import Any

import pytest

from jobq.jobs.context import Call
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.jobs.results import decode_result
from jobq.queue.types import Ending, Message

ran: list[int] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    """Each test starts with no run."""
    ran.clear()


@pytest.fixture
def outcome(registry: Registry, message: Callable[..., Message]) -> Callable[..., Ending]:
    """outcome(function, …options): the ending of one run in the way that its kind of job runs."""

    def run(function: Any, **options: Any) -> Ending:
        made = job(name="f", registry=registry, **options)(function)
        executor = Executor(registry)
        call = executor.resolve("low", message(made))
        assert isinstance(call, Call)
        return asyncio.run(executor.arun(call)) if made.is_async else executor.run(call)

    return run


async def work() -> int:
    await asyncio.sleep(0)
    ran.append(1)
    return 7


def steps() -> Iterator[int]:
    ran.append(1)
    yield 7


async def asteps() -> AsyncIterator[int]:
    ran.append(1)
    yield 7


def with_wraps(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def without_wraps(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def test_async_function_is_awaited_when_plain_decorators_wrap_it(outcome: Callable[..., Ending]):
    ended = outcome(with_wraps(with_wraps(work)), result_ttl=9)
    assert (ended.outcome, decode_result(ended.result, "f", "m"), ran) == ("done", 7, [1])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("options", [{}, {"timeout": 9}, {"result_ttl": 9}])
@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (without_wraps(work), "f returned a coroutine, .*async def.*functools.wraps"),
        (with_wraps(steps), r"f returned a generator, .*list\(…\)"),
        (without_wraps(steps), r"f returned a generator, .*list\(…\)"),
        (lambda: map(ran.append, [1]), r"f returned a map, .*list\(…\)"),
        (lambda: filter(ran.append, [1]), r"f returned a filter, .*list\(…\)"),
        (lambda: starmap(ran.append, [[1]]), r"f returned a starmap, .*list\(…\)"),
        (without_wraps(asteps), "f returned an async_generator, .*async for"),
    ],
)
def test_job_is_dead_when_it_returns_work_that_nobody_does(
    outcome: Callable[..., Ending], function: Any, remedy: str, options: dict[str, Any]
):
    ended = outcome(function, **options)
    assert (ended.outcome, ran) == ("dead", [])
    assert re.match(remedy, ended.reason), ended.reason


@pytest.mark.parametrize("make", [work, steps, asteps])
@pytest.mark.parametrize("options", [{}, {"timeout": 9}])
def test_async_job_is_dead_when_it_returns_work_that_nobody_does(
    outcome: Callable[..., Ending], make: Callable[..., Any], options: dict[str, Any]
):
    async def hand_on() -> Any:
        return make()

    ended = outcome(hand_on, **options)
    assert (ended.outcome, ran) == ("dead", [])
    assert "its work did not run" in ended.reason


def test_task_that_an_async_job_returns_is_cancelled(outcome: Callable[..., Ending]):
    tasks: list[asyncio.Task[int]] = []

    async def start() -> Any:
        tasks.append(asyncio.ensure_future(work()))
        return tasks[0]

    assert outcome(start).outcome == "dead"
    assert tasks[0].cancelled() and not ran


@pytest.mark.parametrize("value", [None, 1, "text", [1], {"a": 1}, object(), iter([1]), range(2)])
def test_job_is_done_when_it_returns_a_value(outcome: Callable[..., Ending], value: Any):
    assert outcome(lambda: value).outcome == "done"


def test_error_of_a_decorator_with_a_loop_of_its_own_says_what_to_do(
    outcome: Callable[..., Ending],
):
    @functools.wraps(work)
    def own_loop() -> int:
        return asyncio.run(work())

    with pytest.warns(RuntimeWarning, match="never awaited"):
        ended = outcome(own_loop, retries=0)
    assert ended.outcome == "dead" and "remove the decorator" in ended.reason
