"""Jobs of `bench.incidents`."""

from __future__ import annotations

import os
import signal
import time

from jobq import job


@job(queue="low")
def sleep(seconds: float) -> None:
    """Run for a while."""
    time.sleep(seconds)


@job(queue="low")
def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
