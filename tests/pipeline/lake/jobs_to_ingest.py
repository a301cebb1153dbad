"""Jobs for a worker whose events are ingested while it works."""

from jobq import job
from jobq.jobs import retry


@job(queue="low")
def fine(number: int) -> int:
    return number


@job(queue="high", retries=1, retry=retry.fixed(0.05))
def fails_at_times(number: int) -> None:
    if number % 3 == 0:
        raise ValueError(number)
