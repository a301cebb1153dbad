"""The onion around enqueue and run.

A middleware is any object with some of these methods. Each does its part and calls `next`::

    class Timed:
        def enqueue(self, outgoing, next):        # outgoing: Outgoing; -> list of Receipts
            outgoing.headers["team"] = "billing"
            return next(outgoing)

        def run(self, context, next):             # sync jobs; context: Context
            started = time.monotonic()
            try:
                return next()
            finally:
                report(context.job, time.monotonic() - started)

        async def arun(self, context, next):      # async jobs
            return await next()

The first one added is the outermost. Those added here surround every job; those of a Registry lie within.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from jobq.errors import ConfigError

if TYPE_CHECKING:
    from jobq.jobs.context import Context
    from jobq.jobs.enqueue import Outgoing
    from jobq.jobs.receipt import Receipt

    Deliver = Callable[[Outgoing], list[Receipt[Any]]]

_METHODS = ("enqueue", "run", "arun")


class Middlewares:
    """An ordered set of middleware. `layers` is read on the hot path: an empty tuple costs nothing."""

    def __init__(self) -> None:
        self.layers: tuple[Any, ...] = ()

    def add(self, middleware: Any) -> None:
        """Add inside those added before; the same object again changes nothing."""
        if not any(hasattr(middleware, name) for name in _METHODS):
            raise ConfigError(f"{middleware!r} is no middleware; give it enqueue, run or arun")
        if hasattr(middleware, "run") != hasattr(middleware, "arun"):
            has, lacks = ("run", "arun") if hasattr(middleware, "run") else ("arun", "run")
            raise ConfigError(
                f"{middleware!r} has {has} but no {lacks}, so {'async' if lacks == 'arun' else 'sync'} jobs "
                f"would slip past it; add {lacks}, or {lacks} = None if that is meant"
            )
        if not any(known is middleware for known in self.layers):
            self.layers = (*self.layers, middleware)

    def remove(self, middleware: Any) -> None:
        """Take it out; unknown ones are ignored."""
        self.layers = tuple(known for known in self.layers if known is not middleware)


#: Around every job of the process.
everywhere = Middlewares()
add = everywhere.add
remove = everywhere.remove

_awaited: dict[str, str] = {}


def add_when_imported(module: str, provider: str) -> None:
    """Add the `middleware` of module `provider` once somebody has imported `module`."""
    _awaited[module] = provider


def settle_awaited() -> None:
    """Add what add_when_imported promised, for modules that are loaded by now."""
    if sys.modules.keys().isdisjoint(_awaited):
        return
    for module in [name for name in _awaited if name in sys.modules]:
        provider = importlib.import_module(_awaited.pop(module))
        add(provider.middleware)


def around_enqueue(layers: tuple[Any, ...], deliver: Deliver) -> Deliver:
    """`deliver` within the enqueue method of each layer."""
    for layer in reversed(layers):
        method = getattr(layer, "enqueue", None)
        if method is not None:
            deliver = partial(_call_enqueue, method, deliver)
    return deliver


def around_run(
    layers: tuple[Any, ...], context: Context, call: Callable[[], Any]
) -> Callable[[], Any]:
    """`call` within the run method of each layer."""
    for layer in reversed(layers):
        method = getattr(layer, "run", None)
        if method is not None:
            call = partial(method, context, call)
    return call


def around_arun(
    layers: tuple[Any, ...], context: Context, call: Callable[[], Awaitable[Any]]
) -> Callable[[], Awaitable[Any]]:
    """`call` within the arun method of each layer."""
    for layer in reversed(layers):
        method = getattr(layer, "arun", None)
        if method is not None:
            call = partial(method, context, call)
    return call


def _call_enqueue(
    method: Callable[..., Any], deliver: Deliver, outgoing: Outgoing
) -> list[Receipt[Any]]:
    return method(outgoing, deliver)  # type: ignore[no-any-return]
