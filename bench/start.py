"""How long it takes to begin: the import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from bench.server import ROOT
from bench.stage import Row

TIMED = "import time; began = time.perf_counter(); import {}; print(time.perf_counter() - began)"


def imports(_: str) -> Iterator[Row]:
    """Of jobq, of what a producer's first enqueue has loaded, and of redis-py alone; in fresh processes."""
    for name, what in (
        ("jobq", "jobq"),
        ("jobq, with what a first enqueue loads", "jobq; jobq.connect; jobq.job; jobq.Receipt"),
        ("redis", "redis"),
    ):
        ran = subprocess.run(
            [sys.executable, "-c", TIMED.format(what)],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        yield f"import {name}", float(ran.stdout) * 1000, "ms"
