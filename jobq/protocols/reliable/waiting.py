"""Blocking pop and blocking recover, as steps (see `client.steps`).

To wait for a message, a client blocks on a list of tickets. The server serves the longest waiting client first. A
ticket only announces a message: if a client crashes with a ticket, no message is lost, and the scripts issue another
ticket.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from jobq.client.steps import Ask, Nap, Steps
from jobq.client.waiter import SHORT_GRACE_S, BlockingConnection
from jobq.errors import UnavailableError
from jobq.protocols.reliable.calls import ReliableCalls
from jobq.protocols.reliable.replies import Popped, Recovered

#: How often a waiting client lets the scripts replace lost tickets.
TICK_S = 2.0
#: How long a client waits in line before it rejoins the line, because its connection may have died silently.
LINE_S = 20.0
#: Minimum pause between polls for recoverable messages, and the pause while no message is pending.
MIN_WAIT_S, UNKNOWN_S = 0.01, 0.05
#: pop(names, words): one call of the script. If its coroutine is cancelled, it gives back the popped messages.
Pop = Callable[..., Steps[list[Popped]]]


class BlockingPop:
    """A blocking pop of one client. While the client waits, it regularly looks for messages to recover."""

    def __init__(
        self, calls: ReliableCalls, pop: Pop, names: Sequence[str], block: int,
        recover_ms: int | None,
    ) -> None:  # fmt: skip
        self._calls, self._pop = calls, pop
        self._names, self._recover_ms = names, recover_ms
        self._until = _deadline(block)
        #: When the server must have ended the wait in line.
        self._answer_by = self._until
        self._tickets = calls.tickets(names)
        self._line = BlockingConnection(calls.client, self._tickets[0])

    def steps(self) -> Steps[list[Popped] | None]:
        """Wait for messages and return them, or None after the timeout."""
        popped: list[Popped] | None = []
        try:
            while popped == []:
                if not self._line.is_open:
                    if time.monotonic() >= self._until:
                        return None
                    yield Ask(self._stand, self._leave)
                popped = yield from self._turn()
            yield from self._give_back()
            return popped
        finally:
            self._line.close()

    def _stand(self) -> bool:
        """Begin to wait until the server announces a message. Return False if the connection breaks."""
        self._line.open()
        now = time.monotonic()
        seconds = min(LINE_S, max(self._until - now, 0.001))
        self._answer_by = now + seconds + SHORT_GRACE_S
        try:
            self._line.send(("BLPOP", *self._tickets, f"{seconds:.3f}"))
        except UnavailableError:
            return False  # the connection broke immediately
        return True

    def _leave(self, _: bool) -> None:
        """Close the connection. If an announcement of a message gets lost, the scripts repeat the announcement."""
        self._line.close()

    def _turn(self) -> Steps[list[Popped] | None]:
        """Wait briefly for messages and return them. Return [] if no message arrived, or None after the deadline."""
        popped: list[Popped]
        if (yield from self._came()):
            try:
                got = self._ticket()
            except UnavailableError:
                yield Nap(MIN_WAIT_S)
            else:
                if got is None:
                    return None if time.monotonic() >= self._until else []
                popped = yield from self._pop([got[0]], "TICKET", got[1])
                return popped
        elif time.monotonic() > self._answer_by:
            self._line.close()
            return None if time.monotonic() >= self._until else []
        if self._recover_ms is not None or not self._line.is_open:
            popped = yield from self._pop(self._names)
            return popped
        yield from self._calls.ask_steps("rest", self._names)
        return []

    def _came(self) -> Steps[bool]:
        """Wait briefly for the server's reply; return whether the reply has arrived."""
        pause = TICK_S
        if self._recover_ms is not None:
            due = yield from self._calls.ask_steps("rest", self._names, "RECOVER", self._recover_ms)
            pause = min(pause, due / 1000) if due >= 0 else pause
        pause = min(pause, max(0.0, self._answer_by + MIN_WAIT_S - time.monotonic()))
        if not self._line.is_open:
            yield Nap(min(pause, UNKNOWN_S))
            return False
        return bool((yield Nap(pause, (self._line.file,))))

    def _ticket(self) -> tuple[str, bytes] | None:
        """Stop waiting; return the name of a queue and its ticket, or None if no ticket arrived."""
        try:
            got = self._line.reply()
        finally:
            self._line.close()
        return (self._calls.name_of(got[0]), got[1]) if got else None

    def _give_back(self) -> Steps[None]:
        """Give back a ticket that this client no longer needs, so that the next client gets it."""
        if not self._line.is_open or not (yield Nap(0, (self._line.file,))):
            return
        try:
            got = self._ticket()
        except UnavailableError:
            return
        if got:
            yield from self._pop([got[0]], "COUNT", 0, "TICKET", got[1])


def recovering(
    calls: ReliableCalls,
    recover: Callable[[], Steps[list[Recovered] | None]],
    name: str,
    block: int,
    elapsed: int,
) -> Steps[list[Recovered] | None]:
    """Wait up to `block` ms until a message is old enough to be recovered, and return recovered messages."""
    until = _deadline(block)
    while (left := until - time.monotonic()) > 0:
        due = yield from calls.ask_steps("rest", [name], "RECOVER", elapsed)
        # If no message is pending, none can become old enough sooner than a message popped now.
        pause = max(due / 1000, MIN_WAIT_S) if due >= 0 else max(elapsed / 1000, UNKNOWN_S)
        yield Nap(min(pause, left, TICK_S))
        recovered = yield from recover()
        if recovered:
            return recovered
    return None


def _deadline(block: int) -> float:
    return float("inf") if block < 0 else time.monotonic() + block / 1000
