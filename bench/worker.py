"""jobq's worker through the public command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

import jobq
from bench.server import ROOT


def tree_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and its running descendants."""
    used = [child.cpu_times() for child in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in used))


@contextmanager
def running_worker(
    client: jobq.Client, url: str, processes: int, *options: str
) -> Iterator[psutil.Process]:
    """Run `jobq worker` with this many children; stop it at the end."""
    command = [
        sys.executable, "-m", "jobq", "worker", "--url", url, "--queues", "bench", "--import", "bench.work",
        "--processes", str(processes), "--log-level", "error", *options,
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)
