"""How long it takes to begin: the import, and a process's first enqueue."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from bench.server import ROOT, private_server
from bench.stage import Row

TIMED = "import time; began = time.perf_counter(); import {}; print(time.perf_counter() - began)"
FIRST = """
import time; began = time.perf_counter()
import jobq
@jobq.job(queue="bench")
def noop(number, text): pass
noop.enqueue(1, "a")
print(time.perf_counter() - began)
"""


def imports(_: str) -> Iterator[Row]:
    """Of jobq, of what a producer's first enqueue has loaded, and of redis-py alone; in fresh processes."""
    for name, what in (
        ("jobq", "jobq"),
        ("jobq, with what a first enqueue loads", "jobq; jobq.connect; jobq.job; jobq.Receipt"),
        ("redis", "redis"),
    ):
        yield f"import {name}", _ms(TIMED.format(what)), "ms"
    with private_server() as client:
        yield "first enqueue of a fresh process", _ms(FIRST, client.url), "ms"


def _ms(code: str, url: str = "") -> float:
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "JOBQ_URL": url},
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(ran.stdout) * 1000
