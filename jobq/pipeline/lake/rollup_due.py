"""When an ingest brings the rollups up to date: at most every so often, and only where there is news."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from jobq.errors import JobqError
from jobq.pipeline.lake.place import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Due:
    """every_s: 0 for never. A refresh that fails is told and tried again; events are safe without it."""

    def __init__(self, lake: Lake, every_s: float, told: Callable[[str], None]) -> None:
        self._lake, self._every_s, self._told = lake, every_s, told
        self._next = 0.0

    def refresh(self, spark: Callable[[], SparkSession], enough: Callable[[], bool]) -> None:
        """Do it if it is time."""
        if not self._every_s or enough() or time.time() < self._next:
            return
        from jobq.pipeline.lake import rollup

        self._next = rollup.refreshed_at(self._lake) + self._every_s
        if time.time() < self._next or not rollup.stale(self._lake):
            return
        self._next = time.time() + self._every_s
        try:
            rollup.refresh(self._lake, spark())
        except JobqError as error:
            self._told(f"job_runs and rollup_hourly stay as they were: {error}")
