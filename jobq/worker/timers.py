"""Job timeouts, and a timer that interrupts long jobs for checks. No other module of a child uses SIGALRM."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from jobq.client.clock import boot_ns
from jobq.errors import JobTimeout
from jobq.jobs.job import Job
from jobq.worker.shared_state import NEVER

#: A job that has only a soft timeout gets this long to stop after it.
HARD_TIMEOUT_GRACE_S = 10.0


class Timers:
    """Calls `look_around(now)` while a job runs, first after `first_s`. Each call returns the seconds until the next.

    If `look_around` raises an exception in the job, the next call comes after `first_s`. If a job stops the timer or
    blocks the timer's signal, the supervisor notices that the timer is late, and makes the main thread call `late`.

    Args:
        set_for: Called with the time (boot_ns) at which the timer will expire.
    """

    def __init__(
        self,
        first_s: float,
        look_around: Callable[[int], float],
        set_for: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.in_job = False
        self.armed = False
        self._first_s = first_s
        self._look_around, self._set_for = look_around, set_for
        # A single object, so that it differs from any handler that a job sets.
        self._handler = self._alarm
        self._due_at = 0
        self._soft_at = 0
        self._limit_s = 0.0

    def install(self) -> None:
        signal.signal(signal.SIGALRM, self._handler)

    def arm(self) -> None:
        """Set the timer unless it is already set."""
        if not self.armed:
            self._set(self._first_s)
        elif boot_ns() > self._due_at:
            # It is late, or a job has stopped the timer.
            self._set(self._first_s)

    def late(self) -> None:
        """If the timer is late during a job, do the timer's checks now."""
        if self.in_job and boot_ns() > self._due_at:
            self._alarm()

    def soft_timeout(self, seconds: float) -> Timers:
        self._limit_s = seconds
        return self

    def __enter__(self) -> None:
        self._soft_at = boot_ns() + round(self._limit_s * 1e9)
        self._set(min(self._limit_s, self._first_s))

    def __exit__(self, *_: object) -> None:
        self._soft_at = 0

    def _alarm(self, *_: Any) -> None:
        self.armed, self._due_at = False, NEVER
        if not self.in_job:
            return
        now, following_s = boot_ns(), self._first_s
        try:
            if self._soft_at and now >= self._soft_at:
                self._soft_at = 0
                raise JobTimeout(f"ran past its timeout of {self._limit_s:g} s")
            following_s = self._look_around(now)
        finally:
            if self._soft_at:
                following_s = min(following_s, (self._soft_at - boot_ns()) / 1e9)
            self._set(following_s)

    def _set(self, seconds: float) -> None:
        self.armed = True
        seconds = max(0.001, seconds)
        self._due_at = boot_ns() + round(seconds * 1e9)
        self._set_for(self._due_at)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def kill_after_s(job: Job[..., Any]) -> float | None:
    """Return how many seconds after this job's start the supervisor must kill the child; None for never."""
    if job.settings.hard_timeout is not None:
        return job.settings.hard_timeout
    return None if job.settings.timeout is None else job.settings.timeout + HARD_TIMEOUT_GRACE_S
