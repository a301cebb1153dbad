"""Start-up time: the import, and a process's first enqueue. Modules are compiled, as an installer does."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from bench.server import ROOT, private_server
from bench.stage import Row

TIMED = "import time; began = time.perf_counter(); import {}; print(time.perf_counter() - began)"
FIRST = """
import time; began = time.{}()
import jobq
@jobq.job(queue="bench")
def noop(number, text): pass
noop.enqueue(1, "a")
print(time.{}() - began)
"""


def imports(_: str) -> Iterator[Row]:
    """Measure imports of jobq, of modules loaded by a producer's first enqueue, and of redis-py alone; in fresh
    processes.
    """
    with tempfile.TemporaryDirectory(prefix="jobq-compiled-") as compiled:
        for name, what in (
            ("jobq", "jobq"),
            ("jobq, with what a first enqueue loads", "jobq; jobq.connect; jobq.job; jobq.Receipt"),
            ("redis", "redis"),
        ):
            yield f"import {name}", _ms(TIMED.format(what), compiled), "ms"
        with private_server() as client:
            for what, clock in ((", CPU", "process_time"), ("", "perf_counter")):
                took = _ms(FIRST.format(clock, clock), compiled, client.url)
                yield f"first enqueue of a fresh process{what}", took, "ms"


def _ms(code: str, compiled: str, url: str = "") -> float:
    """Return the output of the second of two processes; the first process compiles the modules."""
    env = {**os.environ, "JOBQ_URL": url, "PYTHONPYCACHEPREFIX": compiled}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True
        )  # fmt: skip
    return float(ran.stdout) * 1000
