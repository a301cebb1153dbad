"""Declare the job. A worker imports each app's `tasks` module."""

from __future__ import annotations

import statistics
import time

from jobq import current, job


@job(
    queue="default",
    name="report",
    result_ttl="1h",
    remember="1h",
    dead_on=[statistics.StatisticsError],
)
def report(numbers: list[float], seconds: float = 0) -> dict[str, float]:
    """Return the mean and the median, and report progress."""
    for page in range(1, 11):
        time.sleep(seconds / 10)
        current().progress(page, 10, note=f"page {page} of 10")
    return {"mean": statistics.fmean(numbers), "median": statistics.median(numbers)}
