"""Write a method once for threads and asyncio, as a generator of steps.

The generator yields steps: script calls (`ScriptCall`, `Request`), waits for items (`ItemAt`), other blocking calls
(`Ask`) and sleeps (`Nap`). A driver performs each step and sends the result to the generator. `drive` performs the
steps in the calling thread, and `steps_async.run_async` performs them on an event loop.
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
    """A step to make one call on the node that serves `key`. The result is the raw reply.

    Attributes:
        whole: Whether a cancelled coroutine still waits for the reply. The generator then gets the reply in
            a LateReplyError, and can undo the call.
    """

    key: str
    state: CallState
    whole: bool = False


class ItemAt(NamedTuple):
    """A step to wait for the first item of the list at `key`. The result is the item, or None after the timeout."""

    key: str
    seconds: float


class Ask(NamedTuple, Generic[T]):
    """A step to make a blocking call. The result is the call's result.

    Attributes:
        undo: Undoes the call if the coroutine was cancelled before it got a truthy result.
        exclusive: Whether a cancelled coroutine waits until `call` and `undo` have ended, because threads must not
            share the called object.
    """

    call: Callable[[], T]
    undo: Callable[[T], object] | None = None
    exclusive: bool = False


class Nap(NamedTuple):
    """A step to sleep for a time or until a file descriptor is readable. The result lists readable descriptors."""

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
    """Make the call in this thread, and return the call's result."""
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
