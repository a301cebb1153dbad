"""Middleware: layers around enqueueing and running jobs.

A middleware is an object with some of these methods. Each method calls `next` to continue::

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

The middleware that was added first is the outermost. Middleware added here applies to every job, and runs around the
middleware of a Registry.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from jobq.errors import ConfigError

Layers = tuple[Any, ...]
_METHODS = ("enqueue", "run", "arun")


class Middlewares:
    """An ordered set of middleware. The middleware of `outer` runs around this set."""

    def __init__(self, outer: Middlewares | None = None) -> None:
        self.outer = outer
        self.layers: Layers = ()
        #: Modules that provide middleware, by the module that must be imported first.
        self._awaited: dict[str, str] = {}

    def add(self, middleware: Any) -> None:
        """Add a middleware inside the existing layers, unless the same object was added before."""
        if not any(hasattr(middleware, name) for name in _METHODS):
            raise ConfigError(
                f"{middleware!r} is not a middleware; it must have enqueue, run or arun"
            )
        if hasattr(middleware, "run") != hasattr(middleware, "arun"):
            has, lacks = ("run", "arun") if hasattr(middleware, "run") else ("arun", "run")
            raise ConfigError(
                f"{middleware!r} has {has} but no {lacks}, so {'async' if lacks == 'arun' else 'sync'} jobs would "
                f"bypass it; add {lacks}, or set {lacks} = None if that is intended"
            )
        if not any(known is middleware for known in self.layers):
            self.layers = (*self.layers, middleware)

    def remove(self, middleware: Any) -> None:
        """Remove a middleware. Do nothing if it wasn't added."""
        self.layers = tuple(known for known in self.layers if known is not middleware)

    def add_when_imported(self, module: str, provider: str) -> None:
        """Add the `middleware` of module `provider` once the program has imported `module`."""
        self._awaited[module] = provider

    def add_imported(self) -> None:
        """Add the middleware registered with add_when_imported, if its module has been imported since."""
        for module in [name for name in self._awaited if name in sys.modules]:
            provider = importlib.import_module(self._awaited.pop(module))
            self.add(provider.middleware)

    def all_layers(self) -> Layers:
        """Return the layers of `outer`, followed by the layers of this object."""
        outer = self.outer
        if outer is None:
            return self.layers
        if not sys.modules.keys().isdisjoint(outer._awaited):
            outer.add_imported()
        return outer.layers + self.layers


#: The middleware around every job of the process.
everywhere = Middlewares()
add = everywhere.add
remove = everywhere.remove


def around_enqueue(layers: Layers, deliver: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `deliver`, wrapped in the enqueue method of each layer."""
    for layer in reversed(layers):
        method = getattr(layer, "enqueue", None)
        if method is not None:
            deliver = partial(_call_enqueue, method, deliver)
    return deliver


def around_run(layers: Layers, method: str, context: Any, call: Callable[[], Any]) -> Any:
    """Return the result of `call` within the `run` or `arun` method of each layer."""
    for layer in layers[:0:-1]:
        wrapper = getattr(layer, method, None)
        if wrapper is not None:
            call = partial(wrapper, context, call)
    wrapper = getattr(layers[0], method, None) if layers else None
    return call() if wrapper is None else wrapper(context, call)


def _call_enqueue(method: Callable[..., Any], deliver: Callable[[Any], Any], outgoing: Any) -> Any:
    return method(outgoing, deliver)
