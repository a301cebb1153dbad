"""Workers as users start them: `jobq worker` in a process of its own, with real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jobq.queue.queue import Queue
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120


def alive(process: psutil.Process) -> bool:
    """Whether it is neither gone nor a zombie."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Worker:
    """A running `jobq worker`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._log = log

    @property
    def log(self) -> str:
        """Return its output so far."""
        return self._log.read_text()

    def children(self) -> list[int]:
        """Return the process ids of its living children."""
        try:
            found = psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []
        return [child.pid for child in found if alive(child)]

    def send(self, number: int) -> None:
        """A signal to the supervisor."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        return self.process.wait(DEADLINE_S)

    def stop(self) -> int:
        """Drain, and its exit code."""
        self.send(signal.SIGTERM)
        return self.wait()


@pytest.fixture
def start(
    request: pytest.FixtureRequest, server: Any, client: Any, tmp_path: Path
) -> Iterator[Callable[..., Worker]]:
    """start("--lease", "1s", url=…, env=…): `jobq worker` on queue low with the jobs of jobs_at_work.

    On Redis children run one sync job at a time, in the main thread. On Valkey they have an event loop, since the
    worker knows async jobs, and run sync ones in a thread. A test marked `loop` or `main_thread` runs on one server.

    A worker that a busy machine stops for half a lease loses it. So a lease is short only if the test waits for its
    end, or allows a second run.
    """
    marked = request.node.get_closest_marker
    loop = marked("loop") or (server.kind == "valkey" and not marked("main_thread"))
    os_env = {**os.environ, "LIFECYCLE_LOOP": "yes" if loop else "no"}
    kept = {k: v for k, v in os_env.items() if not k.startswith(("JOBQ", "REDIS", "SENTRY"))}
    started: list[Worker] = []

    def begin(
        *options: str, url: str = "", module: str = "tests.lifecycle.jobs_at_work",
        queues: str = "low", env: dict[str, str] | None = None,
    ) -> Worker:  # fmt: skip
        log = tmp_path / f"worker{len(started)}.log"
        command = [sys.executable, "-m", "jobq", "worker", "--url", url or server.url]
        command += ["--queues", queues, "--import", module, *options]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=ROOT, env={**kept, **(env or {})}, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip
        started.append(Worker(process, log))
        return started[-1]

    yield begin
    for worker in started:
        pids = worker.children()
        if worker.process.poll() is None:
            worker.process.kill()
        worker.process.wait(DEADLINE_S)
        print(worker.log[-20_000:])  # shown if the test failed
        for pid in pids:
            until(lambda pid=pid: not psutil.pid_exists(pid), "a child outlived its supervisor")


class Ledger:
    """The lines that runs wrote: one line per happening."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger"
        self.path.touch()
        self.gates = folder

    def __fspath__(self) -> str:
        return str(self.path)

    def lines(self, word: str = "", name: str | None = None) -> list[dict[str, Any]]:
        """The happenings of one kind, of one name. A line is there once its end is."""
        found = [json.loads(line) for line in self.path.read_text().split("\n")[:-1]]
        return [
            one
            for one in found
            if word in ("", one["word"]) and (name is None or one["name"] == name)
        ]

    def names(self, word: str) -> set[str]:
        """The names to which that happened, however often."""
        return {line["name"] for line in self.lines(word)}

    def gate(self, name: str) -> Path:
        """Jobs of that name wait until it exists."""
        return self.gates / f"{name}.gate"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty one."""
    return Ledger(tmp_path)


@pytest.fixture
def send(queue: Queue, ledger: Ledger) -> Callable[..., None]:
    """send("gated", "a"): enqueue a call of that job under the mid "a"."""

    def enqueue(job: str, name: str, *args: Any, to: Queue | None = None, **options: Any) -> None:
        content = json.dumps({"job": job, "args": [str(ledger.path), name, *args]}).encode()
        (to or queue).enqueue(content, mid=name, **options)

    return enqueue
