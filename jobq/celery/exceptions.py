"""The exceptions of Celery that tasks raise and catch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jobq import errors
from jobq.client.clock import wall

#: Raised inside a task at its soft time limit. It is not an Exception, so `except Exception` doesn't catch it.
SoftTimeLimitExceeded = errors.JobTimeout
#: Raised by `AsyncResult.get(timeout=…)`.
TimeoutError = errors.ResultTimeoutError  # the name is Celery's


class MaxRetriesExceededError(Exception):
    """`self.retry()` was called more often than max_retries allows."""


class WorkerLostError(Exception):
    """The task was dead-lettered although its function didn't fail, for example because its process died."""


class Ignore(Exception):
    """End the task without a result or an error."""


class Reject(Exception):
    """Dead-letter the task, or run it again if `requeue` is true."""

    def __init__(self, reason: object = None, requeue: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.requeue = reason, requeue


class CeleryRetry(errors.Retry):
    """Raised by `self.retry()`. `when` is a number of seconds or a datetime."""

    def __init__(
        self, message: str | None = None, exc: BaseException | None = None, when: float | datetime | None = None,
        is_eager: bool = False, sig: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            seconds_until(when), message or (repr(exc) if exc else "requested a retry")
        )
        self.exc, self.when, self.is_eager, self.sig = exc, when, is_eager, sig


Retry = CeleryRetry


def seconds_until(when: float | datetime | None) -> float:
    """Convert a countdown or a datetime to seconds from now. A datetime without a time zone is in UTC."""
    if when is None:
        return 0.0
    if isinstance(when, datetime):
        aware = when if when.tzinfo else when.replace(tzinfo=UTC)
        return max(0.0, aware.timestamp() - wall.s())
    return max(0.0, float(when))
