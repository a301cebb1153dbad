"""Enqueue as many messages as the limits of keys allow. If a call exceeds a limit, retry it with fewer messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from jobq.errors import KeyFullError

T = TypeVar("T")


def send_fitting(
    items: Sequence[T], send: Callable[[Sequence[T]], object]
) -> tuple[int, KeyFullError | None]:
    """Send items in order until an item doesn't fit. Return the number of sent items, and the error of the next item.

    The error is None if all items were sent. A rejected call is repeated with half of its items.
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
