"""Logging with the running job's name, mid, attempt and queue on every record."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobq.jobs.context import Context

#: Attempts that failed. Silenced by the Sentry middleware, which reports them itself.
failures = logging.getLogger("jobq.job")


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the job's fields to `extra`, those given in the call winning."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge, where the standard adapter would replace."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def job_logger(context: Context, logger: logging.Logger | None = None) -> JobLogger:
    """A logger under the job's name, or the one given."""
    extra = {
        "job": context.job,
        "mid": context.mid,
        "attempt": context.attempt,
        "queue": context.queue,
    }
    return JobLogger(logger or logging.getLogger(context.job), extra)
