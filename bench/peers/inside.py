"""Runs in a peer's venv: `python -m bench.peers.inside PEER ACTION …`, one JSON reply on stdout.

The same actions and replies as bench/peers/bullmq.js and bench/peers/sidekiq.rb.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

PAUSE_S, POLL_S, TICK_S = 0.01, 0.002, 0.002
FIRST_S, NEXT_S = 60, 10
#: Pick-up stops after this long, however few jobs it has seen; of the offered load the first part warms up.
ALL_S, WARM_SHARE = 2.0, 0.25
EXAMPLE = (12_345, "short text")


def worker(peer: ModuleType, processes: str) -> list[list[str]]:
    """The commands of a worker."""
    return list(peer.worker(int(processes)))


def rates(peer: ModuleType, singles: str, bulk: str) -> list[float]:
    """Seconds to enqueue no-op jobs one at a time, and the fastest way there is; connected before."""
    took = []
    for enqueue, count in ((peer.each, int(singles)), (peer.many, int(bulk))):
        enqueue("noop", [()])
        started = time.perf_counter()
        enqueue("noop", [()] * count)
        took.append(time.perf_counter() - started)
    return took


def fill(peer: ModuleType, handler: str, count: str) -> None:
    """Jobs without arguments."""
    peer.many(handler, [()] * int(count))


def queued(peer: ModuleType, count: str) -> None:
    """Jobs with an int and a short string, to be weighed."""
    peer.many("noop", [EXAMPLE] * int(count))


def later(peer: ModuleType, count: str) -> None:
    """Enqueue jobs due in an hour at the earliest."""
    peer.later("noop", [EXAMPLE] * int(count))


def latency(peer: ModuleType, count: str, rate: str, seconds: str) -> list[list[int]]:
    """Nanoseconds that jobs waited: single ones for an idle worker, then such that came at a rate."""
    _settle(peer)
    idle = _singles(peer, int(count))
    return [idle, _offered(peer, float(rate), float(seconds), 1 + len(idle))]


def _settle(peer: ModuleType) -> None:
    peer.each("picked_up", [(time.monotonic_ns(),)])
    _written(1, FIRST_S)
    time.sleep(0.3)


def _singles(peer: ModuleType, count: int) -> list[int]:
    enough = time.monotonic() + ALL_S
    for index in range(count):
        peer.each("picked_up", [(time.monotonic_ns(),)])
        _written(index + 2, NEXT_S)
        time.sleep(PAUSE_S)
        if time.monotonic() > enough:
            break
    return _waits()[1:]


def _offered(peer: ModuleType, rate: float, seconds: float, before: int) -> list[int]:
    """Enqueue by the clock, independent of earlier jobs: a late producer sends several together."""
    started, sent = time.monotonic(), 0
    while (now := time.monotonic()) < started + seconds:
        due = int((now - started) * rate) + 1 - sent
        if due > 0:
            enqueue = peer.each if due == 1 else peer.many
            enqueue("picked_up", [(time.monotonic_ns(),)] * due)
            sent += due
        time.sleep(max(0.0, min(TICK_S, started + (sent + 1) / rate - time.monotonic())))
    _written(before + sent, FIRST_S)
    return _waits()[before + int(sent * WARM_SHARE) :]


def _written(lines: int, seconds: float) -> None:
    """Wait until the ledger has so many lines."""
    deadline, known, read = time.monotonic() + seconds, 0, 0
    with open(os.environ["BENCH_LEDGER"], "rb") as ledger:
        while True:
            known += ledger.read().count(b"\n")
            if known >= lines:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{known} of {lines} jobs were picked up")
            time.sleep(POLL_S if read < 1_000 else 10 * POLL_S)
            read += 1


def _waits() -> list[int]:
    with open(os.environ["BENCH_LEDGER"], encoding="ascii") as ledger:
        return [int(line) for line in ledger]


ACTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (worker, rates, fill, queued, later, latency)
}


def main() -> None:
    """One action of one peer."""
    name, action, *rest = sys.argv[1:]
    print(json.dumps(ACTIONS[action](importlib.import_module(f"bench.peers.{name}"), *rest)))


if __name__ == "__main__":
    main()
