"""Logs warnings about late renewals, a slow server or a changed clock, each at most once a minute."""

from __future__ import annotations

import time
from collections.abc import Callable

from jobq.client.clock import boot_ns
from jobq.config import WorkerSettings
from jobq.worker import logger
from jobq.worker.shared_state import NEVER

MINUTE_NS = 60 * 10**9
SLOW_NS, SLOW_TIMES = 50_000_000, 5
#: NTP that adjusts a clock slowly moves it by far less between two renewals.
JUMP_NS = 1_000_000_000


class OnceAMinute:
    """Limits each warning to once a minute."""

    def __init__(self, now: Callable[[], int] = boot_ns) -> None:
        self._now = now
        self._next: dict[str, int] = {}

    def is_due(self, what: str) -> bool:
        """Return whether to log this warning now: True at most once a minute."""
        now = self._now()
        if now < self._next.get(what, now):
            return False
        self._next[what] = now + MINUTE_NS
        return True


class Cautions:
    """Logs problems that the supervisor notices when it renews leases. `now` and `time_of_day` return ns."""

    def __init__(
        self,
        settings: WorkerSettings,
        now: Callable[[], int] = boot_ns,
        time_of_day: Callable[[], int] = time.time_ns,
    ) -> None:
        self._least_ns = round(settings.lease_s * 1e9 / 3)
        self._now, self._time_of_day = now, time_of_day
        self._once = OnceAMinute(now)
        self._apart_ns = time_of_day() - now()
        self._slow = 0
        self._renewed = True

    def renewing(self, deadline: int) -> None:
        """Check leases before they are renewed: warn if a lease expires soon or the clock was changed."""
        self._look_at_clock()
        left = deadline - self._now()
        # If the last renewal failed, the log has the reason.
        if (
            deadline != NEVER
            and self._renewed
            and left < self._least_ns
            and self._once.is_due("margin")
        ):
            logger.warning(
                "leases are renewed late, %.1f s before they end: this host has too little CPU or memory, "
                "or the server is slow; start fewer processes here, or use a longer --lease",
                max(0, left) / 1e9,
            )  # fmt: skip

    def renewed(self, done: bool) -> None:
        """Record whether all leases could be renewed."""
        self._renewed = done

    def answered(self, took_ns: int) -> None:
        """Record how long a plain command took. Warn if several commands in a row were slow."""
        self._slow = self._slow + 1 if took_ns > SLOW_NS else 0
        if self._slow >= SLOW_TIMES and self._once.is_due("slow"):
            logger.warning(
                "the server took more than %d ms for each of %d commands, %d ms for the last: check its SLOWLOG, the "
                "CPU of both hosts, and the network between them",
                SLOW_NS // 10**6, self._slow, took_ns // 10**6,
            )  # fmt: skip

    def _look_at_clock(self) -> None:
        apart_ns = self._time_of_day() - self._now()
        jump, self._apart_ns = apart_ns - self._apart_ns, apart_ns
        if abs(jump) >= JUMP_NS and self._once.is_due("clock"):
            logger.warning(
                "the clock of this host was set %s by %.1f s, so this worker may look dead or new to others, and "
                "times in its log are out of order; let NTP adjust the clock slowly",
                "forward" if jump > 0 else "back", abs(jump) / 1e9,
            )  # fmt: skip
