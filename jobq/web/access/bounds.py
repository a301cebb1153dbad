"""Request limits: 30 requests a second per user, and four concurrent searches for all users together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock

from jobq.errors import JobqError

PER_SECOND, BURST = 30.0, 60.0
#: Rejections to log per user: 20 immediately, then one every ten minutes.
REFUSALS_PER_SECOND, REFUSALS = 1 / 600, 20.0
MAX_SCANS = 4
#: Maximum number of users whose rate is remembered. The oldest is forgotten first.
MAX_USERS = 10_000


class TooManyScansError(JobqError):
    """four searches are already running; try again in a moment."""


class RequestRate:
    """A token bucket for each user."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, per_second: float = PER_SECOND, burst: float = BURST
    ) -> None:  # fmt: skip
        self._clock, self._per_second, self._burst = clock, per_second, burst
        self._lock = Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, user: str) -> bool:
        """Count a request, and return whether it is allowed."""
        now = self._clock()
        with self._lock:
            left, at = self._left.pop(user, (self._burst, now))
            left = min(self._burst, left + (now - at) * self._per_second)
            allowed = left >= 1
            self._left[user] = (left - allowed, now)
            if len(self._left) > MAX_USERS:
                del self._left[next(iter(self._left))]
        return allowed


class RefusalRate:
    """Limits each user's audit entries about rejected requests, so that older entries aren't displaced."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = RequestRate(clock, REFUSALS_PER_SECOND, REFUSALS)
        self._lock = Lock()
        self._left_out: dict[str, int] = {}

    def note(self, user: str, why: str) -> str | None:
        """Return the text of an audit entry: `why`, and how many entries were omitted since the previous entry.

        Return None if the limit is exceeded.
        """
        taken = self._rate.take(user)
        with self._lock:
            count = self._left_out.pop(user, 0)
            if taken:
                return (
                    f"{why}; rejected requests not logged before this entry: {count:,}"
                    if count
                    else why
                )
            self._left_out[user] = count + 1
            if len(self._left_out) > MAX_USERS:
                del self._left_out[next(iter(self._left_out))]
        return None


class ScanSlots:
    """Limits concurrent searches of many messages, so that the server has time for its workers."""

    def __init__(self, most: int = MAX_SCANS) -> None:
        self._free = BoundedSemaphore(most)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Use a slot during the `with` block. Raises TooManyScansError if none is free."""
        if not self._free.acquire(blocking=False):
            raise TooManyScansError
        try:
            yield
        finally:
            self._free.release()
