"""The clock of leases and of repeated calls: it runs on while the machine sleeps."""

from __future__ import annotations

import time
from functools import partial

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
#: Nanoseconds of CLOCK_BOOTTIME.
boot_ns = partial(time.clock_gettime_ns, _BOOTTIME)
