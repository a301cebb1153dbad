"""Who calls, and which call it is: what makes a repeated call harmless.

A caller has one call in flight. The scripts keep its last number and reply, replay the same number and
refuse a lower one, so the client may send a call again when a reply was lost: while the server surely
has that record, and no longer.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable

from jobq.client import clock

#: How long a server keeps the record of a caller's last call: the PX of `last_call` in lua/.
RECORD_S = 600.0
#: A call is repeated for so long after it may first have reached the server. The other half of the record's
#: life is for a repetition that is late on its way.
REPEAT_S = RECORD_S / 2


class Tries:
    """The tries of one numbered call: since when the server may have its record."""

    __slots__ = ("_before", "_since")

    def __init__(self) -> None:
        self._since = self._before = 0

    def sent(self) -> None:
        """From now on the server may have it, unless it answers with an error."""
        self._before = self._since
        if not self._since:
            self._since = clock.boot_ns()

    def refused(self) -> None:
        """The server answered the last one with an error: that one changed nothing."""
        self._since = self._before

    @property
    def arrived(self) -> bool:
        """Whether one of them may have reached the server."""
        return bool(self._since)

    @property
    def over(self) -> bool:
        """Whether it must not be sent again. Always False while no try can have arrived."""
        return self.arrived and clock.boot_ns() - self._since >= REPEAT_S * 1e9


def _nothing() -> None:
    pass


def new_id() -> str:
    """An id that no other caller has."""
    return secrets.token_urlsafe(12)


class Caller:
    """One line of numbered calls. `id` is 96 random bits in 16 characters.

    arrived: called when a reply with hand-outs has come, before anything in it is read. `renewals`: how often a call
    was made anew under the next number, since the lost one could not be repeated any more.
    """

    __slots__ = ("arrived", "id", "number", "renewals")

    def __init__(self, arrived: Callable[[], None] = _nothing, caller_id: str = "") -> None:
        self.arrived = arrived
        self.id = caller_id or new_id()
        self.number = self.renewals = 0

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
