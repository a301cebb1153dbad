"""The job of timers. A timer is a delayed message of this job; a flow waits for the message's end."""

from __future__ import annotations

from typing import Any

from jobq.jobs.job import Job
from jobq.jobs.middleware import Middlewares
from jobq.jobs.registry import Registry, job


def _elapsed() -> None:
    """Return immediately, because a flow only waits for the end of the timer's message."""


#: Every worker can run this job, whatever modules it imports.
TIMER: Job[[], None] = job(name="jobq.timer", registry=Registry(Middlewares()))(_elapsed)
BUILT_IN: dict[str, Job[..., Any]] = {TIMER.name: TIMER}
