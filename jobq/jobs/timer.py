"""The job of timers: a delayed message whose end is the time."""

from __future__ import annotations

from typing import Any

from jobq.jobs.job import Job
from jobq.jobs.middleware import Middlewares
from jobq.jobs.registry import Registry, job


def _elapsed() -> None:
    """Do nothing: its flow waits only for its end."""


#: Every worker can run it, whatever it imports.
TIMER: Job[[], None] = job(name="jobq.timer", registry=Registry(Middlewares()))(_elapsed)
BUILT_IN: dict[str, Job[..., Any]] = {TIMER.name: TIMER}
