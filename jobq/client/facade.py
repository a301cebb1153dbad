"""Offer a blocking class and an asyncio class without writing each method twice.

The blocking class implements the methods. A method that waits, or whose call can be sent together with other calls, is
`@stepwise`: it consists of steps (see `steps`). The asyncio class lists the methods that it offers, and delegates them
to an object of the blocking class, `blocking`::

    class AsyncTopic(AsyncFacade[Topic]):
        append = awaited(Topic.append)           # a plain method would run in a thread
        reader = wrapping(Topic.reader, AsyncReader)

    await AsyncTopic(Topic("orders")).append(b"x")

Signatures and docstrings come from the blocking class, and type checkers see them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from jobq.client.aio import async_client
from jobq.client.connection import Client
from jobq.client.numbered_calls import ScriptCall
from jobq.client.steps import Request, Steps, call_on, drive
from jobq.client.steps_async import acall_on, run_async
from jobq.client.threads import in_thread

B = TypeVar("B")
P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


class BlockingFacade:
    """Base of blocking classes: it runs steps in the calling thread."""

    client: Client

    def perform(self, steps: ScriptCall[T] | Steps[T]) -> T:
        """Make one call or run steps in this thread, and return the result."""
        if isinstance(steps, ScriptCall | Request):
            result: T = self._call(steps)
            return result
        return drive(steps, self._call)

    def _call(self, call: Any) -> Any:
        return call_on(self.client, call)


class AsyncFacade(Generic[B]):
    """Base of asyncio classes: it runs the methods of `blocking` on an event loop."""

    blocking: B

    def __init__(self, blocking: B) -> None:
        self.blocking = blocking
        #: Calls of cancelled coroutines that must end before the next call begins.
        self._settling: set[asyncio.Future[Any]] = set()

    def __repr__(self) -> str:
        return f"Async{self.blocking!r}"

    async def perform(self, steps: ScriptCall[T] | Steps[T]) -> T:
        """Make one call or run steps on the event loop, and return the result."""
        if self._settling:
            await asyncio.shield(asyncio.wait(set(self._settling)))
        if isinstance(steps, ScriptCall | Request):
            result: T = await self._call(steps)
            return result
        return await run_async(steps, self._call, self._settling)

    def _call(self, call: Any) -> Awaitable[Any]:
        blocking: Any = self.blocking
        return acall_on(async_client(blocking.client), call)


class Stepwise(Generic[P, T]):
    """The type of a blocking method made with `stepwise`."""

    #: The method's steps, for use in other steps: `yield from Topic.describe.steps(topic)`.
    steps: Callable[..., Any]

    @overload
    def __get__(self, instance: None, owner: Any) -> Stepwise[P, T]: ...
    @overload
    def __get__(self, instance: object, owner: Any) -> Callable[P, T]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        """Declare the method's type. This is never called, because `stepwise` returns a function."""


class Awaited(Generic[P, T]):
    """The type of a coroutine method made with `awaited`."""

    @overload
    def __get__(self, instance: None, owner: Any) -> Awaited[P, T]: ...
    @overload
    def __get__(self, instance: object, owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        """Declare the method's type. This is never called, because `awaited` returns a function."""


class Wrapping(Generic[P, A]):
    """The type of a plain method made with `wrapping`."""

    @overload
    def __get__(self, instance: None, owner: Any) -> Wrapping[P, A]: ...
    @overload
    def __get__(self, instance: object, owner: Any) -> Callable[P, A]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        """Declare the method's type. This is never called, because `wrapping` returns a function."""


def stepwise(
    method: Callable[Concatenate[Any, P], ScriptCall[T] | Generator[Any, Any, T]],
) -> Stepwise[P, T]:
    """Return a blocking method, which makes the call or runs the steps that `method` returns."""

    @wraps(method)
    def blocking(self: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.perform(method(self, *args, **kwargs))

    made: Any = blocking
    made.steps = method
    return made  # type: ignore[no-any-return]


@overload
def awaited(method: Stepwise[P, T]) -> Awaited[P, T]: ...
@overload
def awaited(method: Callable[Concatenate[Any, P], T]) -> Awaited[P, T]: ...
def awaited(method: Any) -> Any:
    """Return an awaitable version of a blocking method, for an AsyncFacade."""
    steps = getattr(method, "steps", None)
    if steps is not None:

        @wraps(method)
        async def method_of_steps(self: Any, *args: Any, **kwargs: Any) -> Any:
            blocking = self.blocking
            made = steps(blocking, *args, **kwargs)
            if type(made) is ScriptCall and not self._settling:
                return await async_client(blocking.client).ask(made)
            return await self.perform(made)

        return method_of_steps

    @wraps(method)
    async def off_the_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await in_thread(method, self.blocking, *args, **kwargs)

    return off_the_loop


def wrapping(method: Callable[Concatenate[Any, P], T], make: Callable[[T], A]) -> Wrapping[P, A]:
    """Return an AsyncFacade's version of a method that doesn't do I/O. Don't await it; `make` wraps its result."""

    @wraps(method)
    def wrapped(self: Any, *args: P.args, **kwargs: P.kwargs) -> A:
        return make(method(self.blocking, *args, **kwargs))

    made: Any = wrapped
    return made  # type: ignore[no-any-return]
