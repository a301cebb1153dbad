"""Processes that call the handler without a queue, the most that a drain of CPU jobs or coroutines can reach."""

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
    """Run this number of jobs concurrently."""
    await asyncio.gather(*[naps() for _ in range(at_once)])


if __name__ == "__main__":
    if at_once := place.knob("COROUTINES", ""):
        asyncio.run(loop(int(at_once)))
    while True:
        spin()
