"""The ingest is killed at random moments while a producer, a worker and upkeep work: each event is there once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path

import pytest

from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.pipeline import offsets
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import erase, inspection, upkeep
from jobq.pipeline.lake.commit import state_of
from jobq.pipeline.lake.ingest import Ingest, IngestOptions
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.tables import EVENTS
from jobq.queue.queue import Queue
from tests.pipeline.lake import jobs_to_ingest
from tests.pipeline.lake.conftest import batches, mids, rows
from tests.pipeline.lake.test_erase import traces

PROGRAM, UPKEEP, ERASE = (
    Path(__file__).with_name(f"{name}_program.py") for name in ("ingest", "upkeep", "erase")
)
ROOT = Path(__file__).resolve().parents[3]
SOAK = os.environ.get("JOBQ_PIPELINE") == "soak"
#: Who reads, and how often it is killed; after how many rounds the concurrent upkeep is killed.
SHORT = [pytest.param((("local", 4), ("spark", 1)), 10, id="short")]
LONG = [
    pytest.param((("local", 40),), 3, id="local"),
    pytest.param((("spark", 15),), 5, id="spark"),
    pytest.param((("cluster", 8),), 5, id="cluster"),
]
QUEUES = ("low", "high")
#: The producer waits while a queue has so many: a stream keeps 100,000.
MAX_UNREAD = 5_000
#: Events of a day that upkeep expires.
NOLD = 300
DAY_MS = 86_400_000
#: Events that upkeep erases: the first ones of a queue that nobody else uses.
NERASED = 50


@pytest.fixture
def work(valkey, valkey_redis, valkey_client) -> Iterator[threading.Event]:
    """A worker, and a producer that keeps it busy until the event is set."""
    over = threading.Event()
    worker = subprocess.Popen(
        [sys.executable, "-m", "jobq", "worker", "--import", "tests.pipeline.lake.jobs_to_ingest",
         "--queues", ",".join(QUEUES), "--processes", "1"],
        cwd=ROOT, env={**os.environ, "JOBQ_URL": valkey.url}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    producer = threading.Thread(target=_produce, args=(over, valkey_client))
    producer.start()
    yield over
    over.set()
    producer.join()
    worker.terminate()
    assert worker.wait(300) == 0


def _produce(over: threading.Event, client: Client) -> None:
    numbers = count()
    while not over.is_set():
        # Streams that overrun while a cluster starts would lose events.
        if all(_unread(client, queue) < MAX_UNREAD for queue in QUEUES):
            for number in islice(numbers, 40):
                jobs_to_ingest.fine.enqueue(number)
                jobs_to_ingest.fails_at_times.enqueue(number)
        # Producers that leave the others some of the machine.
        over.wait(0.05)


def _unread(client: Client, queue: str) -> int:
    """Events in the queue's stream, which the ingest trims, and later events of its messages."""
    ready = Queue(queue, client).admin.counts().ready
    return ready + int(client.command("XLEN", offsets.events_key(client.namespace, queue)))


def killed(url: str, lake: str, when: str, log: Path) -> int:
    """Start an ingest, let it commit, kill it and all that it started at any moment; reported rows."""
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


@contextmanager
def upkeep_beside(path: str, rounds: int, log: Path) -> Iterator[None]:
    """Compact, expire and erase until the context ends, in processes killed after so many rounds."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            with log.open("a") as errors:
                process = subprocess.Popen(
                    [sys.executable, str(UPKEEP), path],
                    stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, cwd=ROOT,
                )  # fmt: skip
            assert process.stdout is not None
            for _ in range(rounds):
                if over.is_set() or not process.stdout.readline():
                    break
            time.sleep(random.random() * 0.4)
            failed.append(process.poll())
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    failed: list[int | None] = []
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert set(failed) == {None}, log.read_text()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(7200 if SOAK else 1800)
@pytest.mark.parametrize(("kills", "rounds"), LONG if SOAK else SHORT)
def test_each_event_is_there_once_when_the_ingest_is_killed_again_and_again(
    work, write, valkey, valkey_client, tmp_path, kills, rounds
):
    path, log = str(tmp_path / "lake"), tmp_path / "log"
    write("old", NOLD, at=time.time_ns() // 1_000_000 - 4 * DAY_MS)
    write("kept", 2 * NERASED, at=time.time_ns() // 1_000_000 - 1_000)
    lake = Lake.create(path)
    with upkeep_beside(path, rounds, tmp_path / "upkeep"):
        told = [killed(valkey.url, path, when, log) for when, count in kills for _ in range(count)]
    work.set()
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
    upkeep.expire(lake, 2 * 86_400)
    upkeep.compact(lake, ["events"])
    # A process that was killed early may not have begun it.
    gone = [erase.Erasable("mid", "kept", f"m{number}") for number in range(1, NERASED + 1)]
    erase.begin(lake, gone, "a test")
    erase.finish(lake, Engine("local"))
    written = {key: offsets.events_tail(valkey_client, key).n for key in keys}
    state = state_of(lake, EVENTS)
    assert state.lost == {}
    found = [(row["queue"], row["entry_at"], row["entry_seq"]) for row in rows(lake)]
    assert len(found) == len(set(found)) == sum(written.values()) + NERASED
    kept = mids(lake, "kept")
    assert kept == {f"m{number}": 1 for number in range(NERASED + 1, 2 * NERASED + 1)}
    assert state.expired == NOLD
    assert state.rows >= sum(told) > 0
    assert all(finding.level == "ok" for finding in inspection.check(lake))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(7200 if SOAK else 1800)
@pytest.mark.parametrize(
    ("when", "kills"), [("local", 30), ("spark", 12)] if SOAK else [("spark", 1)]
)
def test_each_row_is_there_or_erased_when_the_erasure_is_killed_again_and_again(
    lake, ingest, write, tmp_path, when, kills
):
    first, size, nfiles = 10_000, 20, 12
    for number in range(nfiles):
        write("low", size, first=first + size * number)
        ingest.events()
    every = {f"m{first + number}" for number in range(size * nfiles)}
    gone = {mid for mid in every if int(mid[1:]) % 3 == 0}
    erase.begin(lake, [erase.Erasable("mid", None, mid) for mid in gone], "a test")
    for number in range(kills):
        _killed_erasure(lake, when, tmp_path / "log", step=number % (nfiles // 2) + 1)
        found = mids(lake)
        assert set(found.values()) == {1}
        assert every - gone <= found.keys() <= every
        erased = state_of(lake, EVENTS).erased
        assert erased == len(every) - len(found)
        faults = [one.text for one in inspection.check(lake) if one.level == "fail"]
        assert bool(faults) == bool(erase.pending(lake))
        assert all("--resume" in fault for fault in faults), faults
    erase.finish(lake, Engine("local"))
    assert mids(lake).keys() == every - gone
    assert traces(Path(lake.store.uri), *gone) == []
    assert all(finding.level == "ok" for finding in inspection.check(lake))


def _killed_erasure(lake: Lake, when: str, log: Path, step: int) -> None:
    """Kill an erasure and its executors at any moment of this step or later steps; it may be over before."""
    with log.open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, str(ERASE), lake.store.uri, when],
            stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, cwd=ROOT,
        )  # fmt: skip
    assert process.stdout is not None
    for _ in range(step):
        assert process.stdout.readline(), log.read_text()
    time.sleep(random.random() * 0.3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), log.read_text()


def _busy(client: Client) -> bool:
    counts = [Queue(queue, client).admin.counts() for queue in QUEUES]
    return any(one.ready or one.delayed or one.locked for one in counts)
