"""Cancels of messages with remembered ends.

The script finds in the content how long a message's end is remembered. It can write only declared keys, so it answers
REMEMBERS if the result key is missing, and the call is repeated with the key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from jobq.queue import keys

REMEMBERS = b"remembers"
T = TypeVar("T")


def with_result_keys(
    prefix: str,
    mids: Sequence[str],
    rows: Sequence[T],
    call: Callable[[Sequence[T], Sequence[str]], list[bytes]],
) -> list[bytes]:
    """Call, and call again with result keys for messages with remembered ends. Return a word per message.

    Args:
        rows: What to call with for each of the mids.
        call: Makes the call for some of the rows, with these keys.
    """
    words = call(rows, ())
    left = [place for place, word in enumerate(words) if word == REMEMBERS]
    if left:
        named = [keys.result(prefix, mids[place]) for place in left]
        again = call([rows[place] for place in left], named)
        for place, word in zip(left, again, strict=True):
            words[place] = word
    return words
