"""No queue at all: processes that call the handler, the most that a drain of CPU jobs can reach."""

from __future__ import annotations

import sys
from typing import Any

from bench.peers.handlers import spin


def each(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """Enqueue no jobs."""


many = each


def worker(processes: int) -> list[list[str]]:
    """Return the commands of this many loops."""
    return [[sys.executable, "-m", "bench.peers.bare"]] * processes


if __name__ == "__main__":
    while True:
        spin()
