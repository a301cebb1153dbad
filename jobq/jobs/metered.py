"""The CPU time of one coroutine among the many that share a thread."""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from time import thread_time_ns
from typing import Any


class Meter:
    """CPU time in nanoseconds."""

    __slots__ = ("ns",)

    def __init__(self) -> None:
        self.ns = 0


@types.coroutine
def metered(coroutine: Coroutine[Any, Any, Any], meter: Meter) -> Generator[Any, Any, Any]:
    """Await `coroutine`, adding to `meter` what its own steps cost."""
    step: Any = coroutine.send
    value: Any = None
    while True:
        started = thread_time_ns()
        try:
            awaited = step(value)
        except StopIteration as end:
            return end.value
        finally:
            meter.ns += thread_time_ns() - started
        try:
            value, step = (yield awaited), coroutine.send
        except BaseException as error:  # cancellation, and closing, belong to the coroutine
            value, step = error, coroutine.throw
