"""The job of a flow's timers. A timer is a delayed message; after the message is done, the flow continues."""

from __future__ import annotations

from typing import Any

from jobq.jobs.job import Job
from jobq.jobs.middleware import Middlewares
from jobq.jobs.registry import Registry, job


def _elapsed() -> None:
    """Do nothing: the flow continues after the timer's message is done."""


#: Every worker can run this job, whatever modules it imports.
TIMER: Job[[], None] = job(name="jobq.timer", registry=Registry(Middlewares()))(_elapsed)
BUILT_IN: dict[str, Job[..., Any]] = {TIMER.name: TIMER}
