"""The clock of leases and of repeated calls: it runs on while the machine sleeps."""

from __future__ import annotations

import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_read = time.clock_gettime_ns


def boot_ns(_clock: int = _BOOTTIME) -> int:
    """Nanoseconds of CLOCK_BOOTTIME."""
    return _read(_clock)
