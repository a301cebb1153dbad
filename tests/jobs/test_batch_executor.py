"""Calls of a batch job run together, and each gets its own outcome."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest

import jobq
from jobq.errors import ConfigError, Dead, JobAborted, JobTimeout, NoCurrentJobError, Retry, Snooze
from jobq.events import decode
from jobq.jobs.batch_executor import BatchExecutor
from jobq.jobs.calls import Calls
from jobq.jobs.codec import encode
from jobq.jobs.context import Call
from jobq.jobs.executor import RunHooks
from jobq.jobs.registry import Registry
from jobq.jobs.retry import fixed
from jobq.queue.types import Ending, Message


class Batches:
    """Runs calls of a job together; the endings by position, in the order in which they came."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.took: list[tuple[int, Ending]] = []

    def calls(self, job: Any, arguments: list[tuple[Any, ...]], **options: Any) -> list[Call]:
        """Calls as a worker resolves them."""
        self.executor = BatchExecutor(self.registry, worker="here", hooks=RunHooks(**options))
        calls = []
        for number, args in enumerate(arguments):
            content = encode(job.name, args, {}, 1, None, job.overrides)
            message = Message(
                f"mid-{number}", content, 1, 0, number, f"first.{number}", f"token.{number}", 0
            )
            call = self.executor.resolve("low", message)
            assert isinstance(call, Call)
            calls.append(call)
        return calls

    def __call__(self, job: Any, arguments: list[tuple[Any, ...]], **options: Any) -> list[Ending]:
        calls = self.calls(job, arguments, **options)
        self.took = []
        self.executor.run_calls(calls, lambda *ended: self.took.append(ended))
        by_position = dict(self.took)
        return [by_position[position] for position in range(len(calls))]


@pytest.fixture
def batches(registry: Registry) -> Batches:
    return Batches(registry)


def outcomes(endings: list[Ending]) -> list[str]:
    return [ending.outcome for ending in endings]


def results(endings: list[Ending]) -> list[Any]:
    return [json.loads(ending.result or b"null")["ok"] for ending in endings]


def batch_job(registry: Registry, function: Callable[..., Any], **options: Any) -> Any:
    options = {
        "batch": 10,
        "name": "mails.send",
        "retry": fixed(7),
        "registry": registry,
        **options,
    }
    return jobq.job(**options)(function)


def test_open_calls_are_done_when_the_function_returns(registry: Registry, batches: Batches):
    seen: list[Any] = []

    def send(calls: Calls[str, int]) -> None:
        seen.extend((call.mid, call.attempt, *call.args) for call in calls)

    ended = batches(batch_job(registry, send), [("a", 1), ("b", 2)])
    assert seen == [("mid-0", 1, "a", 1), ("mid-1", 1, "b", 2)]
    assert outcomes(ended) == ["done", "done"]
    assert [(ending.mid, ending.token) for ending in ended] == [
        ("mid-0", "token.0"),
        ("mid-1", "token.1"),
    ]


def test_exception_fails_each_open_call_and_leaves_ended_calls_alone(
    registry: Registry, batches: Batches
):
    def send(calls: Calls[str]) -> None:
        calls.done(0)
        calls.fail(1, Dead("no such address"))
        raise ValueError("server away")

    ended = batches(batch_job(registry, send, retries=3), [("a",), ("b",), ("c",), ("d",)])
    assert outcomes(ended) == ["done", "dead", "retry", "retry"]
    assert [position for position, _ in batches.took] == [0, 1, 2, 3]
    assert (ended[1].reason, ended[2].backoff) == ("no such address", 7)
    assert "server away" in ended[3].traceback


def test_fail_ends_a_call_by_the_rules_of_its_own_message(registry: Registry, batches: Batches):
    errors = [Retry(3), Snooze(4), ValueError("bad"), Dead("gone")]

    def send(calls: Calls[int]) -> None:
        for at, error in enumerate(errors):
            calls.fail(at, error)

    ended = batches(batch_job(registry, send), [(at,) for at in range(5)])
    assert outcomes(ended) == ["retry", "snooze", "retry", "dead", "done"]
    assert [ending.backoff for ending in ended[:3]] == [3, 4, 7]


