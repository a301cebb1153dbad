"""Clocks: that of leases and of repeated calls, which runs on while the machine sleeps, and the time of day.

The time of day is the host's, unless tests have moved it.
"""

from __future__ import annotations

import time
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
