"""A worker through the public command line."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jobq

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def running_worker(client: jobq.Client, url: str, processes: int, *options: str) -> Iterator[None]:
    """`jobq worker` with so many children, stopped at the end."""
    command = [
        sys.executable, "-m", "jobq", "worker", "--url", url, "--queues", "bench", "--import", "bench.work",
        "--processes", str(processes), "--log-level", "warning", *options,
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def wait_for(reached: Callable[[], bool], seconds: float, every: float = 0.01) -> None:
    """Until `reached()`, or TimeoutError."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not reached in {seconds} s")
        time.sleep(every)
