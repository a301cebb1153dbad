"""Adds a batch job to the jobs of chaos tests."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator

from jobq.chaos.producers import BATCH_JOB, LINGER_S, QUEUE
from jobq.chaos.workload import LOOP, note
from jobq.errors import JobAborted
from jobq.jobs.calls import Calls
from jobq.jobs.registry import job

BATCH = 10


def together(calls: Calls[str, float]) -> None:
    """Sleep for the seconds that each call requests, then mark the call as done if its lease is valid."""
    try:
        for seconds in _ended(calls):
            time.sleep(seconds)
    except JobAborted:
        _abort(calls)
        raise


async def together_on_loop(calls: Calls[str, float]) -> None:
    """Do the same as `together`, on an event loop."""
    try:
        for seconds in _ended(calls):
            await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        _abort(calls)
        raise


def _ended(calls: Calls[str, float]) -> Iterator[float]:
    for call in calls:
        note("start", call)
    for at, call in enumerate(calls):
        yield call.args[1]
        if call.lease_valid():
            note("end", call)
            calls.done(at)


def _abort(calls: Calls[str, float]) -> None:
    for at in calls.open:
        note("aborted", calls[at])


job(name=BATCH_JOB, queue=QUEUE, batch=BATCH, linger=LINGER_S)(
    together_on_loop if os.environ.get(LOOP) else together
)
