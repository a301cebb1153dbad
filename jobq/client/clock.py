"""Clocks: the clock of leases and repeated calls, which also runs while the machine sleeps, and the time of day.

The time of day is the host's, unless tests have moved it.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from functools import partial

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
#: Nanoseconds of CLOCK_BOOTTIME.
boot_ns = partial(time.clock_gettime_ns, _BOOTTIME)


class WallClock:
    """How far this process is ahead of the host's time of day: 0, but for tests that move it."""

    ahead_ms = 0

    def ms(self) -> int:
        """Return epoch ms."""
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def s(self) -> float:
        """Return epoch seconds."""
        return time.time() + self.ahead_ms / 1000


#: Of all jobs and clients of this process.
wall = WallClock()


class Reminder:
    """Limits log lines about one subject to one in `every_s`."""

    #: At this number of subjects, all are dropped.
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
