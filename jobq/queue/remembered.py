"""Cancel or take out messages, and remember for a while that they ended.

A message's content tells the script how long to remember the end. The script records it in the message's result
key, but may write only keys that the call declares. If the call didn't declare the result key, the script answers
REMEMBERS, and the client repeats the call with the key.
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
    """Make a call for some messages. For messages with the answer REMEMBERS, repeat the call with their result keys.

    Return the last answer for each message.

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
