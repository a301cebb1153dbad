"""The one owner of SIGALRM in a child: soft timeouts, and a look around while a job runs long."""

from __future__ import annotations

import signal
from collections.abc import Callable
from time import monotonic
from typing import Any

from jobq.client.clock import boot_ns
from jobq.errors import JobTimeout
from jobq.jobs.job import Job
from jobq.worker.signals import getsignal

#: A job that has only a soft timeout gets this long to stop after it.
HARD_TIMEOUT_GRACE_S = 10.0
#: As a plain number: this is asked after each job.
_ALARM = int(signal.SIGALRM)


class Timers:
    """Acts only while a job runs: `look_around(now)` after `first_s`, then after what it returned.

    look_around may raise what has to reach the job; then it's called again after `first_s`.
    """

    def __init__(self, first_s: float, look_around: Callable[[int], float]) -> None:
        self.in_job = False
        self.armed = False
        self._first_s = first_s
        self._look_around = look_around
        # One object, so that it is known again where a job has set another.
        self._handler = self._alarm
        self._due_at = 0.0
        self._soft_at = 0
        self._limit_s = 0.0

    def install(self) -> None:
        """Take over the signal, from a job too that handles or blocks it."""
        signal.signal(signal.SIGALRM, self._handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))

    def arm(self) -> None:
        """See that the next look happens; next to free while one is due anyway."""
        if not self.armed:
            self._set(self._first_s)
        elif monotonic() > self._due_at:
            # Late, blocked, or a job has stopped the timer.
            self.install()
            self._set(self._first_s)

    def job_over(self) -> None:
        """After each job: nothing is raised any more, and the signal is this timer's again."""
        self.in_job = False
        if getsignal(_ALARM) is not self._handler:
            self.install()
            self.armed = False

    def soft_timeout(self, seconds: float) -> Timers:
        """A context in which JobTimeout is raised after so many seconds."""
        self._limit_s = seconds
        return self

    def __enter__(self) -> None:
        self._soft_at = boot_ns() + round(self._limit_s * 1e9)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
        self._set(min(self._limit_s, self._first_s))

    def __exit__(self, *_: object) -> None:
        self._soft_at = 0

    def _alarm(self, *_: Any) -> None:
        self.armed = False
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
        self._due_at = monotonic() + seconds
        signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds))


def kill_after_s(job: Job[..., Any]) -> float | None:
    """Seconds from its start, None for never."""
    if job.hard_timeout is not None:
        return job.hard_timeout
    return None if job.timeout is None else job.timeout + HARD_TIMEOUT_GRACE_S
