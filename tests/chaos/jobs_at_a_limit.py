"""Jobs that call a provider with a limit; `python -m tests.chaos.jobs_at_a_limit` is a web process that also calls it.

Each call is a line of a file: when its start was granted, by the server's clock, and when it was made.
"""

from __future__ import annotations

import json
import os
import random
import time

from jobq import RateLimit, current, job
from jobq.errors import JobqError
from jobq.jobs.executor import Call
from jobq.limits.rate_limit import Grant

MAX_COUNT, SPAN_MS, MARGIN_S = 200, 1_000, 0.25
#: How long a job continues after its call.
WORK_S = 0.01
#: Of the web processes together, by chance; jobs take the rest.
WEB_PER_S = 30


class NotedLimit(RateLimit):
    """Keeps the last grant of this process, which runs one job at a time."""

    last: Grant

    def admit(self, call: Call, worker: str) -> Grant:
        """Ask for a start, and keep the answer."""
        self.last = super().admit(call, worker)
        return self.last


PROVIDER = NotedLimit("provider", f"{MAX_COUNT}/s", margin=MARGIN_S)


def call(mid: str, granted: int, attempt: int = 0) -> None:
    """Make a call: a line in one write, whole whatever other processes write."""
    at_ms = time.time() * 1000
    line = json.dumps({"mid": mid, "granted": granted, "called": at_ms, "attempt": attempt})
    file = os.open(os.environ["CALLS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)


@job(queue="low", limits=[PROVIDER])
def limited() -> None:
    """Call the provider once, and handle its answer."""
    context = current()
    call(context.mid, PROVIDER.last.started_ms, context.attempt)
    time.sleep(WORK_S)


def main() -> None:
    """Call the provider now and then, until the parent is gone."""
    parent, processes = os.getppid(), int(os.environ["WEB_PROCESSES"])
    while os.getppid() == parent:
        time.sleep(random.expovariate(WEB_PER_S / processes))
        try:
            if grant := PROVIDER.try_acquire():
                call("", grant.started_ms)
        except JobqError:
            continue


if __name__ == "__main__":
    main()
