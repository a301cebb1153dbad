"""Declare the job of the census. Run it with `jobq worker --import census_jobs --queues census`."""

from __future__ import annotations

import ledger
from counting import count

from jobq import job, retry


@job(queue="census", retries=2, retry=retry.fixed(0.2))
def census(path: str, folder: str) -> None:
    """Count one file, and record the counts in `folder`."""
    ledger.write(folder, "start", path)
    try:
        counts = count(path)
    except Exception:
        ledger.write(folder, "fail", path)
        raise
    ledger.write(folder, "end", path, counts)
