"""A streaming query that is killed while producers write: resumed, it has each event once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.queue.queue import Queue
from jobq.queue.types import Ending

PROGRAM = Path(__file__).with_name("streaming_program.py")
#: Each costs a JVM; the last run, to the end, is one more.
KILLS = 1


class Work:
    """Messages enqueued and finished without pause; each is an event."""

    def __init__(self, url: str) -> None:
        self.url, self.total = url, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        client = connect(settings=ServerSettings(url=self.url))
        queues = [Queue(name, client) for name in ("low", "high")]
        while not self._over.is_set():
            if self.total > 5_000 and len(queues) == 2:
                queues.append(Queue("later", client))
            for queue in queues:
                queue.enqueue_many([b"v"] * 50)
                held = queue.dequeue(50).messages
                queue.finish([Ending(mid=one.mid, token=one.token) for one in held])
                self.total += len(held)
            # Producers that leave the readers some of the machine.
            self._over.wait(0.1)
        client.close()

    def stop(self) -> int:
        """How many events there are in all."""
        self._over.set()
        self._thread.join()
        return self.total


@pytest.fixture
def work(valkey, valkey_redis) -> Iterator[Work]:
    work = Work(valkey.url)
    yield work
    work.stop()


def started(url: str, folder: Path, until: str) -> subprocess.Popen[str]:
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), url, str(folder), until],
            stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
        )  # fmt: skip


def begun(folder: Path) -> int:
    """How many batches were begun; Spark refuses a checkpoint of a query killed before the first."""
    return len(list((folder / "checkpoint" / "offsets").glob("[0-9]*")))


def killed_at_random(process: subprocess.Popen[str], folder: Path) -> None:
    """Once it has begun a batch of its own, at any moment within the next second."""
    before, deadline = begun(folder), time.monotonic() + 400
    while begun(folder) <= before:
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.02)
    time.sleep(random.random())
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.timeout(1800)
def test_each_event_is_read_once_when_the_query_is_killed(work, valkey, tmp_path):
    for _ in range(KILLS):
        killed_at_random(started(valkey.url, tmp_path, "on"), tmp_path)
    total = work.stop()
    process = started(valkey.url, tmp_path, "end")
    told, _ = process.communicate(timeout=900)
    assert process.returncode == 0, (tmp_path / "log").read_text()
    assert json.loads(told.splitlines()[-1]) == [total, total]
    assert total > 1_000
