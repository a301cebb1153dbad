"""jobq's worker through the public command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import jobq
from bench.server import ROOT


@contextmanager
def running_worker(client: jobq.Client, url: str, processes: int, *options: str) -> Iterator[None]:
    """`jobq worker` with so many children, stopped at the end."""
    command = [
        sys.executable, "-m", "jobq", "worker", "--url", url, "--queues", "bench", "--import", "bench.work",
        "--processes", str(processes), "--log-level", "error", *options,
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)
