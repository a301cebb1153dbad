"""A peer with a separate server, its worker, and the counters of its jobs."""

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
from bench.server import OVER_TCP, ROOT, VALKEY, free_port, private_server, saved, server_s

Row = tuple[str, float, str]
ACT_S = 120
POLL_S = 0.002


class Stage:
    """`name` of PEERS at work on `client`'s server."""

    def __init__(self, name: str, client: jobq.Client, folder: Path, **extra: str) -> None:
        self.name, self.client, self.folder = name, client, folder
        self.peer, self._inside = PEERS[name], inside_of(name)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.spawned_at = 0.0
        progress, self.ledger = folder / "progress", folder / "ledger"
        progress.write_bytes(bytes(SLOTS * 8))
        self.ledger.touch()
        with progress.open("r+b") as file:
            self._everyone = memoryview(mmap.mmap(file.fileno(), SLOTS * 8)).cast("Q")
        self._environment = {
            **os.environ,
            "BENCH_SOCKET": client.url.removeprefix("unix://"),
            "BENCH_PROGRESS": str(progress),
            "BENCH_LEDGER": str(self.ledger),
            **extra,
        }

    def done(self) -> int:
        """Return the number of ended jobs."""
        return done_by_all(self._everyone)

    def reached(self, count: float) -> Callable[[], bool]:
        """Return a function that checks if this many jobs have ended."""
        return lambda: self.done() >= count

    def active(self) -> int:
        """Return the number of processes, or of their threads, that ended a job."""
        return sum(1 for count in self._everyone[1:] if count)

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the worker."""
        found = []
        for worker in self.workers:
            with suppress(psutil.NoSuchProcess):
                parent = psutil.Process(worker.pid)
                found += [parent, *parent.children(recursive=True)]
        return found

    def cpu_s(self) -> tuple[float, float]:
        """Seconds of CPU that the worker, with all its processes, and the server took so far."""
        worker = 0.0
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                used = process.cpu_times()
                worker += used.user + used.system
        return worker, server_s(self.client)

    def inside(self, action: str, *arguments: object) -> Any:
        """Run an action in the peer's venv."""
        ran = subprocess.run(
            [*self._inside, action, *map(str, arguments)],
            cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=ACT_S, check=False,
        )  # fmt: skip
        if ran.returncode:
            raise RuntimeError(f"{action}: {ran.stderr.strip()[-800:]}")
        return json.loads(ran.stdout.splitlines()[-1])

    @contextmanager
    def working(self, processes: int) -> Iterator[None]:
        """Run a worker with this many processes; end it with all its children."""
        commands: list[list[str]] = self.inside("worker", processes)
        self.spawned_at = time.monotonic()
        self.workers = [self.start(command) for command in commands]
        try:
            yield
        except TimeoutError as error:
            said = (self.folder / "log").read_text(errors="replace")[-800:]
            raise RuntimeError(f"{error}, {self.done()} jobs done; {said}") from error
        finally:
            for process in self.workers:
                self._end(process)

    def until(self, reached: Callable[[], object], seconds: float = 60) -> None:
        """Wait until `reached()`; raise TimeoutError after `seconds`, or once a worker command has ended."""

        def over() -> object:
            ended = [worker for worker in self.workers if worker.poll() is not None]
            if ended:
                raise TimeoutError(f"the worker ended with {ended[0].returncode}")
            return reached()

        wait_for(over, seconds, POLL_S)

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a command of a worker; its output goes to the log."""
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )  # fmt: skip

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End jobq with TERM, so that it cleans up; kill other systems, whose server ends soon."""
        if self.name == "own":
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def stage(
    name: str, *, contents: Path | None = None, binary: str = VALKEY, **extra: str
) -> Iterator[Stage]:
    """A peer, a fresh server with `contents`, and variables that its processes see."""
    port = free_port() if OVER_TCP in os.environ else 0
    if port:
        extra["BENCH_PORT"] = str(port)
    with (
        private_server(binary=binary, contents=contents, port=port) as client,
        tempfile.TemporaryDirectory(prefix="jobq-peer-") as folder,
    ):
        yield Stage(name, client, Path(folder), **extra)


class Fillings:
    """Dumps of servers with jobs in them: enqueued once, drained many times."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._made: dict[tuple[object, ...], Path] = {}

    def of(self, name: str, handler: str, count: int, delayed: int = 0) -> Path:
        """Enqueue ready jobs, and delayed jobs due in an hour."""
        key = (name, handler, count, delayed)
        if key not in self._made:
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="jobq-fill-")
            path = Path(self._folder.name, "-".join(map(str, key)))
            with stage(name) as place:
                if delayed:
                    place.inside("later", delayed)
                if count:
                    place.inside("fill", handler, count)
                saved(place.client, path)
            self._made[key] = path
        return self._made[key]


FILLINGS = Fillings()


def wait_for(reached: Callable[[], object], seconds: float, every: float = 0.01) -> None:
    """Wait until `reached()` is true, or raise TimeoutError."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not reached in {seconds} s")
        time.sleep(every)
