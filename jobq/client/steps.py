"""Steps: write a method once for threads and asyncio. The method yields one step at a time, and a driver performs it.

Steps are a generator. It yields calls (`ScriptCall`, `Request`), waits for items (`ItemAt`), other blocking calls
(`Ask`) and sleeps (`Nap`), receives the result of each, and returns its own result. `drive` runs the steps in the
calling thread, `steps_async.run_async` on an event loop.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Generator
from typing import Any, Generic, NamedTuple, TypeVar

from jobq.client.connection import Client
from jobq.client.numbered_calls import CallState, ScriptCall
from jobq.client.waiter import first_item

T = TypeVar("T")
R = TypeVar("R")


class Request(NamedTuple):
    """Make one call on the node that serves `key`. The step's result is the raw reply.

    Attributes:
        whole: If the coroutine is cancelled during the call, it still gets the reply, in a LateReplyError. So the steps
            can undo the call before the cancellation continues.
    """

    key: str
    state: CallState
    whole: bool = False


class ItemAt(NamedTuple):
    """Wait for the first item of the list at `key`. The step's result is the item, or None if no item came in time."""

    key: str
    seconds: float


class Ask(NamedTuple, Generic[T]):
    """Make a blocking call. The step's result is the call's result.

    Attributes:
        undo: Undoes a call whose result is truthy, if the coroutine was cancelled before it got the result.
        exclusive: A cancelled coroutine waits until the call has ended and was undone, because threads must not share
            the called object.
    """

    call: Callable[[], T]
    undo: Callable[[T], object] | None = None
    exclusive: bool = False


class Nap(NamedTuple):
    """Sleep for a time, or until a file descriptor is readable. The step's result lists the readable descriptors."""

    seconds: float
    files: tuple[int, ...] = ()


Step = ScriptCall[Any] | Request | ItemAt | Ask[Any] | Nap
Steps = Generator[Step, Any, T]


def ask(request: ScriptCall[T]) -> Steps[T]:
    """Return steps that make one call, with the type of its result: `found = yield from ask(request)`."""
    result: T = yield request
    return result


def drive(steps: Steps[T], run: Callable[[Any], Any]) -> T:
    """Run the steps in this thread, and return their result; `run` makes the calls."""
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


def call_on(client: Client, call: ScriptCall[T] | Request | ItemAt) -> Any:
    """Make one call that steps have yielded, in this thread, and return its result."""
    if isinstance(call, Request):
        return client.perform(call.key, call.state)
    if isinstance(call, ItemAt):
        return first_item(client, call.key, call.seconds)
    return client.ask(call)


def _done(step: Step, run: Callable[[Any], Any]) -> Any:
    if isinstance(step, ScriptCall | Request | ItemAt):
        return run(step)
    return step.call() if isinstance(step, Ask) else nap(step)


def nap(step: Nap) -> list[int]:
    """Sleep in this thread; return the file descriptors that became readable."""
    if not step.files:
        time.sleep(step.seconds)
        return []
    with selectors.DefaultSelector() as selector:
        for file in step.files:
            selector.register(file, selectors.EVENT_READ)
        return [key.fd for key, _ in selector.select(step.seconds)]
