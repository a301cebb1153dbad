"""A method written once for threads and for asyncio: it yields what to do next, and a driver does it.

Steps are a generator. It yields calls (`ScriptCall`, `Request`), other blocking calls (`Ask`) and sleeps (`Nap`), gets
back what each gave, and returns its result. `drive` does the steps in the calling thread, `run_async` on an event loop.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from jobq.client.aio import LateReplyError
from jobq.client.numbered_calls import CallState, ScriptCall

T = TypeVar("T")
R = TypeVar("R")


class Request(NamedTuple):
    """Make one call on the node that serves `key`; its raw reply is sent back.

    whole: a coroutine that is cancelled during the call gets the reply nevertheless, as LateReplyError: so the steps
    can take back what the call brought, before the cancellation goes on.
    """

    key: str
    state: CallState
    whole: bool = False


class Ask(NamedTuple, Generic[T]):
    """Make a blocking call; its result is sent back.

    undo: takes back a result (unless it is falsy) that came too late: the coroutine that asked was cancelled.
    exclusive: the cancelled coroutine waits until the call has ended and was undone, since what it calls is not to
    be shared by threads.
    """

    call: Callable[[], T]
    undo: Callable[[T], object] | None = None
    exclusive: bool = False


class Nap(NamedTuple):
    """Sleep for a time, or until one of the files is readable; the readable ones are sent back."""

    seconds: float
    files: tuple[int, ...] = ()


Step = ScriptCall[Any] | Request | Ask[Any] | Nap
Steps = Generator[Step, Any, T]


def ask(request: ScriptCall[T]) -> Steps[T]:
    """The steps of one request, typed: `found = yield from ask(request)`."""
    result: T = yield request
    return result


def drive(steps: Steps[T], run: Callable[[Any], Any]) -> T:
    """Do the steps in this thread; `run` makes the calls."""
    try:
        step = next(steps)
        while True:
            try:
                done = _done(step, run)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(done)
    except StopIteration as end:
        result: T = end.value
        return result


def _done(step: Step, run: Callable[[Any], Any]) -> Any:
    if isinstance(step, ScriptCall | Request):
        return run(step)
    return step.call() if isinstance(step, Ask) else nap(step)


def nap(step: Nap) -> list[int]:
    """Sleep in this thread."""
    if not step.files:
        time.sleep(step.seconds)
        return []
    with selectors.DefaultSelector() as selector:
        for file in step.files:
            selector.register(file, selectors.EVENT_READ)
        return [key.fd for key, _ in selector.select(step.seconds)]


async def run_async(
    steps: Steps[T],
    run: Callable[[Any], Awaitable[Any]],
    settling: set[asyncio.Future[Any]],
) -> T:
    """Do the steps on the running loop; `run` makes the calls.

    settling: where calls are noted that a cancelled coroutine left behind, until they have ended.
    """
    try:
        step = next(steps)
        while True:
            try:
                done = await _adone(step, run, settling)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(done)
    except StopIteration as end:
        result: T = end.value
        return result
    except LateReplyError:
        raise asyncio.CancelledError from None


async def _adone(
    step: Step,
    run: Callable[[Any], Awaitable[Any]],
    settling: set[asyncio.Future[Any]],
) -> Any:
    if isinstance(step, ScriptCall | Request):
        return await run(step)
    if isinstance(step, Nap):
        return await anap(step)
    return await asked(step, settling)


async def asked(step: Ask[T], settling: set[asyncio.Future[Any]]) -> T:
    """The result of a call that is made in a thread."""
    lock, results, cancelled = threading.Lock(), list[T](), threading.Event()

    def call() -> T:
        result = step.call()
        with lock:
            results.append(result)
            late = cancelled.is_set()
        if late and step.undo and result:
            step.undo(result)
        return result

    under_way = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(under_way)
    except asyncio.CancelledError:
        with lock:
            cancelled.set()
            missed = results[0] if results else None
        left: asyncio.Future[Any] = under_way
        if missed and step.undo and step.exclusive:
            left = asyncio.ensure_future(asyncio.to_thread(step.undo, missed))
        elif missed and step.undo:
            # Not on the loop, which may be about to end.
            threading.Thread(target=partial(step.undo, missed)).start()
        left.add_done_callback(_retrieve)
        if step.exclusive:
            settling.add(left)
            left.add_done_callback(settling.discard)
            await asyncio.shield(asyncio.wait([left]))
        raise


def _retrieve(under_way: asyncio.Future[Any]) -> None:
    """A call that nobody waits for may fail."""
    if not under_way.cancelled():
        under_way.exception()


async def anap(step: Nap) -> list[int]:
    """Sleep on the running loop."""
    if not step.files:
        await asyncio.sleep(step.seconds)
        return []
    loop, ready, came = asyncio.get_running_loop(), list[int](), asyncio.Event()

    def readable(file: int) -> None:
        if file not in ready:
            ready.append(file)
        came.set()

    for file in step.files:
        loop.add_reader(file, readable, file)
    try:
        await asyncio.wait_for(came.wait(), step.seconds)
    except TimeoutError:
        pass
    finally:
        for file in step.files:
            loop.remove_reader(file)
    return ready
