"""Jobs whose traces are looked at."""

from __future__ import annotations

import os
import signal

from jobq import Retry, current, job


@job(queue="low", name="third", retries=5)
def third() -> None:
    """Done at the third attempt."""
    if current().attempt < 3:
        raise Retry(after=0)


@job(queue="low", name="killed", retries=0)
def killed() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
