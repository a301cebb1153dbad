"""The ingest is killed at random moments while a producer and a worker work: each event is there once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest

from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.pipeline import offsets
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import inspection
from jobq.pipeline.lake.ingest import Ingest, IngestOptions
from jobq.pipeline.lake.lake import Lake
from tests.pipeline.lake import jobs_to_ingest
from tests.pipeline.lake.conftest import batches, rows

PROGRAM = Path(__file__).with_name("ingest_program.py")
ROOT = Path(__file__).resolve().parents[3]
#: Who reads, and how often it is killed.
KILLS = (("local", 6), ("spark", 1))
QUEUES = ("low", "high")


@pytest.fixture
def work(valkey, valkey_redis, valkey_client) -> Iterator[threading.Event]:
    """A worker, and a producer that keeps it busy until the event is set."""
    over = threading.Event()
    worker = subprocess.Popen(
        [sys.executable, "-m", "jobq", "worker", "--import", "tests.pipeline.lake.jobs_to_ingest",
         "--queues", ",".join(QUEUES), "--processes", "1"],
        cwd=ROOT, env={**os.environ, "JOBQ_URL": valkey.url}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    producer = threading.Thread(target=_produce, args=(over,))
    producer.start()
    yield over
    over.set()
    producer.join()
    worker.terminate()
    assert worker.wait(300) == 0


def _produce(over: threading.Event) -> None:
    numbers = count()
    while not over.is_set():
        for number in islice(numbers, 40):
            jobs_to_ingest.fine.enqueue(number)
            jobs_to_ingest.fails_at_times.enqueue(number)
        # Producers that leave the others some of the machine.
        over.wait(0.05)


def killed(url: str, lake: str, when: str, log: Path) -> int:
    """Start an ingest, let it commit, kill it and all that it started at any moment; rows it told of."""
    with log.open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), url, lake, when],
            stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, cwd=ROOT,
        )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first, log.read_text()
    time.sleep(random.random() * 0.4)
    os.killpg(process.pid, signal.SIGKILL)
    told, _ = process.communicate()
    return int(first) + sum(int(line) for line in told.splitlines() if line)


@pytest.mark.timeout(1800)
def test_each_event_is_there_once_when_the_ingest_is_killed_again_and_again(
    work, valkey, valkey_client, tmp_path
):
    path, log = str(tmp_path / "lake"), tmp_path / "log"
    told = [killed(valkey.url, path, when, log) for when, count in KILLS for _ in range(count)]
    work.set()
    lake = Lake.open(path)
    keys = [offsets.events_key("jobq", queue) for queue in QUEUES]
    last = Ingest(
        lake,
        Client(ServerSettings(url=valkey.url)),
        Engine("local"),
        IngestOptions(trim=True),
    )
    deadline = time.monotonic() + 600
    while _busy(valkey_client) or sum(batch.rows for batch in batches(last)):
        assert time.monotonic() < deadline
    written = {key: offsets.events_tail(valkey_client, key).n for key in keys}
    found = [(row["queue"], row["entry_at"], row["entry_seq"]) for row in rows(lake)]
    assert len(found) == len(set(found)) == sum(written.values()) >= sum(told) > 0
    assert all(finding.level == "ok" for finding in inspection.check(lake))


def _busy(client: Client) -> bool:
    from jobq.queue.queue import Queue

    counts = [Queue(queue, client).admin.counts() for queue in QUEUES]
    return any(one.ready or one.delayed or one.locked for one in counts)
