"""Slow measurements: server load of an idle worker, and recovery time of a killed job."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from bench.server import info
from bench.stage import FILLINGS, POLL_S, Row, Stage, stage

#: jobq's naps grow to 30 s: by then the last dry lap is over, and the window is one nap long.
SETTLE_S, WINDOW_S = 35.0, 32.0
#: Jobs recovered later than this, or never, are shown as "> 20 s".
LIMIT_S = 20.0


def idle(name: str) -> Iterator[Row]:
    """Count commands per second, including commands inside scripts, of two and of twenty idle workers after work."""
    pools = (2, 20) if name == "own" else (2,)
    with ThreadPoolExecutor() as waiting:
        for rows in waiting.map(lambda processes: list(_idle(processes)(name)), pools):
            yield from rows


def _idle(processes: int) -> Callable[[str], Iterator[Row]]:
    def asked(name: str) -> Iterator[Row]:
        jobs = 20 * processes
        with (
            stage(name, contents=FILLINGS.of(name, "noop", jobs)) as place,
            place.working(processes),
        ):
            place.until(place.reached(jobs))
            time.sleep(SETTLE_S)
            before = int(info(place.client, "stats")["total_commands_processed"])
            started, used = time.perf_counter(), place.cpu_s()[0]
            time.sleep(WINDOW_S)
            seconds = time.perf_counter() - started
            worker_s = place.cpu_s()[0] - used
            # Of ours: INFO stats and the two of cpu_s.
            commands = int(info(place.client, "stats")["total_commands_processed"]) - before - 3
        yield f"idle, {processes} processes, commands", commands / seconds, "/s"
        yield f"idle, {processes} processes, CPU of the worker", worker_s / seconds * 1000, "ms/s"

    return asked


def recovery(name: str) -> Iterator[Row]:
    """Measure from kill -9 of a job's process to the job's next start; a dead top process is restarted."""
    with stage(name, BENCH_SAFE="1") as place:
        place.inside("fill", "stuck", 1)
        with place.working(2):
            place.until(lambda: _starts(place))
            # It has settled: heartbeats, if there are any, have begun.
            time.sleep(0.5)
            killed_at, victim = time.monotonic_ns(), _starts(place)[0][1]
            os.kill(victim, signal.SIGKILL)
            seconds = _again(place, killed_at)
    yield "killed worker's job runs again", seconds, "s"


def _again(place: Stage, killed_at: int) -> float:
    commands = [worker.args for worker in place.workers]
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        starts = _starts(place)
        if len(starts) > 1:
            return (starts[1][0] - killed_at) / 1e9
        for index, worker in enumerate(place.workers):
            if worker.poll() is not None:
                # As whatever runs it would: systemd, a container's restart policy.
                place.workers[index] = place.start(list(commands[index]))  # type: ignore[arg-type]
        time.sleep(POLL_S)
    return LIMIT_S


def _starts(place: Stage) -> list[tuple[int, int]]:
    lines = place.ledger.read_bytes().splitlines()
    return [(int(at), int(pid)) for at, pid in (line.split() for line in lines)]
