"""How much one user may ask: 30 requests a second, and four scans at once for all users."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from threading import BoundedSemaphore, Lock

from jobq.errors import ConfigError, JobqError

PER_SECOND, BURST = 30.0, 60.0
MOST_SCANS = 4
LONGEST_RANGE = timedelta(days=400)
#: Users whose rate is remembered. The oldest is forgotten first.
MOST_USERS = 10_000


class TooManyScansError(JobqError):
    """Four searches run already; try again in a moment."""


class RequestRate:
    """A token bucket for each user."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, user: str) -> bool:
        """Count a request; whether the user may make it."""
        now = self._clock()
        with self._lock:
            left, at = self._left.pop(user, (BURST, now))
            left = min(BURST, left + (now - at) * PER_SECOND)
            allowed = left >= 1
            self._left[user] = (left - allowed, now)
            if len(self._left) > MOST_USERS:
                del self._left[next(iter(self._left))]
        return allowed


class ScanSlots:
    """Searches that read many messages; the server serves its workers first."""

    def __init__(self, most: int = MOST_SCANS) -> None:
        self._free = BoundedSemaphore(most)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold a slot. TooManyScansError if none is free."""
        if not self._free.acquire(blocking=False):
            raise TooManyScansError
        try:
            yield
        finally:
            self._free.release()


def checked_range(since: datetime, until: datetime) -> tuple[datetime, datetime]:
    """Return a range of time. ConfigError if it is empty or longer than 400 days."""
    if not since < until:
        raise ConfigError(f"the range ends at {until:%Y-%m-%d %H:%M}, before it begins")
    if until - since > LONGEST_RANGE:
        raise ConfigError(
            f"the range has {(until - since).days} days; take {LONGEST_RANGE.days} at most"
        )
    return since, until
