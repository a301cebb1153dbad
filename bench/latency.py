"""Time from enqueue to the start of the handler: with an idle process, then at half its load."""

from __future__ import annotations

from collections.abc import Iterator

from bench.drains import rate_of
from bench.stage import Row, stage

PICKED_UP, HALF_S = 150, 1.2


def latency(name: str) -> Iterator[Row]:
    """p50, p95 and p99 of both; the rate is half of the peer's own drain of no-op jobs."""
    offered = rate_of(name) / 2
    with stage(name) as place, place.working(1):
        idle, half = place.inside("latency", PICKED_UP, offered, HALF_S)
    yield "offered at half load", offered, "jobs/s"
    for figure, waits in (("idle pick-up", idle), ("wait at half load", half)):
        yield from percentiles(figure, [wait / 1e6 for wait in waits], "ms")


def percentiles(figure: str, values: list[float], unit: str) -> Iterator[Row]:
    """p50, p95 and p99."""
    values = sorted(values)
    for share in (50, 95, 99):
        yield f"{figure} p{share}", values[min(len(values) - 1, share * len(values) // 100)], unit
