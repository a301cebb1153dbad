"""Two clocks: `boot_ns` for leases and repeated calls, and `wall` for the time of day.

`boot_ns` keeps running while the machine sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from functools import partial

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
#: Returns the time of CLOCK_BOOTTIME in ns. Where the system lacks it, CLOCK_MONOTONIC replaces it.
boot_ns = partial(time.clock_gettime_ns, _BOOTTIME)


class WallClock:
    """The time of day. Tests can move it ahead of the host's clock by `ahead_ms`."""

    ahead_ms = 0

    def ms(self) -> int:
        """Return the time in epoch ms."""
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def s(self) -> float:
        """Return the time in epoch seconds."""
        return time.time() + self.ahead_ms / 1000


#: The time of day for all jobs and clients of this process.
wall = WallClock()


class Reminder:
    """Limits log lines to one per subject every `every_s` seconds."""

    #: Maximum number of remembered subjects; then all are forgotten.
    most = 1_000

    def __init__(self, every_s: float = 60.0) -> None:
        self._every_s = every_s
        self._due_at: dict[Hashable, float] = {}

    def is_due(self, subject: Hashable) -> bool:
        """Return whether to log a line now; if so, the interval restarts."""
        now = time.monotonic()
        if now < self._due_at.get(subject, 0.0):
            return False
        if len(self._due_at) >= self.most:
            self._due_at.clear()
        self._due_at[subject] = now + self._every_s
        return True
