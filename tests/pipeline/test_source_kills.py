"""Streaming queries killed while producers write: resumed, they have each event once, and each row as one job."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.pipeline import offsets
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.conftest import connected

PROGRAM = Path(__file__).with_name("streaming_program.py")
#: Each costs a JVM; the last run, to the end, is one more.
KILLS = 12 if os.environ.get("JOBQ_PIPELINE") == "soak" else 1
#: A queue waits while its stream has so many: one keeps 100,000, which are there before the queries have started often.
MAX_UNREAD = 5_000


class Work:
    """Messages enqueued and finished, each an event. copies: how often each row's job was there."""

    def __init__(self, url: str) -> None:
        self.url, self.total = url, 0
        self.copies: Counter[str] = Counter()
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
                key = offsets.events_key(client.namespace, queue.name)
                if int(client.command("XLEN", key)) > MAX_UNREAD:
                    continue
                queue.enqueue_many([b"v"] * 50)
                held = queue.dequeue(50).messages
                queue.finish([Ending(mid=one.mid, token=one.token) for one in held])
                self.total += len(held)
            self.drain(Queue("copied", client))
            # Producers that leave the readers some of the machine.
            self._over.wait(0.1)
        client.close()

    def drain(self, copied: Queue) -> None:
        """Take all jobs that there are, and finish them."""
        while held := copied.dequeue(50).messages:
            copied.finish([Ending(mid=one.mid, token=one.token) for one in held])
            self.copies.update(one.mid for one in held)

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
    """How many batches both queries have begun; Spark refuses a checkpoint of a query killed before the first."""
    return min(
        len(list((folder / name / "offsets").glob("[0-9]*"))) for name in ("checkpoint", "copied")
    )


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


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_each_event_is_read_once_and_each_row_a_job_when_the_queries_are_killed(
    work, valkey, tmp_path
):
    for _ in range(KILLS):
        killed_at_random(started(valkey.url, tmp_path, "on"), tmp_path)
    total = work.stop()
    process = started(valkey.url, tmp_path, "end")
    told, _ = process.communicate(timeout=900)
    assert process.returncode == 0, (tmp_path / "log").read_text()
    assert json.loads(told.splitlines()[-1]) == [total, total]
    assert total > 1_000
    with connected(valkey) as client:
        copied = Queue("copied", client)
        work.drain(copied)
        assert copied.admin.fsck() == []
    assert len(work.copies) == total
    assert set(work.copies.values()) == {1}
