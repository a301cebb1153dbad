"""Run steps on an event loop without blocking it; for threads, see `steps.drive`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from jobq.client.aio import AsyncClient, LateReplyError
from jobq.client.item_waits import item_waits
from jobq.client.numbered_calls import ScriptCall
from jobq.client.steps import Ask, ItemAt, Nap, Request, Step, Steps
from jobq.client.threads import in_thread

T = TypeVar("T")


async def run_async(
    steps: Steps[T],
    run: Callable[[Any], Awaitable[Any]],
    settling: set[asyncio.Future[Any]],
) -> T:
    """Run the steps on the running event loop, and return their result.

    Args:
        run: Makes the calls.
        settling: Holds unfinished calls of cancelled coroutines until the calls have ended.
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


def acall_on(client: AsyncClient, call: ScriptCall[T] | Request | ItemAt) -> Awaitable[Any]:
    """Make the call on the running event loop; return an awaitable for its result."""
    if isinstance(call, Request):
        return client.perform(call.key, call.state, whole=call.whole)
    if isinstance(call, ItemAt):
        return item_waits(client).first(call.key, call.seconds)
    return client.ask(call)


async def _adone(
    step: Step,
    run: Callable[[Any], Awaitable[Any]],
    settling: set[asyncio.Future[Any]],
) -> Any:
    if isinstance(step, ScriptCall | Request | ItemAt):
        return await run(step)
    if isinstance(step, Nap):
        return await anap(step)
    return await asked(step, settling)


async def asked(step: Ask[T], settling: set[asyncio.Future[Any]]) -> T:
    """Make a blocking call in a thread and return its result. If the coroutine is cancelled, undo the call."""
    lock, results, cancelled = threading.Lock(), list[T](), threading.Event()

    def call() -> T:
        result = step.call()
        with lock:
            results.append(result)
            late = cancelled.is_set()
        if late and step.undo and result:
            step.undo(result)
        return result

    under_way = asyncio.ensure_future(in_thread(call))
    try:
        return await asyncio.shield(under_way)
    except asyncio.CancelledError:
        with lock:
            cancelled.set()
            missed = results[0] if results else None
        left: asyncio.Future[Any] = under_way
        if missed and step.undo and step.exclusive:
            left = asyncio.ensure_future(in_thread(step.undo, missed))
        elif missed and step.undo:
            # In a thread of its own, because the loop may be about to end.
            threading.Thread(target=partial(step.undo, missed)).start()
        left.add_done_callback(_retrieve)
        if step.exclusive:
            settling.add(left)
            left.add_done_callback(settling.discard)
            await asyncio.shield(asyncio.wait([left]))
        raise


def _retrieve(under_way: asyncio.Future[Any]) -> None:
    """Mark the error of a call as retrieved, because nobody waits for the call any longer."""
    if not under_way.cancelled():
        under_way.exception()


async def anap(step: Nap) -> list[int]:
    """Sleep without blocking the running event loop; return the file descriptors that became readable."""
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
