"""Steps: the same for threads and for asyncio, with errors and cancellation where they belong."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time

import pytest

from jobq.client.facade import AsyncFacade, BlockingFacade, awaited, stepwise, wrapping
from jobq.client.steps import Ask, Nap, drive
from jobq.client.steps_async import asked, run_async
from tests.protocols.reliable.conftest import until


async def no_request(request):
    raise AssertionError(request)


class Counter(BlockingFacade):
    """Has a plain method, one of steps and one that makes another object."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int = 1) -> int:
        """Add a number."""
        self.count += number
        return self.count

    @stepwise
    def add_twice(self, number: int):
        """Add a number twice."""
        yield Ask(lambda: self.add(number))
        return (yield Ask(lambda: self.add(number)))

    def child(self) -> Counter:
        """Make another one."""
        return Counter()


class AsyncCounter(AsyncFacade[Counter]):
    add = awaited(Counter.add)
    add_twice = awaited(Counter.add_twice)


AsyncCounter.child = wrapping(Counter.child, AsyncCounter)


def test_facades_have_the_same_methods_under_the_same_documentation():
    async def life():
        counter = AsyncCounter(Counter())
        assert await counter.add(2) == 2
        assert await counter.add_twice(number=3) == 8
        assert await counter.child().add() == 1

    asyncio.run(life())
    assert Counter().add_twice(2) == 4
    assert AsyncCounter.add_twice.__doc__ == Counter.add_twice.__doc__ == "Add a number twice."
    assert inspect.iscoroutinefunction(AsyncCounter.add)


def test_sleep_ends_when_a_file_is_readable_and_names_it():
    woken, waking = os.pipe()
    idle, other = os.pipe()

    def steps():
        nothing = yield Nap(0.01, (woken,))
        os.write(waking, b"!")
        return nothing, (yield Nap(60, (idle, woken)))

    assert drive(steps(), no_request) == ([], [woken])
    os.read(woken, 1)
    assert asyncio.run(run_async(steps(), no_request, set())) == ([], [woken])
    for file in (woken, waking, idle, other):
        os.close(file)


@pytest.mark.parametrize("times", [1, 2])
def test_exclusive_call_has_ended_and_is_undone_before_the_next_begins(times):
    """However often its caller is cancelled."""
    log = []

    class Slow(BlockingFacade):
        @stepwise
        def call(self, name: str):
            def slow() -> str:
                log.append(f"{name} begins")
                time.sleep(0.1)
                log.append(f"{name} ends")
                return name

            return (yield Ask(slow, lambda name: log.append(f"{name} undone"), exclusive=True))

    class AsyncSlow(AsyncFacade[Slow]):
        call = awaited(Slow.call)

    async def life():
        slow = AsyncSlow(Slow())
        first = asyncio.create_task(slow.call("first"))
        while not log:
            await asyncio.sleep(0.001)
        for _ in range(times):
            first.cancel()
            await asyncio.sleep(0)
        second = asyncio.create_task(slow.call("second"))
        with pytest.raises(asyncio.CancelledError):
            await first
        await second

    asyncio.run(life())
    expected = ["first begins", "first ends", "first undone", "second begins", "second ends"]
    assert log == expected


def test_call_that_ends_after_its_caller_was_cancelled_is_undone():
    begun, go_on, undone = threading.Event(), threading.Event(), []

    def slow():
        begun.set()
        go_on.wait(30)
        return "got"

    async def live():
        under_way = asyncio.create_task(asked(Ask(slow, undone.append), set()))
        await asyncio.to_thread(begun.wait, 30)
        under_way.cancel()
        with pytest.raises(asyncio.CancelledError):
            await under_way
        assert not undone
        go_on.set()

    asyncio.run(live())
    until(lambda: undone == ["got"], "not undone")


def test_result_that_comes_with_the_cancellation_is_undone():
    undone = []

    async def live():
        under_way = asyncio.create_task(asked(Ask(lambda: ["got"], undone.append), set()))
        await asyncio.sleep(0)
        under_way.cancel()
        with pytest.raises(asyncio.CancelledError):
            await under_way

    asyncio.run(live())
    until(lambda: undone == [["got"]], "not undone")


def test_error_in_a_step_reaches_the_one_who_waits():
    def steps():
        try:
            yield Ask(lambda: 1 / 0)
        except ZeroDivisionError:
            came = yield Nap(0)
            return came

    assert asyncio.run(run_async(steps(), no_request, set())) == []
