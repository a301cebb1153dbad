"""The CPU time of one coroutine among the many that share a thread."""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from os import getpid
from time import thread_time_ns
from typing import Any

from jobq.jobs.forks import ForkedProcessError, Home, leave

ELSEWHERE = ForkedProcessError()


class Meter:
    """CPU time in nanoseconds."""

    __slots__ = ("ns",)

    def __init__(self) -> None:
        self.ns = 0


@types.coroutine
def metered(
    coroutine: Coroutine[Any, Any, Any], meter: Meter, home: Home
) -> Generator[Any, Any, Any]:
    """Await `coroutine`, adding to `meter` what its own steps cost. A process forked in a step ends with it."""
    step: Any = coroutine.send
    pid = home.pid
    value: Any = None
    while True:
        if getpid() != pid:
            leave(ELSEWHERE)
        started = thread_time_ns()
        try:
            awaited = step(value)
        except StopIteration as end:
            home.only()
            return end.value
        except BaseException as error:
            home.only(error)
            raise
        finally:
            meter.ns += thread_time_ns() - started
        if getpid() != pid:
            leave(ELSEWHERE)
        try:
            value, step = (yield awaited), coroutine.send
        except BaseException as error:  # cancellation, and closing, belong to the coroutine
            value, step = error, coroutine.throw
