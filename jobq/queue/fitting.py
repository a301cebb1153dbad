"""Enqueue as many messages as fit. A full line of a key rejects the whole call, so retry with fewer messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from jobq.errors import KeyFullError

T = TypeVar("T")


def send_fitting(
    items: Sequence[T], send: Callable[[Sequence[T]], object]
) -> tuple[int, KeyFullError | None]:
    """Send as many of the first items as fit, in order; return their number, and the error for the next item.

    A rejected call is repeated with half of its items.
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
