"""Wait for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
#: A busy machine takes its time.
DEADLINE_S = 120.0


def until(
    holds: Callable[[], T],
    what: str | Callable[[], str] = "the condition never held",
    *,
    deadline_s: float = DEADLINE_S,
    every_s: float = 0.01,
) -> T:
    """Poll until the condition holds; return its value, or fail with `what`."""
    deadline = time.monotonic() + deadline_s
    while not (value := holds()):
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(every_s)
    return value
