"""Members of flows in the executor: results of steps as arguments, short results, and `current().flow`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

import jobq
from jobq.errors import CodecError, ConfigError, ResultNotStoredError, UnavailableError
from jobq.jobs.codec import FLOW_HEADER
from jobq.jobs.context import Call
from jobq.jobs.executor import Executor, RunHooks
from jobq.jobs.registry import Registry, job
from jobq.queue.types import Ending, Message

FLOW = {FLOW_HEADER: "x"}
MEMBER = "~import:1.r1.load.0"


def run(executor: Executor, message: Message, *, mid: str = MEMBER) -> Ending:
    call = executor.resolve("low", structs.replace(message, mid=mid))
    assert isinstance(call, Call)
    if call.job.is_async:
        return asyncio.run(executor.arun(call))
    return executor.run(call)


@pytest.mark.parametrize("is_async", [False, True])
def test_results_of_steps_are_filled_in_before_the_run_of_a_member_alone(
    registry: Registry, message: Callable[..., Message], is_async: bool
):
    seen: list[Any] = []

    async def awaited(value: int) -> None:
        seen.append(value)

    function = awaited if is_async else lambda value: seen.append(value)
    target = job(name="work", registry=registry)(function)
    hooks = RunHooks(fill_inputs=lambda call: structs.replace(call, args=[call.args[0] + 1]))
    executor = Executor(registry, hooks=hooks)
    assert run(executor, message(target, 1, headers=FLOW)).outcome == "done"
    assert run(executor, message(target, 1, headers=FLOW), mid="other").outcome == "done"
    assert seen == [2, 1]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(UnavailableError("away"), "snooze"), (CodecError("bad header"), "dead"),
     (ResultNotStoredError("no result of step a"), "retry"), (ValueError("a bug"), "unknown")],
)  # fmt: skip
def test_member_whose_results_cannot_be_read_waits_is_retried_or_dead(
    registry: Registry, message: Callable[..., Message], error: Exception, outcome: str
):
    target = job(name="work", registry=registry)(print)
    executor = Executor(registry)
    ending = run(executor, message(target, 1, headers=FLOW))
    assert (ending.outcome, "this process can't read" in ending.reason) == ("dead", True)

    def fill(call: Call) -> Call:
        raise error

    executor = Executor(registry, hooks=RunHooks(fill_inputs=fill))
    ending = run(executor, message(target, 1, headers=FLOW))
    assert ending.outcome == outcome
    if outcome == "dead":
        assert str(error) in ending.reason


def test_result_of_a_member_is_64_kib_at_most(registry: Registry, message: Callable[..., Message]):
    target = job(name="work", registry=registry, result_ttl=60)(lambda: "x" * 65_536)
    executor = Executor(registry)
    assert run(executor, message(target), mid="other").outcome == "done"
    ending = run(executor, message(target))
    assert ending.outcome == "dead"
    assert "65,545 bytes; at most 65,536 are allowed. Store the data elsewhere" in ending.reason


def test_member_has_its_flow_and_other_messages_have_none(
    registry: Registry, message: Callable[..., Message]
):
    flow: Any = object()
    seen: list[Any] = []
    target = job(name="work", registry=registry, retries=0)(
        lambda: seen.append((jobq.current().flow, jobq.current().flow))
    )
    executor = Executor(registry, hooks=RunHooks(flow_of=lambda context: flow))
    assert run(executor, message(target)).outcome == "done"
    assert seen == [(flow, flow)]
    ending = run(executor, message(target), mid="other")
    assert "message other is not part of a flow" in ending.reason
    assert ConfigError.__name__ in ending.reason
