"""Enqueue what the lines of keys have room for: a call of many is refused as a whole, so ask for less and go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from jobq.errors import KeyFullError

T = TypeVar("T")


def send_fitting(
    items: Sequence[T], send: Callable[[Sequence[T]], object]
) -> tuple[int, KeyFullError | None]:
    """Send as many of the first items as there is room for, in order; return how many, and what refuses the next one.

    A refused call is made again with half of its items.
    """
    sent, size = 0, len(items)
    while sent < len(items):
        some = items[sent : sent + size]
        try:
            send(some)
            sent, size = sent + len(some), len(items)
        except KeyFullError as error:
            if len(some) == 1:
                return sent, error
            size = len(some) // 2
    return sent, None
