"""Costs of limits: server time per call, and memory per limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import jobq
from bench.server import info, private_server
from bench.stage import Row
from jobq import ConcurrencyLimit, RateLimit

CALLS = 5_000


def limits(_: str) -> Iterator[Row]:
    """Server time of a call by the server's own count, and memory of the fullest limits."""
    with private_server() as client:
        for most in (100, 10_000, 200_000):
            limit = RateLimit(f"rate-{most}", f"{most}/h", client=client)
            yield (
                f"take granted, {most:,} an hour",
                _us(client, limit.try_acquire, min(most - 2, CALLS)),
                "µs",
            )
            if most > CALLS:
                yield (
                    f"take of 1,000, {most:,} an hour",
                    _us(client, partial(limit.try_acquire, 1_000), 3),
                    "µs",
                )
            for cost in (1_000, 1) if most <= 10_000 else ():
                while cost <= most and limit.try_acquire(cost):
                    pass
            limit.hold("1h")
            yield f"take refused, {most:,} an hour", _us(client, limit.try_acquire, CALLS), "µs"
            ring = limit.calls.scripts["take"].keys[0]
            size = client.command("MEMORY", "USAGE", ring, "SAMPLES", 0) or 0
            yield f"memory of {most:,} an hour", size / 1000, "kB"
        slots = ConcurrencyLimit("slots", 50, client=client)
        yield "slot taken and given back", _us(client, partial(_use, slots), CALLS), "µs"


def _use(slots: ConcurrencyLimit) -> None:
    with slots.slot():
        pass


def _us(client: jobq.Client, call: Callable[[], object], calls: int) -> float:
    """Server time of scripts by call."""
    call()
    client.command("CONFIG", "RESETSTAT")
    for _ in range(calls):
        call()
    counted = dict(
        part.split("=") for part in info(client, "commandstats")["cmdstat_evalsha"].split(",")
    )
    return float(counted["usec"]) / calls
