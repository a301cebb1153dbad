"""Runs in a peer's venv: `python -m bench.peers.inside PEER ACTION …`, one JSON reply on stdout."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from bench.peers.handlers import LINE

PAUSE_S = 0.01
FIRST_S, NEXT_S, ALL_S = 60, 10, 5
EXAMPLE = (12_345, "short text")


def worker(peer: ModuleType, processes: str) -> list[list[str]]:
    """The commands of a worker."""
    return list(peer.worker(int(processes)))


def each(peer: ModuleType, count: str) -> float:
    """Seconds to enqueue no-op jobs one at a time, connected before."""
    peer.each("noop", [()])
    started = time.perf_counter()
    peer.each("noop", [()] * int(count))
    return time.perf_counter() - started


def many(peer: ModuleType, handler: str, count: str) -> float:
    """Seconds to enqueue jobs the fastest way there is."""
    peer.each("noop", [()])
    started = time.perf_counter()
    peer.many(handler, [()] * int(count))
    return time.perf_counter() - started


def queued(peer: ModuleType, count: str) -> None:
    """Jobs with an int and a short string, to be weighed."""
    peer.many("noop", [EXAMPLE] * int(count))


def later(peer: ModuleType, count: str) -> None:
    """The same, not before an hour has passed."""
    peer.later("noop", [EXAMPLE] * int(count))


def pick_up(peer: ModuleType, count: str) -> list[int]:
    """Nanoseconds that single jobs waited for an idle worker; the first, while it starts, not counted."""
    ledger = os.environ["BENCH_LEDGER"]
    enough = float("inf")
    for index in range(int(count) + 1):
        peer.each("picked_up", [(time.monotonic_ns(),)])
        deadline = time.monotonic() + (NEXT_S if index else FIRST_S)
        while os.stat(ledger).st_size < (index + 1) * LINE:
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {index} wasn't picked up")
            time.sleep(PAUSE_S / 5)
        if not index:
            enough = time.monotonic() + ALL_S
            time.sleep(1)
        elif time.monotonic() > enough:
            break
        time.sleep(PAUSE_S)
    with open(ledger, encoding="ascii") as file:
        return [int(line) for line in file][1:]


ACTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (worker, each, many, queued, later, pick_up)
}


def main() -> None:
    """One action of one peer."""
    name, action, *rest = sys.argv[1:]
    print(json.dumps(ACTIONS[action](importlib.import_module(f"bench.peers.{name}"), *rest)))


if __name__ == "__main__":
    main()
