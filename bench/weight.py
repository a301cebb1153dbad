"""Memory: of the server per job, of a worker's processes, and remaining after a drain."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil

from bench.server import VALKEY, info, redis_binary
from bench.stage import FILLINGS, Row, Stage, stage, wait_for

WARMED_UP, SETTLED_S = 200, 1.0
DRAINED = 10_000
MIB = 1024 * 1024


def size(binary: Callable[[], str], where: str = "") -> Callable[[str], Iterator[Row]]:
    """Server memory per job with an int and a short string."""

    def weigh(name: str) -> Iterator[Row]:
        for figure, action in (("queued", "queued"), ("delayed", "later")):
            with stage(name, binary=binary()) as place:
                # One-time allocations of a first job, mostly scripts, aren't counted.
                place.inside(action, 1)
                before = int(info(place.client, "memory")["used_memory"])
                place.inside(action, place.peer.weighed)
                used = int(info(place.client, "memory")["used_memory"]) - before
            yield f"memory per {figure} job{where}", used / place.peer.weighed, "B"

    return weigh


on_redis = size(redis_binary)
on_valkey = size(lambda: VALKEY, " on Valkey")


def resident(name: str) -> Iterator[Row]:
    """Measure all processes of a worker with two job processes, after its first jobs and a short rest."""
    contents = FILLINGS.of(name, "noop", WARMED_UP)
    with stage(name, contents=contents) as place, place.working(2):
        place.until(place.reached(WARMED_UP))
        time.sleep(SETTLED_S)
        proportional = resident_set = 0
        for process in place.processes():
            with suppress(psutil.NoSuchProcess):
                used = process.memory_full_info()
                proportional += used.pss
                resident_set += used.rss
    yield "worker of 2 processes, PSS of all", proportional / MIB, "MB"
    yield "worker of 2 processes, RSS of all", resident_set / MIB, "MB"


def pss(place: Stage) -> int:
    """Bytes of memory of a worker's processes, shared ones counted once."""
    used = 0
    for process in place.processes():
        with suppress(psutil.NoSuchProcess):
            used += process.memory_full_info().pss
    return used


def left_over(name: str) -> Iterator[Row]:
    """Measure the remaining keys without a TTL after a drain and the worker's end, except `events`, and their bytes."""
    with stage(name, contents=FILLINGS.of(name, "noop", DRAINED)) as place:
        command = place.client.command
        with place.working(2):
            place.until(place.reached(DRAINED))
            # A minute is enough for whatever is collected later, by whoever comes by.
            wait_for(lambda: command("EXISTS", "jobq:{bench}:messages") == 0, 60)
        left = [key.decode() for key in command("KEYS", "*") if not key.endswith(b":events")]
        lasting = [key for key in left if command("PTTL", key) == -1]
        size = sum(command("MEMORY", "USAGE", key, routed_by=key) or 0 for key in lasting)
    for key in lasting:
        yield f"key left after a drain: {key}", 1, ""
    yield "keys left after a drain", len(lasting), ""
    yield "bytes of keys left after a drain", size, "B"
