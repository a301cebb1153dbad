"""How long a poll may sleep before it looks again; pure, but for the clock of this machine.

A publish ends the sleep. It may never come: from a sender without realtime, through a lost connection, for a
delayed message. So the sleep is never longer than until the next hidden message becomes visible, and grows to
a second where nobody publishes.
"""

from __future__ import annotations

import time

from jobq.protocols.rsmq.messages import Received

FIRST_S, LONGEST_S = 0.02, 1.0


class Patience:
    """One wait of so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._pause = FIRST_S

    def pause_s(self, found: Received) -> float:
        """Seconds until the next look; 0 when the wait is over."""
        left = self._deadline - time.monotonic()
        pause, self._pause = self._pause, min(LONGEST_S, self._pause * 2)
        if found.next_s is not None:
            pause = min(pause, found.next_s)
        return max(0.0, min(left, pause))
