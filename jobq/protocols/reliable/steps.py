"""A wait written once for threads and for asyncio: it says what to do next, a driver does it.

A wait is a generator that yields calls of the server and naps, and returns its answer.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

Answer = TypeVar("Answer")


class Ask(NamedTuple):
    """Call this; its result is sent back. undo: what takes a result back that came too late for anybody."""

    call: Callable[[], Any]
    undo: Callable[[Any], object] | None = None


class Nap(NamedTuple):
    """Sleep, but wake when the file becomes readable; whether it did is sent back."""

    seconds: float
    file: int | None = None


Steps = Generator[Ask | Nap, Any, Answer]


def drive(steps: Steps[Answer]) -> Answer:
    """Do the steps in this thread."""
    try:
        step = next(steps)
        while True:
            try:
                done = step.call() if isinstance(step, Ask) else _nap(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(done)
    except StopIteration as end:
        answer: Answer = end.value
        return answer


def _nap(nap: Nap) -> bool:
    if nap.file is None:
        time.sleep(nap.seconds)
        return False
    with selectors.DefaultSelector() as selector:
        selector.register(nap.file, selectors.EVENT_READ)
        return bool(selector.select(nap.seconds))
