"""No queue at all: processes that call the handler, the most that a drain can reach: of jobs that take CPU, or of
coroutines that wait.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from bench.peers import place
from bench.peers.handlers import nap, spin


def each(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """Enqueue no jobs."""


many = each


def worker(processes: int) -> list[list[str]]:
    """Return the commands of this many loops."""
    return [[sys.executable, "-m", "bench.peers.bare"]] * processes


async def naps() -> None:
    """Run one such job after another."""
    while True:
        await nap()


async def loop(at_once: int) -> None:
    """Run so many jobs at once."""
    await asyncio.gather(*[naps() for _ in range(at_once)])


if __name__ == "__main__":
    if at_once := place.knob("COROUTINES", ""):
        asyncio.run(loop(int(at_once)))
    while True:
        spin()
