"""Blocking pop and blocking recover, step by step (see steps.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from jobq.protocols.reliable.calls import ReliableCalls
from jobq.protocols.reliable.replies import Popped, Recovered
from jobq.protocols.reliable.steps import Ask, Nap, Steps
from jobq.protocols.reliable.ticket import TicketWait

#: How often a client that waits has lost tickets mended.
TICK_S = 2.0
#: After the server's own limit: a connection that died without a word answers never.
GRACE_S = 2.0
#: Between looks for what may be recovered while nothing is pending.
SHORTEST_S, UNKNOWN_S = 0.01, 0.05
#: pop(names, words): one call of the script.
Pop = Callable[..., list[Popped]]
Undo = Callable[[list[Popped]], object]


class BlockingPop:
    """One client that waits to pop: in line for a ticket, and meanwhile looking for what can be recovered."""

    def __init__(
        self, calls: ReliableCalls, pop: Pop, undo: Undo, names: Sequence[str], block: int,
        recover_ms: int | None,
    ) -> None:  # fmt: skip
        self._calls, self._pop, self._undo = calls, pop, undo
        self._names, self._recover_ms = names, recover_ms
        self._until = _deadline(block)
        self._line = TicketWait(calls.client, calls.tickets(names))

    def steps(self) -> Steps[list[Popped] | None]:
        """What was popped in the end; None when the time was over."""
        popped: list[Popped] | None = []
        try:
            while popped == []:
                if not self._line.stands:
                    if time.monotonic() >= self._until:
                        return None
                    yield Ask(self._stand)
                popped = yield from self._turn()
            yield from self._leave()
            return popped
        finally:
            self._line.leave()

    def _stand(self) -> None:
        left = self._until - time.monotonic()
        self._line.stand(None if left == float("inf") else left)

    def _turn(self) -> Steps[list[Popped] | None]:
        """Wait a while; what that brought, None when all the time is over."""
        popped: list[Popped]
        if (yield from self._came()):
            got = self._line.answer()
            if got:
                popped = yield self._popping([self._calls.name_of(got[0])], "TICKET", got[1])
                return popped
            if not self._line.broke:
                return None
            yield Nap(SHORTEST_S)
        elif time.monotonic() > self._until + GRACE_S:
            return None
        if self._recover_ms is not None or not self._line.stands:
            popped = yield self._popping(self._names)
            return popped
        yield Ask(partial(self._calls.ask, "rest", self._names))
        return []

    def _came(self) -> Steps[bool]:
        """Whether there is an answer, after a while."""
        pause = TICK_S
        if self._recover_ms is not None:
            words = ("rest", self._names, "RECOVER", self._recover_ms)
            due = yield Ask(partial(self._calls.ask, *words))
            pause = min(pause, due / 1000) if due >= 0 else pause
        pause = min(pause, max(0.0, self._until + GRACE_S + SHORTEST_S - time.monotonic()))
        if not self._line.stands:
            yield Nap(min(pause, UNKNOWN_S))
            return False
        came: bool = yield Nap(pause, self._line.file())
        return came

    def _leave(self) -> Steps[None]:
        """Give back a ticket that came while we got something else, so that nobody has to miss it."""
        if self._line.stands and (yield Nap(0, self._line.file())):
            got = self._line.answer()
            if got:
                name = self._calls.name_of(got[0])
                yield Ask(partial(self._pop, [name], "COUNT", 0, "TICKET", got[1]))

    def _popping(self, names: Sequence[str], *words: str | bytes) -> Ask:
        return Ask(partial(self._pop, names, *words), self._undo)


def recovering(
    calls: ReliableCalls,
    recover: Callable[[], list[Recovered] | None],
    undo: Callable[[list[Recovered]], object],
    name: str,
    block: int,
    elapsed: int,
) -> Steps[list[Recovered] | None]:
    """Look when the oldest delivery comes of age, until `block` ms are over."""
    until = _deadline(block)
    while (left := until - time.monotonic()) > 0:
        due = yield Ask(partial(calls.ask, "rest", [name], "RECOVER", elapsed))
        # With nothing pending nothing comes of age sooner than what is popped now.
        pause = max(due / 1000, SHORTEST_S) if due >= 0 else max(elapsed / 1000, UNKNOWN_S)
        yield Nap(min(pause, left, TICK_S))
        found: list[Recovered] | None = yield Ask(recover, undo)
        if found:
            return found
    return None


def _deadline(block: int) -> float:
    return float("inf") if block < 0 else time.monotonic() + block / 1000
