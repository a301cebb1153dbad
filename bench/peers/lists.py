"""The other limit: the least that loses nothing, LPUSH, (B)LMOVE to a list of the worker's own, LREM.

LREM of one job and LMOVE of the next go in one round trip. Jobs of a dead worker are lost; there are no retries,
delays, deduplication or counters.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from redis import Redis

from bench.peers import place
from bench.peers.handlers import HANDLERS

_redis = Redis(**place.SERVER, socket_timeout=None)
PER_CALL = 1_000


def each(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """One LPUSH per job."""
    for each_arguments in arguments:
        _redis.lpush("queue", json.dumps([handler, each_arguments]))


def many(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """1,000 to an LPUSH."""
    for start in range(0, len(arguments), PER_CALL):
        batch = arguments[start : start + PER_CALL]
        _redis.lpush("queue", *(json.dumps([handler, argument]) for argument in batch))


def later(handler: str, arguments: list[tuple[Any, ...]]) -> None:
    """ZADD, which needs contents that differ."""
    due = time.time() + 3600
    for start in range(0, len(arguments), PER_CALL):
        batch = arguments[start : start + PER_CALL]
        _redis.zadd(
            "later",
            {
                json.dumps([handler, argument, start + index]): due
                for index, argument in enumerate(batch)
            },
        )


def worker(processes: int) -> list[list[str]]:
    """Return the commands of this many loops."""
    return [[sys.executable, "-m", "bench.peers.lists"]] * processes


def loop() -> None:
    """Run until killed."""
    mine = f"running:{os.getpid()}"
    content: Any = None
    while True:
        if content is None:
            content = _redis.blmove("queue", mine, 0, "RIGHT", "LEFT")
        handler, arguments = json.loads(content)
        HANDLERS[handler](*arguments)
        with _redis.pipeline(transaction=False) as both:
            both.lrem(mine, 1, content)
            both.lmove("queue", mine, "RIGHT", "LEFT")
            _, content = both.execute()


if __name__ == "__main__":
    loop()
