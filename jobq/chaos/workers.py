"""The workers of a round: `jobq worker` processes, which faults kill, stop and replace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from jobq.chaos.call_records import RECORD_VARIABLE
from jobq.chaos.ledger import Ledger
from jobq.errors import JobqError
from jobq.worker.programs import running_processes

PACKAGE = Path(__file__).resolve().parents[2]
START_S, STOP_S = 100.0, 60.0
WORKLOAD = "jobq.chaos.workload"


class ChaosTimeoutError(JobqError):
    """A round waited too long for an event."""


def wait_until(holds: Callable[[], object], what: str, seconds: float) -> None:
    """Poll until `holds` returns true. Raise ChaosTimeoutError after `seconds`; `what` describes the wait."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise ChaosTimeoutError(f"{what} within {seconds:g} s")
        time.sleep(0.02)


class WorkerOptions(NamedTuple):
    """Options that all workers of a round share.

    Attributes:
        event_loops: Whether half of the workers run async jobs.
        record_s: Lifetime of call records; 0 for the usual time.
        threads: Concurrent sync jobs per process.
        module: Module to import.
    """

    lease_s: float
    crash_limit: int
    event_loops: bool = False
    queues: Sequence[str] = ("chaos",)
    record_s: float = 0.0
    threads: int = 1
    module: str = WORKLOAD


class WorkerGroup:
    """The workers of a round. Every second worker connects to the URL `side`, if it is set.

    Attributes:
        env: The environment of each process.
    """

    def __init__(
        self, folder: Path, url: str, namespace: str, options: WorkerOptions, side: str = ""
    ) -> None:
        self.lease_s, self.crash_limit = options.lease_s, options.crash_limit
        self.ledger = Ledger(str(folder / "ledger"))
        self.running: list[subprocess.Popen[bytes]] = []
        self.on_second_proxy: list[subprocess.Popen[bytes]] = []
        self._terminated: list[subprocess.Popen[bytes]] = []
        self._side, self._loops, self._queues = side, options.event_loops, ",".join(options.queues)
        self._folder, self._threads, self._module = folder, options.threads, options.module
        self._nstarted = 0
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS"))}
        path = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH", "")]))
        self.env = {
            **kept, "PYTHONPATH": path, "JOBQ_CHAOS_LEDGER": self.ledger.folder, "JOBQ_URL": url,
            "JOBQ_NAMESPACE": namespace,
        }  # fmt: skip
        if options.record_s:
            self.env[RECORD_VARIABLE] = str(options.record_s)
        Path(self.ledger.folder).mkdir()

    def start(self, children: int = 2) -> None:
        """Start one more worker."""
        command = [
            sys.executable, "-P", "-m", "jobq", "worker", "--import", self._module,
            "--queues", self._queues, "--processes", str(children), "--lease", f"{self.lease_s}s",
            "--crash-limit", str(self.crash_limit), "--threads", str(self._threads),
            "--log-level", "warning",
        ]  # fmt: skip
        self._nstarted += 1
        on_second_proxy = bool(self._side) and self._nstarted % 2 == 1
        env = {**self.env, "JOBQ_URL": self._side} if on_second_proxy else {**self.env}
        if self._loops and (self._nstarted // 2) % 2:
            env["JOBQ_CHAOS_LOOP"] = "1"
        with (self._folder / f"worker{self._nstarted}.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=env, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        self.running.append(process)
        if on_second_proxy:
            self.on_second_proxy.append(process)

    def ready(self) -> None:
        wait_until(lambda: all(map(children_of, self._pids())), "no worker started", START_S)

    def remove(self, process: subprocess.Popen[bytes]) -> None:
        self.running.remove(process)

    def terminate(self, process: subprocess.Popen[bytes]) -> None:
        self.remove(process)
        self._terminated.append(process)
        process.terminate()

    def exited(self) -> tuple[str, ...]:
        ended = ((process, process.poll()) for process in self.running)
        return tuple(f"{process.pid}: {code}" for process, code in ended if code is not None)

    def stop(self) -> None:
        for process in tuple(self.running):
            self.terminate(process)
        for process in self._terminated:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                raise ChaosTimeoutError(
                    f"a worker didn't exit within {STOP_S:g} s of SIGTERM"
                ) from None

    def tracebacks(self) -> tuple[str, ...]:
        """Return the names of the workers' log files that contain a traceback."""
        logs = self._folder.glob("worker*.log")
        return tuple(log.name for log in logs if "Traceback" in log.read_text(errors="replace"))

    def kill(self) -> None:
        """Kill every process."""
        for process in [*self.running, *self._terminated]:
            for pid in [*children_of(process.pid), process.pid]:
                signalled(pid, signal.SIGKILL)
            process.wait()

    def _pids(self) -> list[int]:
        return [process.pid for process in self.running]


def children_of(pid: int) -> list[int]:
    """Return the running children of a process."""
    return [child for child, process in running_processes().items() if process.parent == pid]


def alive(pid: int) -> bool:
    """Return whether a process is running and isn't a zombie."""
    return pid in running_processes()


def signalled(pid: int, number: int) -> bool:
    """Send a signal to a process; return False if the process no longer exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
