"""Module for the workers of a round with batches: the jobs of the other rounds, and a batch job."""

from __future__ import annotations

import time

from jobq.chaos.producers import BATCH_JOB, LINGER_S, QUEUE
from jobq.chaos.workload import note
from jobq.errors import JobAborted
from jobq.jobs.calls import Calls
from jobq.jobs.registry import job

BATCH = 10


@job(name=BATCH_JOB, queue=QUEUE, batch=BATCH, linger=LINGER_S)
def together(calls: Calls[str, float]) -> None:
    """Sleep for each call, then end it if its lease is valid."""
    for call in calls:
        note("start", call)
    try:
        for at, call in enumerate(calls):
            time.sleep(call.args[1])
            if call.lease_valid():
                note("end", call)
                calls.done(at)
    except JobAborted:
        for at in calls.open:
            note("aborted", calls[at])
        raise
