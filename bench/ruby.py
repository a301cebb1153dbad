"""Compare Sidekiq with jobq on Sidekiq's lists: `python -m bench.ruby`.

Both push to, and drain, the same list of a fresh server. A drain's rate is of its last nine tenths, so no start
of a process is in it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.stage import Stage, stage
from jobq.protocols.ruby import SidekiqQueue

JOBS, SINGLES, RUNS = 20_000, 2_000, 3


def by_sidekiq(on: Stage) -> list[list[str]]:
    """A real Sidekiq: one process with its threads."""
    commands: list[list[str]] = on.inside("worker", 1)
    return commands


def by_jobq(on: Stage) -> list[list[str]]:
    """Run a child that the intake feeds."""
    return [
        [sys.executable, "-m", "jobq", "worker", "--url", on.client.url, "--sidekiq", "bench",
         "--import", "bench.peers.fromruby", "--processes", "1", "--log-level", "warning"],
    ]  # fmt: skip


@contextmanager
def working(on: Stage, commands: list[list[str]]) -> Iterator[None]:
    """Run these processes during the block."""
    on.workers = [on.start(command) for command in commands]
    try:
        yield
    finally:
        for process in on.workers:
            on._end(process)


def drained(who: Callable[[Stage], list[list[str]]]) -> float:
    """Return jobs per second."""
    with stage("sidekiq") as on:
        on.inside("fill", "noop", JOBS)
        with working(on, who(on)):
            on.until(on.reached(JOBS // 10))
            before, began = on.done(), time.perf_counter()
            on.until(on.reached(JOBS))
            return (on.done() - before) / (time.perf_counter() - began)


def pushed_by_sidekiq() -> tuple[float, float]:
    """Pushes per second, one at a time and in bulk."""
    with stage("sidekiq") as on:
        singles_s, bulk_s = on.inside("rates", SINGLES, JOBS)
        return SINGLES / singles_s, JOBS / bulk_s


def pushed_by_jobq() -> tuple[float, float]:
    """Push with jobq, and return both rates."""
    with stage("sidekiq") as on:
        queue = SidekiqQueue("bench", on.client)
        began = time.perf_counter()
        for _ in range(SINGLES):
            queue.push("Noop")
        singles_s = time.perf_counter() - began
        began = time.perf_counter()
        queue.push_many("Noop", ([] for _ in range(JOBS)))
        return SINGLES / singles_s, JOBS / (time.perf_counter() - began)


def main() -> None:
    """Print medians of a few alternating runs."""
    rows: dict[str, list[float]] = {}
    for _ in range(RUNS):
        for name, push, who in (
            ("Sidekiq", pushed_by_sidekiq, by_sidekiq), ("jobq", pushed_by_jobq, by_jobq),
        ):  # fmt: skip
            singles, bulk = push()
            figures = {
                "push, one at a time": singles,
                "push, in bulk": bulk,
                "drain, one process": drained(who),
            }
            for what, figure in figures.items():
                rows.setdefault(f"{what}: {name}", []).append(figure)
    for what, found in sorted(rows.items()):
        print(
            f"{what:32}{statistics.median(found):12,.0f}/s   {min(found):,.0f} to {max(found):,.0f}"
        )


if __name__ == "__main__":
    main()
