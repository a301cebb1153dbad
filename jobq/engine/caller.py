"""Who calls, and which call it is: what makes a repeated call harmless.

A caller has one call in flight. The scripts keep its last number and reply, replay the same number and
refuse a lower one, so the client may send a call again whenever a reply was lost.
"""

from __future__ import annotations

import os
import secrets


class Caller:
    """One line of numbered calls. `id` is 96 random bits in 16 characters."""

    __slots__ = ("id", "number")

    def __init__(self) -> None:
        self.id = secrets.token_urlsafe(12)
        self.number = 0

    def next(self) -> int:
        """The number of the call about to be made."""
        self.number += 1
        return self.number

    def token(self, index: int) -> str:
        """The token of the `index`-th message that the last call handed out."""
        return f"{self.id}.{self.number}.{index}"


class Callers:
    """Spare callers, so that threads sharing a queue never share one in flight."""

    def __init__(self) -> None:
        # One at a time is taken off a list and put back, which needs no lock.
        self._spare: list[Caller] = []
        self._pid = os.getpid()

    def take(self) -> Caller:
        """A caller that nobody else uses until it is given back."""
        if self._pid != os.getpid():
            # A forked child must not number calls that its parent numbers too.
            self._spare, self._pid = [], os.getpid()
        try:
            return self._spare.pop()
        except IndexError:
            return Caller()

    def give_back(self, caller: Caller) -> None:
        """For the next call. A call that ended unknown keeps its caller out of use instead."""
        self._spare.append(caller)