def test_results_come_from_the_returned_list_and_from_done(registry: Registry, batches: Batches):
    def double(calls: Calls[int]) -> list[int]:
        calls.done(1, -1)
        return [2 * call.args[0] for call in calls]

    ended = batches(batch_job(registry, double, result_ttl=60), [(1,), (2,), (3,)])
    assert results(ended) == [2, -1, 6]


@pytest.mark.parametrize("value", [[1], "ab", 5, {"a": 1}])
def test_results_that_fit_no_call_make_every_open_call_dead(
    registry: Registry, batches: Batches, value: Any
):
    def double(calls: Calls[int]) -> Any:
        calls.done(0, 1)
        return value

    ended = batches(batch_job(registry, double, result_ttl=60), [(1,), (2,), (3,)])
    assert outcomes(ended) == ["done", "dead", "dead"]
    assert "one result per call" in ended[1].reason


def test_result_that_json_can_not_carry_makes_only_its_call_dead(
    registry: Registry, batches: Batches
):
    def double(calls: Calls[int]) -> Any:
        calls.done(0, object())
        return [1, 2, object()]

    ended = batches(batch_job(registry, double, result_ttl=60), [(1,), (2,), (3,)])
    assert outcomes(ended) == ["dead", "done", "dead"]


def test_returned_value_is_ignored_without_a_result_ttl(registry: Registry, batches: Batches):
    ended = batches(batch_job(registry, lambda calls: 5), [(1,), (2,)])
    assert outcomes(ended) == ["done", "done"]
    assert [ending.result for ending in ended] == [None, None]


def test_last_call_ends_when_the_function_has_returned(registry: Registry, batches: Batches):
    seen: list[Any] = []

    def send(calls: Calls[int]) -> None:
        for at in range(len(calls)):
            calls.done(at)
            seen.append(len(batches.took))

    batches(batch_job(registry, send), [(1,), (2,), (3,)])
    assert (seen, len(batches.took)) == ([1, 2, 2], 3)


def test_error_after_the_last_end_is_logged(
    registry: Registry, batches: Batches, caplog: pytest.LogCaptureFixture
):
    def send(calls: Calls[int]) -> None:
        calls.done(0)
        raise ValueError("too late")

    assert outcomes(batches(batch_job(registry, send), [(1,)])) == ["done"]
    assert "mails.send raised after all its calls had ended: ValueError: too late" in caplog.text


