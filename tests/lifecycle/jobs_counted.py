"""Jobs of known outcome. A job that ends its process does so itself, so no other job is running there."""

from __future__ import annotations

import os
import signal
import time

from jobq import Retry, Snooze, current, job


@job(queue="low")
def passes() -> None: ...


@job(queue="low", result_ttl=60)
def answers() -> int:
    return 1


@job(queue="low", retries=1)
def fails_once() -> None:
    if current().failures == 1:
        raise Retry(0.001)


@job(queue="low")
def snoozes(until: float) -> None:
    if time.time() < until:
        raise Snooze(0.05)


@job(queue="low", retries=0)
def fails() -> None:
    raise ValueError("as it should")


@job(queue="low")
def kills_once() -> None:
    if current().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
