"""One function per case; each yields (figure, value, unit) rows of one run of one peer."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

import jobq
from bench.peers import PEERS
from bench.peers.handlers import SLOTS, done_by_all
from bench.peers.venvs import inside_of
from bench.server import info, private_server
from bench.worker import ROOT, wait_for

Row = tuple[str, float, str]
SINGLE, SPINS, WEIGHED, PICKED_UP = 10_000, 3_000, 10_000, 300
#: A drain counts from here to the end: by then all processes have started.
FROM_SHARE = 0.2
ALL_S = 60
POLL_S = 0.002


class Place:
    """A peer beside a server of its own, and what its jobs count."""

    def __init__(self, name: str, client: jobq.Client, folder: str) -> None:
        self.name, self.client = name, client
        self.peer, self._inside = PEERS[name], inside_of(name)
        self.folder = Path(folder)
        self._started: list[int] = []
        progress = self.folder / "progress"
        progress.write_bytes(bytes(SLOTS * 8))
        ledger = self.folder / "ledger"
        ledger.touch()
        with progress.open("r+b") as file:
            self._everyone = memoryview(mmap.mmap(file.fileno(), SLOTS * 8)).cast("Q")
        self._environment = {
            **os.environ,
            "BENCH_SOCKET": client.url.removeprefix("unix://"),
            "BENCH_PROGRESS": str(progress),
            "BENCH_LEDGER": str(ledger),
        }

    def done(self) -> int:
        """How many jobs ended."""
        return done_by_all(self._everyone)

    def cpu_s(self) -> tuple[float, float]:
        """Seconds of CPU that the worker, with all its processes, and the server took so far."""
        worker = 0.0
        for parent in self._started:
            for process in (psutil.Process(parent), *psutil.Process(parent).children(True)):
                with suppress(psutil.NoSuchProcess):
                    used = process.cpu_times()
                    worker += used.user + used.system
        server = info(self.client, "cpu")
        return worker, float(server["used_cpu_user"]) + float(server["used_cpu_sys"])

    def active(self) -> int:
        """How many processes, or threads of them, ended one."""
        return sum(1 for count in self._everyone[1:] if count)

    def inside(self, action: str, *arguments: object) -> Any:
        """One action in the peer's venv."""
        ran = subprocess.run(
            [*self._inside, action, *map(str, arguments)],
            cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=ALL_S, check=False,
        )  # fmt: skip
        if ran.returncode:
            raise RuntimeError(f"{action}: {ran.stderr.strip()[-800:]}")
        return json.loads(ran.stdout.splitlines()[-1])

    @contextmanager
    def working(self, processes: int) -> Iterator[None]:
        """A worker of so many processes, ended with all its children."""
        commands: list[list[str]] = self.inside("worker", processes)
        with (self.folder / "log").open("ab") as log:
            started = [
                subprocess.Popen(command, cwd=ROOT, env=self._environment, stdout=log, stderr=log,
                                 start_new_session=True)
                for command in commands
            ]  # fmt: skip
        self._started = [process.pid for process in started]
        try:
            yield
        except TimeoutError as error:
            said = (self.folder / "log").read_text(errors="replace")[-800:]
            raise RuntimeError(f"{error}, {self.done()} jobs done; {said}") from error
        finally:
            for process in started:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """TERM, for those who tidy up; then KILL for the whole group, whose server is about to go."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def _place(name: str) -> Iterator[Place]:
    with private_server() as client, tempfile.TemporaryDirectory(prefix="jobq-peer-") as folder:
        yield Place(name, client, folder)


def enqueue(name: str) -> Iterator[Row]:
    """Rates of one producer."""
    with _place(name) as place:
        count = min(SINGLE, place.peer.jobs)
        yield "enqueue, one at a time", count / place.inside("each", count), "jobs/s"
    with _place(name) as place:
        count = place.peer.jobs
        yield "enqueue, bulk", count / place.inside("many", "noop", count), "jobs/s"


def drain(name: str, handler: str, processes: int, count: int, figure: str) -> Iterator[Row]:
    """Jobs per second, from when a fifth is done to the end, and the CPU that a job took."""
    with _place(name) as place:
        if place.peer.jobs:
            place.inside("many", handler, count)
        with place.working(processes):
            wait_for(lambda: place.done() >= count * FROM_SHARE, 60, POLL_S)
            first, started, before = place.done(), time.perf_counter(), place.cpu_s()
            wait_for(lambda: place.done() >= count, ALL_S, POLL_S)
            seconds, after = time.perf_counter() - started, place.cpu_s()
            jobs = place.done() - first
        if place.active() < processes:
            raise RuntimeError(f"only {place.active()} of {processes} processes took part")
    yield figure, jobs / seconds, "jobs/s"
    for who, was, now in zip(("worker", "server"), before, after, strict=True):
        yield f"{figure}, CPU of the {who} per job", (now - was) / jobs * 1e6, "µs"


def drain_noop(processes: int) -> Callable[[str], Iterator[Row]]:
    """No-op jobs."""
    figure = f"drain no-op, {processes} process(es)"
    return lambda name: drain(name, "noop", processes, PEERS[name].jobs, figure)


def cpu(name: str) -> Iterator[Row]:
    """Jobs of 1 ms of CPU."""
    count = min(SPINS, PEERS[name].jobs or SPINS)
    return drain(name, "spin", 2, count, "drain 1 ms CPU, 2 processes")


def pick_up(name: str) -> Iterator[Row]:
    """Enqueue to start of the handler, with one idle process."""
    with _place(name) as place, place.working(1):
        waits = sorted(place.inside("pick_up", PICKED_UP))
    for share in (50, 95, 99):
        yield f"idle pick-up p{share}", waits[share * len(waits) // 100] / 1e6, "ms"


def size(name: str) -> Iterator[Row]:
    """Server memory per job with an int and a short string."""
    for figure, action in (("queued", "queued"), ("delayed", "later")):
        with _place(name) as place:
            # What a first job makes once and for all, scripts above all, isn't counted.
            place.inside(action, 1)
            before = int(info(place.client, "memory")["used_memory"])
            place.inside(action, WEIGHED)
            used = int(info(place.client, "memory")["used_memory"]) - before
            yield f"memory per {figure} job", used / WEIGHED, "B"


#: What comes out the same every time is measured once.
STEADY = ("size",)
CASES: dict[str, Callable[[str], Iterator[Row]]] = {
    "enqueue": enqueue,
    "drain1": drain_noop(1),
    "drain2": drain_noop(2),
    "cpu": cpu,
    "pickup": pick_up,
    "size": size,
}