def test_threads_of_the_function_may_end_calls(registry: Registry, batches: Batches):
    def send(calls: Calls[int]) -> None:
        threads = [threading.Thread(target=calls.done, args=(at, at)) for at in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    ended = batches(batch_job(registry, send, result_ttl=60), [(at,) for at in range(50)])
    assert results(ended) == list(range(50))


def test_call_ends_once_when_a_thread_ends_it_as_the_function_returns(
    registry: Registry, batches: Batches
):
    threads, begun, returned = [], threading.Event(), threading.Event()

    class Slow(Exception):
        def __str__(self) -> str:
            if threading.current_thread() in threads:
                begun.set()
                returned.wait(0.05)
            return "slow"

    def function(calls: Calls[int]) -> None:
        threads.append(threading.Thread(target=calls.fail, args=(0, Slow())))
        threads[0].start()
        begun.wait()

    job = batch_job(registry, function)
    calls = batches.calls(job, [(0,), (1,)])
    batches.executor.run_calls(calls, lambda *ended: batches.took.append(ended))
    returned.set()
    threads[0].join()
    assert sorted((at, ending.outcome) for at, ending in batches.took) == [
        (0, "retry"),
        (1, "done"),
    ]


@pytest.mark.parametrize("error", [None, ValueError("no"), JobAborted("stop")])
@pytest.mark.parametrize("is_async", [False, True])
def test_calls_that_were_kept_can_not_end_after_the_run(
    registry: Registry, batches: Batches, error: BaseException | None, is_async: bool
):
    kept: list[Calls[Any]] = []

    def function(calls: Calls[int]) -> None:
        kept.append(calls)
        if error is not None:
            raise error

    async def afunction(calls: Calls[int]) -> None:
        function(calls)

    job = batch_job(registry, afunction if is_async else function)
    calls = batches.calls(job, [(0,), (1,)])

    def take(*ended: Any) -> None:
        batches.took.append(ended)

    try:
        if is_async:
            asyncio.run(batches.executor.arun_calls(calls, take))
        else:
            batches.executor.run_calls(calls, take)
    except JobAborted:
        assert not batches.took
    took = list(batches.took)
    for end in (lambda: kept[0].done(0), lambda: kept[0].fail(1, ValueError())):
        with pytest.raises(ConfigError, match="its batch has already ended"):
            end()
    assert batches.took == took


def test_call_ends_only_once(registry: Registry, batches: Batches):
    def send(calls: Calls[int]) -> None:
        calls.done(-1)
        with pytest.raises(ConfigError, match="call 1 of the batch is already done"):
            calls.fail(1, ValueError())
        with pytest.raises(IndexError):
            calls.done(2)
        with pytest.raises(TypeError, match="the error must be an exception"):
            calls.fail(0, "text")  # type: ignore[arg-type]
        assert calls.open == [0]

    assert outcomes(batches(batch_job(registry, send), [(1,), (2,)])) == ["done", "done"]


def test_current_names_the_items_of_the_argument(registry: Registry, batches: Batches):
    def send(calls: Calls[int]) -> None:
        with pytest.raises(NoCurrentJobError, match=r"use calls\[i\]"):
            jobq.current()

    assert outcomes(batches(batch_job(registry, send), [(1,)])) == ["done"]


def test_middleware_runs_once_with_all_calls(registry: Registry, batches: Batches):
    seen: list[Any] = []

    class Noted:
        def run(self, context: Any, next: Callable[[], Any]) -> Any:
            seen.append((context.job, context.mid, len(context.calls)))
            return next()

        async def arun(self, context: Any, next: Callable[[], Any]) -> Any: ...

    registry.middleware.add(Noted())
    assert (
        outcomes(batches(batch_job(registry, lambda calls: None), [(1,), (2,), (3,)]))
        == ["done"] * 3
    )
    assert seen == [("mails.send", "mid-0 (+2)", 3)]


def test_middleware_sees_results_that_fit_no_call(registry: Registry, batches: Batches):
    seen: list[Any] = []

    class Noted:
        def run(self, context: Any, next: Callable[[], Any]) -> Any:
            try:
                return next()
            except Exception as error:
                seen.append(type(error).__name__)
                raise

        arun = None

    registry.middleware.add(Noted())
    batches(batch_job(registry, lambda calls: [], result_ttl=60), [(1,)])
    assert seen == ["ResultRefusedError"]


def test_timeout_binds_the_function_and_fails_open_calls(registry: Registry, batches: Batches):
    limits: list[float] = []

    @contextmanager
    def soft_timeout(seconds: float):
        limits.append(seconds)
        yield
        raise JobTimeout("ran past its timeout")

    def send(calls: Calls[int]) -> None:
        calls.done(0)

    ended = batches(batch_job(registry, send, timeout=5), [(1,), (2,)], soft_timeout=soft_timeout)
    assert (limits, outcomes(ended)) == ([5], ["done", "retry"])


@pytest.mark.parametrize("was_taken", [False, True])
def test_timeout_during_a_delivery_loses_no_ending(
    registry: Registry, batches: Batches, was_taken: bool
):
    def take(position: int, ending: Ending) -> None:
        is_first = not interrupted
        if was_taken or not is_first:
            batches.took.append((position, ending))
        if is_first:
            interrupted.append(True)
            raise JobTimeout("ran past its timeout")

    interrupted: list[bool] = []
    calls = batches.calls(batch_job(registry, lambda calls: calls.done(0)), [(1,), (2,)])
    batches.executor.run_calls(calls, take)
    ended = dict(batches.took)
    assert outcomes([ended[0], ended[1]]) == ["done", "retry"]


def test_stop_passes_on_and_keeps_the_endings_so_far(registry: Registry, batches: Batches):
    def send(calls: Calls[int]) -> None:
        calls.done(1)
        raise JobAborted("stop")

    with pytest.raises(JobAborted):
        batches(batch_job(registry, send), [(1,), (2,), (3,)])
    assert [(at, ending.outcome) for at, ending in batches.took] == [(1, "done")]


def test_lost_call_has_no_valid_lease(registry: Registry, batches: Batches):
    seen: list[bool] = []
    made = batch_job(registry, lambda calls: seen.extend(call.lease_valid() for call in calls))
    calls = batches.calls(made, [(1,), (2,)])
    batches.executor.run_calls(calls, lambda *_: None, is_lost=lambda position: position == 1)
    assert seen == [True, False]


def test_each_call_has_its_own_context(registry: Registry, batches: Batches):
    reports: list[Any] = []

    def send(calls: Calls[int]) -> None:
        for call in calls:
            call.progress(1, note=call.mid)
            call.checkpoint(call.args[0])
        assert [call.checkpoint_value for call in calls] == [1, 2]
        assert [call.generation for call in calls] == ["first.0", "first.1"]

    kept: dict[str, str] = {}

    def keep(queue: str, mid: str, token: str, value: str) -> str:
        return kept.setdefault(mid, value)

    ended = batches(
        batch_job(registry, send), [(1,), (2,)],
        report_progress=lambda *report: reports.append(report[1:3]) or True, checkpoint=keep,
    )  # fmt: skip
    assert outcomes(ended) == ["done", "done"]
    assert reports == [("mid-0", "token.0"), ("mid-1", "token.1")]


def test_each_call_has_an_event_and_a_log_line(registry: Registry, batches: Batches):
    class Lines:
        def __init__(self) -> None:
            self.words: list[str] = []

        def started(self, call: Call) -> None:
            self.words.append(f"start {call.message.mid}")

        def done(self, call: Call, seconds: float) -> None:
            self.words.append(f"done {call.message.mid}")

    lines = Lines()

    def send(calls: Calls[int]) -> None:
        calls.fail(0, ValueError("bad"))

    ended = batches(batch_job(registry, send), [(1,), (2,)], log=lines, counted=True)
    written = [decode(f"{one.outcome}\x1f{one.mid}\x1f1\x1f{one.record}".encode()) for one in ended]
    assert [(one.job, one.error) for one in written] == [
        ("mails.send", "ValueError"),
        ("mails.send", ""),
    ]
    assert lines.words == ["start mid-0", "start mid-1", "done mid-1"]
    assert ended[1].figures[:2] == ("mails.send", 1)


def test_log_of_a_failed_call_names_its_message(
    registry: Registry, batches: Batches, caplog: pytest.LogCaptureFixture
):
    def send(calls: Calls[int]) -> None:
        calls.fail(1, ValueError("bad"))

    with caplog.at_level(logging.WARNING, "jobq.job"):
        batches(batch_job(registry, send), [(1,), (2,)])
    assert [record.mid for record in caplog.records] == ["mid-1"]  # type: ignore[attr-defined]


class AtMost:
    """A limit that admits so many starts."""

    name, rank, declaration = "mails", 1, "2"

    def __init__(self, left: int) -> None:
        self.left, self.inside = left, 0
        self.granted, self.retry_after = True, 1.5

    def admit(self, call: Call, worker: str) -> Any:
        self.left -= 1
        if self.left < 0:
            return type("Refused", (), {"granted": False, "retry_after": 1.5})()
        self.inside += 1
        return self

    def leave(self) -> None:
        self.inside -= 1

    undo = leave
    aadmit = admit


def test_limits_admit_each_call_and_the_others_wait(registry: Registry, batches: Batches):
    limit, seen = AtMost(2), []
    made = batch_job(
        registry, lambda calls: seen.append((len(calls), limit.inside)), limits=[limit]
    )
    ended = batches(made, [(1,), (2,), (3,)])
    assert outcomes(ended) == ["done", "done", "snooze"]
    assert (ended[2].backoff, seen, limit.inside) == (1.5, [(2, 2)], 0)


def test_function_is_not_called_when_no_call_is_admitted(registry: Registry, batches: Batches):
    seen: list[Any] = []
    ended = batches(batch_job(registry, seen.append, limits=[AtMost(0)]), [(1,), (2,)])
    assert (outcomes(ended), seen) == (["snooze", "snooze"], [])


# Async functions.


def run_async(batches: Batches, calls: list[Call], **how: Any) -> list[Ending]:
    """The endings by position."""
    batches.took = []
    take = lambda *ended: batches.took.append(ended)  # noqa: E731
    asyncio.run(batches.executor.arun_calls(calls, take, **how))
    by_position = dict(batches.took)
    return [by_position[position] for position in range(len(calls))]


def test_async_calls_end_one_by_one(registry: Registry, batches: Batches):
    seen: list[int] = []

    async def double(calls: Calls[int]) -> list[int]:
        calls.fail(0, Dead("no use"))
        await asyncio.sleep(0)
        seen.append(len(batches.took))
        return [2 * call.args[0] for call in calls]

    calls = batches.calls(batch_job(registry, double, result_ttl=60), [(1,), (2,), (3,)])
    ended = run_async(batches, calls)
    assert (outcomes(ended), seen) == (["dead", "done", "done"], [1])
    assert results(ended[1:]) == [4, 6]


def test_async_timeout_fails_open_calls(registry: Registry, batches: Batches):
    async def wait(calls: Calls[int]) -> None:
        calls.done(0)
        await asyncio.sleep(60)

    calls = batches.calls(batch_job(registry, wait, timeout=0.01), [(1,), (2,)])
    ended = run_async(batches, calls)
    assert outcomes(ended) == ["done", "retry"]
    assert "ran past its timeout of 0.01 s" in ended[1].traceback


def test_async_stop_passes_on_and_keeps_the_endings_so_far(registry: Registry, batches: Batches):
    async def wait(calls: Calls[int]) -> None:
        calls.done(1)
        await asyncio.sleep(60)

    calls = batches.calls(batch_job(registry, wait), [(1,), (2,)])

    async def main() -> None:
        take = lambda *ended: batches.took.append(ended)  # noqa: E731
        task = asyncio.create_task(batches.executor.arun_calls(calls, take, lambda: True))
        while not batches.took:
            await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert [(at, ending.outcome) for at, ending in batches.took] == [(1, "done")]


def test_async_middleware_runs_once_and_limits_admit_each_call(
    registry: Registry, batches: Batches
):
    seen: list[Any] = []

    class Noted:
        run = None

        async def arun(self, context: Any, next: Callable[[], Any]) -> Any:
            seen.append((context.mid, context.is_of(calls[2])))
            return await next()

    class Limit(AtMost):
        async def aadmit(self, call: Call, worker: str) -> Any:
            return self.admit(call, worker)

        async def aleave(self) -> None:
            self.leave()

    async def count(calls: Calls[int]) -> None:
        seen.append(len(calls))

    registry.middleware.add(Noted())
    limit = Limit(2)
    calls = batches.calls(batch_job(registry, count, limits=[limit]), [(1,), (2,), (3,)])
    assert outcomes(run_async(batches, calls)) == ["done", "done", "snooze"]
    assert (seen, limit.inside) == ([("mid-0 (+1)", True), 2], 0)
