"""Hard timeouts: when the supervisor kills a child for a job that doesn't end."""

from __future__ import annotations

from typing import Any

from jobq.jobs.job import Job

#: A job that has only a soft timeout gets so long to heed it.
GRACE_S = 10.0


def kill_after_s(job: Job[..., Any]) -> float | None:
    """Seconds from its start, None for never."""
    if job.hard_timeout is not None:
        return job.hard_timeout
    return None if job.timeout is None else job.timeout + GRACE_S
