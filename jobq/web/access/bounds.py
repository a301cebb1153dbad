"""How much one user may ask: 30 requests a second, and four scans at once for all users."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock

from jobq.errors import JobqError

PER_SECOND, BURST = 30.0, 60.0
MOST_SCANS = 4
#: Users whose rate is remembered. The oldest is forgotten first.
MOST_USERS = 10_000


class TooManyScansError(JobqError):
    """four searches run already; try again in a moment."""


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
