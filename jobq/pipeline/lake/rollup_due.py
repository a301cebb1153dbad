"""When an ingest brings the rollups up to date: at most every so often, and only where there is news."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from jobq.pipeline.lake.place import Lake
from jobq.pipeline.sessions import words_of

if TYPE_CHECKING:
    from jobq.pipeline.lake.runner import Runner


class Due:
    """every_s: 0 for never. A refresh that fails is told and tried again; events are safe without it."""

    def __init__(self, lake: Lake, every_s: float, told: Callable[[str], None]) -> None:
        self._lake, self._every_s, self._told = lake, every_s, told
        self._next = 0.0

    def refresh(self, runner: Runner, enough: Callable[[], bool]) -> None:
        """Do it if it is time. After a failure the runner's session is given up: its JVM may have died."""
        if not self._every_s or enough() or time.time() < self._next:
            return
        from jobq.pipeline.lake import rollup

        self._next = rollup.refreshed_at(self._lake) + self._every_s
        if time.time() < self._next or not rollup.stale(self._lake):
            return
        self._next = time.time() + self._every_s
        try:
            rollup.refresh(self._lake, runner.spark())
        except Exception as error:  # Spark, its JVM and storage fail in many classes
            runner.close()
            self._told(
                f"job_runs and rollup_hourly stay as they were, next try in {self._every_s:g} s: {words_of(error)}"
            )
