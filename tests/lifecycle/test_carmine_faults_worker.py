"""Carmine's faults of the worker: no renewal, hopeless messages for ever, a stop too early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.waiting import until

DEADLINE_S = 120
JOBS = """
import os, time
from jobq import job

def note(path, word):
    with open(path, "a") as file:
        file.write(word + "\\n")

@job(queue="low", name="gated")
def gated(notes, gate):
    note(notes, "start")
    deadline = time.monotonic() + 60
    while not os.path.exists(gate):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    note(notes, "end")
"""


class Gated:
    """One message of the gated job, and what its runs wrote."""

    def __init__(self, queue: Any, folder: Path, mid: str) -> None:
        self.mid, self.notes, self.gate = mid, folder / f"{mid}.notes", folder / f"{mid}.gate"
        args = [str(self.notes), str(self.gate)]
        queue.enqueue(msgspec.json.encode({"job": "gated", "args": args}), mid=mid)

    def wrote(self) -> list[str]:
        return self.notes.read_text().split() if self.notes.exists() else []


@pytest.fixture
def start_worker(server, tmp_path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """start_worker(*options): `jobq worker` with one child on queue low."""
    (tmp_path / "gated_jobs.py").write_text(JOBS)
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("JOBQ", "REDIS"))
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "jobq", "worker", "--url", server.url, "--queues", "low"]
        command += ["--import", "gated_jobs", "--processes", "1", *options]
        env = {**kept, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=env))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(DEADLINE_S)


def test_b20_undecodable_content_is_dead_and_the_rest_flows(queue, tmp_path, start_worker):
    """A payload that failed to thaw, after the lease was taken, came back for ever."""
    queue.enqueue(b"\xff\x00 no call", mid="garbage")
    good = Gated(queue, tmp_path, "good")
    good.gate.touch()

    assert start_worker("--burst").wait(DEADLINE_S) == 0

    assert good.wrote() == ["start", "end"]
    [dead] = queue.admin.dead()
    assert (dead.mid, dead.content) == ("garbage", b"\xff\x00 no call")
    assert dead.reason
    assert queue.admin.counts().messages == 0


def test_b22_job_longer_than_its_lease_runs_once(queue, tmp_path, start_worker):
    """No renewal: a job longer than lock-ms always ran twice."""
    long = Gated(queue, tmp_path, "long")
    start_worker("--lease", "5s")
    until(long.wrote, "never started")

    first = queue.status("long").lock_at
    until(lambda: queue.status("long").lock_at > first + 5_000, "never renewed")
    long.gate.touch()

    until(lambda: queue.status("long").word != "locked", "never finished")
    assert long.wrote() == ["start", "end"]
    assert queue.admin.dead() == []


def test_b23_stop_waits_for_the_running_handler(queue, tmp_path, start_worker):
    """Stop waited for the polling loops, not for the handlers."""
    running = Gated(queue, tmp_path, "running")
    worker = start_worker("--lease", "5s")
    until(running.wrote, "never started")

    worker.send_signal(signal.SIGTERM)
    renewed = queue.status("running").lock_at
    until(lambda: queue.status("running").lock_at > renewed + 2_000, "lease dropped while draining")
    assert worker.poll() is None
    running.gate.touch()

    assert worker.wait(DEADLINE_S) == 0
    assert running.wrote() == ["start", "end"]
    assert queue.admin.counts().locked == 0
    assert queue.admin.counts().ready == 0


def test_b23_message_is_locked_only_when_a_child_is_free(queue, tmp_path, start_worker):
    """A message was leased before a handler was free, its lease running already."""
    running = Gated(queue, tmp_path, "running")
    worker = start_worker()
    until(running.wrote, "never started")
    waiting = Gated(queue, tmp_path, "waiting")

    before = queue.status("running").lock_at
    until(lambda: queue.status("running").lock_at > before, "lease never renewed")
    assert queue.status("waiting").word == "queued"
    assert queue.status("waiting").attempts == 0

    waiting.gate.touch()
    running.gate.touch()
    until(lambda: waiting.wrote() == ["start", "end"], "never ran")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(DEADLINE_S) == 0
