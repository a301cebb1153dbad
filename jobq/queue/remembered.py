"""Cancel messages whose end the server must remember for a while.

A message's content tells the script how long to remember the end, in the message's result key. But a script may
write only keys that its call declares. So if the result key wasn't declared, the script answers REMEMBERS, and the call
is repeated with the key.
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
    """Make a call for some messages. Repeat it with result keys for messages whose ends are remembered.

    Return one word per message.

    Args:
        rows: For each mid, the arguments of the call.
        call: Makes the call with the given rows and result keys.
    """
    words = call(rows, ())
    left = [place for place, word in enumerate(words) if word == REMEMBERS]
    if left:
        named = [keys.result(prefix, mids[place]) for place in left]
        again = call([rows[place] for place in left], named)
        for place, word in zip(left, again, strict=True):
            words[place] = word
    return words
