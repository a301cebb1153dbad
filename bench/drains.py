"""Rate of draining a full queue, and CPU and commands per job."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.util import find_spec

from bench.peers import PEERS
from bench.server import calls
from bench.stage import FILLINGS, Row, Stage, stage
from bench.targets import (
    CPU_ALONE,
    LENGTHS,
    MIXED,
    NAPPING,
    OF_SERVER,
    PER_CORE,
    SERVER_COST,
    WAITING,
    installed,
)
from bench.weight import pss

#: A drain counts from here to the end: by then all processes have started.
FROM_SHARE = 0.2
SPINS = 2_400
THREADS, WAITS, WAIT_FIRST = 100, 10_000, 400
#: Default concurrency of a worker that only has an async job registered.
BESIDE, BESIDE_JOBS = "10", 30_000
#: Jobs per second drained by one process, by peer, in this run.
RATES: dict[str, list[float]] = defaultdict(list)


def noop(processes: int) -> Callable[[str], Iterator[Row]]:
    """Drain no-op jobs."""
    figure = f"no-op, {processes} process{'es' * (processes > 1)}"
    return lambda name: both(name, "noop", processes, PEERS[name].jobs, figure)


def mixed(name: str) -> Iterator[Row]:
    """Drain no-op sync jobs in a thread, by a worker that also has an async job."""
    count = min(BESIDE_JOBS, PEERS[name].jobs)
    return drain(name, "noop", 2, count, MIXED.removeprefix("drain "), BENCH_COROUTINES=BESIDE)


def cpu(figure: str) -> Callable[[str], Iterator[Row]]:
    """Drain jobs of 1 ms of CPU."""
    processes = 1 if figure == CPU_ALONE else 2

    def drained(name: str) -> Iterator[Row]:
        count = min(SPINS, PEERS[name].jobs or SPINS)
        return both(name, "spin", processes, count, figure.removeprefix("drain "))

    return drained


def waiting(name: str) -> Iterator[Row]:
    """Drain jobs with a wait of 20 ms, 2 x 100 threads; measure memory growth of the worker per waiting job."""
    rows: list[Row] = []
    held: dict[int, float] = {}
    for threads in (1, THREADS):
        count = WAITS if threads > 1 else 2 * WAIT_FIRST
        contents = FILLINGS.of(name, "wait", count)
        knobs = {"BENCH_THREADS": str(threads), "BENCH_CONCURRENCY": str(threads)}
        with stage(name, contents=contents, **knobs) as place, place.working(2):
            place.until(place.reached(WAIT_FIRST))
            held[threads] = pss(place)
            if threads > 1:
                rows += _timed(place, count, WAITING)
    yield from rows
    yield f"{WAITING}, memory of the worker per job", (
        (held[THREADS] - held[1]) / (2 * (THREADS - 1)) / 1024
    ), "KiB"  # fmt: skip


def napping(name: str) -> Iterator[Row]:
    """Drain jobs with a wait of 20 ms, 2 x 100 coroutines; jobq on asyncio's loop, and on uvloop if it is installed."""
    loops = ("asyncio", "uvloop") if name == "own" and find_spec("uvloop") else ("asyncio",)
    count = min(WAITS, PEERS[name].jobs or WAITS)
    at_once = dict.fromkeys(
        ("COROUTINES", "CONCURRENCY", "MAX_JOBS", "TASKS", "PREFETCH"), str(THREADS)
    )
    for loop in loops:
        figure = NAPPING + ", uvloop" * (loop == "uvloop")
        knobs = {f"BENCH_{knob}": value for knob, value in at_once.items()}
        contents = FILLINGS.of(name, "nap", count) if PEERS[name].jobs else None
        with (
            stage(name, contents=contents, BENCH_EVENT_LOOP=loop, **knobs) as place,
            place.working(2),
        ):
            yield from _timed(place, count, figure)


def costs(name: str) -> Iterator[Row]:
    """Measure the server CPU of jobs waiting 1 ms, 20 ms and 1 s, with 2 x 100 threads, or coroutines in Node."""
    handler = "nap" if name == "bullmq" else "wait"
    for length, wait_s in LENGTHS.items():
        # Long jobs run for about five seconds; of short ones as many as are measured elsewhere.
        count = min(WAITS, PEERS[name].jobs, round(5 * 2 * THREADS / wait_s))
        knobs = {"THREADS": THREADS, "CONCURRENCY": THREADS, "WAIT_S": wait_s}
        with (
            stage(
                name, contents=FILLINGS.of(name, handler, count),
                **{f"BENCH_{knob}": str(value) for knob, value in knobs.items()},
            ) as place,
            place.working(2),
        ):  # fmt: skip
            figures = {figure: value for figure, value, _ in _timed(place, count, length)}
        cost_us = figures[OF_SERVER.format(length)]
        yield SERVER_COST.format(length), cost_us, "µs"
        yield PER_CORE.format(length), 1e6 / cost_us, "jobs/s"


def both(
    name: str, handler: str, processes: int, count: int, figure: str, delayed: int = 0
) -> Iterator[Row]:
    """Measure a quiet worker and a worker that logs as installed; once if both are the same."""
    rows = list(drain(name, handler, processes, count, figure, delayed))
    yield from rows
    if PEERS[name].quiet:
        rows = list(drain(name, handler, processes, count, figure, delayed, BENCH_LOGS="1"))
    # The first row is the rate, under its figure; the others are named after it.
    drained = f"drain {figure}"
    for told, value, unit in rows:
        if told.startswith(drained):
            yield installed(drained) + told.removeprefix(drained), value, unit


def drain(
    name: str, handler: str, processes: int, count: int, figure: str, delayed: int = 0, **logs: str
) -> Iterator[Row]:
    """Measure jobs per second from one fifth to the end, and their costs."""
    contents = FILLINGS.of(name, handler, count, delayed) if PEERS[name].jobs else None
    with stage(name, contents=contents, **logs) as place, place.working(processes):
        place.until(place.done)
        first_s = time.monotonic() - place.spawned_at
        rows = list(_timed(place, count, f"drain {figure}"))
        if place.active() < processes:
            raise RuntimeError(f"only {place.active()} of {processes} processes took part")
    if processes == 1 and handler == "noop" and not logs:
        RATES[name].append(rows[0][1])
        yield "first job after start of the worker", first_s, "s"
    yield from rows


def _timed(place: Stage, count: int, figure: str) -> Iterator[Row]:
    place.until(place.reached(count * FROM_SHARE))
    place.client.command("CONFIG", "RESETSTAT")
    first, before, started = place.done(), place.cpu_s(), time.perf_counter()
    place.until(place.reached(count))
    seconds = time.perf_counter() - started
    jobs, after, (trips, commands) = place.done() - first, place.cpu_s(), calls(place.client)
    yield figure, jobs / seconds, "jobs/s"
    for who, was, now in zip(("worker", "server"), before, after, strict=True):
        yield f"{figure}, CPU of the {who} per job", (now - was) / jobs * 1e6, "µs"
    if place.peer.jobs:
        yield f"{figure}, Redis commands per job", commands / jobs, ""
    if place.name == "own":
        yield f"{figure}, round trips per job", trips / jobs, ""


def rate_of(name: str) -> float:
    """Return the drain rate of one process for no-op jobs, measured now if it wasn't before."""
    if not RATES[name]:
        list(noop(1)(name))
    return statistics.median(RATES[name])
