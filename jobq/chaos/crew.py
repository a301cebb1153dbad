"""The workers of a round: `jobq worker` in processes of their own, to be killed, stopped and replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jobq.chaos.ledger import Ledger
from jobq.chaos.records import RECORD
from jobq.errors import JobqError

PACKAGE = Path(__file__).resolve().parents[2]
START_S, STOP_S = 100.0, 60.0


class ChaosTimeoutError(JobqError):
    """The rehearsal itself came to a halt."""


def until(holds: Callable[[], object], what: str, seconds: float) -> None:
    """Poll until it holds; ChaosTimeoutError when it doesn't in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise ChaosTimeoutError(f"{what} within {seconds:g} s")
        time.sleep(0.02)


class Crew:
    """So many workers of so many children each. Every other one reaches the server by the URL `side`, if given."""

    def __init__(
        self, folder: Path, url: str, namespace: str, lease_s: float, crash_limit: int,
        side: str = "", loops: bool = False, queues: Sequence[str] = ("chaos",),
        record_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.lease_s, self.crash_limit = lease_s, crash_limit
        self.ledger = Ledger(str(folder / "ledger"))
        self.living: list[subprocess.Popen[bytes]] = []
        self.aside: list[subprocess.Popen[bytes]] = []
        self._leaving: list[subprocess.Popen[bytes]] = []
        self._side, self._loops, self._queues = side, loops, ",".join(queues)
        self._folder = folder
        self._begun = 0
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS"))}
        path = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH", "")]))
        self._env = {
            **kept, "PYTHONPATH": path, "JOBQ_CHAOS_LEDGER": self.ledger.folder, "JOBQ_URL": url,
            "JOBQ_NAMESPACE": namespace,
        }  # fmt: skip
        if record_s:
            self._env[RECORD] = str(record_s)
        Path(self.ledger.folder).mkdir()

    def start(self, children: int = 2) -> None:
        """One more worker."""
        command = [
            sys.executable, "-P", "-m", "jobq", "worker", "--import", "jobq.chaos.workload",
            "--queues", self._queues, "--processes", str(children), "--lease", f"{self.lease_s}s",
            "--crash-limit", str(self.crash_limit), "--log-level", "warning",
        ]  # fmt: skip
        self._begun += 1
        aside = bool(self._side) and self._begun % 2 == 1
        env = {**self._env, "JOBQ_URL": self._side} if aside else {**self._env}
        if self._loops and (self._begun // 2) % 2:
            env["JOBQ_CHAOS_LOOP"] = "1"
        with (self._folder / f"worker{self._begun}.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=env, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        self.living.append(process)
        if aside:
            self.aside.append(process)

    def ready(self) -> None:
        """Wait until every worker has children."""
        until(lambda: all(map(children_of, self._pids())), "no worker started", START_S)

    def drop(self, process: subprocess.Popen[bytes]) -> None:
        """It is none of ours any more."""
        self.living.remove(process)

    def leave(self, process: subprocess.Popen[bytes]) -> None:
        """TERM: it drains."""
        self.drop(process)
        self._leaving.append(process)
        process.terminate()

    def exited(self) -> tuple[str, ...]:
        """Workers that left although nobody had them leave, with their exit codes."""
        ended = ((process, process.poll()) for process in self.living)
        return tuple(f"{process.pid}: {code}" for process, code in ended if code is not None)

    def stop(self) -> None:
        """Drain all; ChaosTimeoutError when one doesn't leave."""
        for process in tuple(self.living):
            self.leave(process)
        for process in self._leaving:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                raise ChaosTimeoutError(
                    f"a worker didn't leave within {STOP_S:g} s after TERM"
                ) from None

    def tracebacks(self) -> tuple[str, ...]:
        """Logs of workers in which something went wrong that nobody expected."""
        logs = self._folder.glob("worker*.log")
        return tuple(log.name for log in logs if "Traceback" in log.read_text(errors="replace"))

    def kill(self) -> None:
        """Leave nothing behind, whatever happened."""
        for process in [*self.living, *self._leaving]:
            for pid in [*children_of(process.pid), process.pid]:
                signalled(pid, signal.SIGKILL)
            process.wait()

    def _pids(self) -> list[int]:
        return [process.pid for process in self.living]


def children_of(pid: int) -> list[int]:
    """The living children of a process."""
    asked = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    )
    rows = (line.split() for line in asked.stdout.splitlines())
    return [int(row[0]) for row in rows if int(row[1]) == pid and not row[2].startswith("Z")]


def alive(pid: int) -> bool:
    """Whether it runs: a zombie doesn't."""
    asked = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return asked.stdout.strip()[:1] not in ("", "Z")


def signalled(pid: int, number: int) -> bool:
    """Send a signal; False when there is nobody any more."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
