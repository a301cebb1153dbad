"""Damage of one queue costs the others nothing."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from jobq.queue import keys
from jobq.queue.queue import Queue
from tests.lifecycle.conftest import until

#: Damage that any producer with the right to write to one queue can do to it: key or command.
WRONG_TYPES = (
    "ready",
    "meta",
    "messages",
    "wake",
    "locks",
    "circle",
    "due",
    "ndry_runs",
    "eoq_backoff",
)


def damaged(redis, queue, key):
    """Replace it by a key of another type."""
    name = keys.key(queue.prefix, key)
    redis.delete(name)
    if key in ("ndry_runs", "eoq_backoff"):
        redis.rpush(name, "x")
    else:
        redis.set(name, "x")


@pytest.fixture
def broken(client, redis):
    """Nine queues, each broken in its own way, before any worker starts."""
    queues = [Queue(f"broken-{key.replace('_', '-')}", client) for key in WRONG_TYPES]
    for queue, key in zip(queues, WRONG_TYPES, strict=True):
        damaged(redis, queue, key)
    return queues


def told(worker, words):
    """How many lines of the log say these words, by queue."""
    return Counter(
        line.partition("queue ")[2].partition(":")[0]
        for line in worker.log.splitlines()
        if words in line
    )


def test_worker_starts_and_serves_the_others_when_queues_are_broken(
    broken, redis, queue, start, send, ledger
):
    names = [one.name for one in broken]
    worker = start("--processes", "2", "--lease", "1500ms", queues=",".join([*names, "low"]))
    for number in range(200):
        send("quick", f"q{number}")
    until(lambda: len(ledger.names("end")) == 200)
    until(lambda: set(told(worker, "rejects its calls")) == set(names))

    for one, key in zip(broken, WRONG_TYPES, strict=True):
        redis.delete(keys.key(one.prefix, key))
        send("quick", one.name, to=one)
    until(lambda: len(ledger.names("end")) == 209)
    until(lambda: set(told(worker, "the server answers again after")) >= set(names))
    assert worker.stop() == 0
    # Once per change, however often they were asked.
    assert set(told(worker, "rejects its calls").values()) == {1}
    assert "exited with" not in worker.log
    assert "Traceback" not in worker.log


def test_queue_that_breaks_while_its_jobs_run_is_told_of_them_once_it_is_mended(
    client, redis, start, send, ledger
):
    bad, good = Queue("bad", client), Queue("low", client)
    worker = start("--processes", "1", "--lease", "100s", queues="bad,low")
    for name in ("a", "b"):
        send("gated", name, to=bad)
    until(lambda: ledger.lines("start"))
    meta = keys.key(bad.prefix, "meta")
    redis.rename(meta, f"{meta}-kept")
    redis.set(meta, "x")
    for name in ("a", "b"):
        ledger.gate(name).touch()
    for number in range(50):
        send("quick", f"q{number}", to=good)
    until(lambda: len(ledger.lines("end")) >= 51)

    redis.rename(f"{meta}-kept", meta)
    until(lambda: bad.admin.counts().messages == 0)
    assert worker.stop() == 0
    assert len(ledger.lines("end")) == 52
    assert bad.admin.fsck() == []
    assert "exited with" not in worker.log


def quarantined(worker):
    """Return the sum of the log lines about the queue: two collections may each find one."""
    words = re.findall(
        r"queue bad: quarantined (\d+) (?:entry|entries) that can't be message ids", worker.log
    )
    return sum(map(int, words))


def test_bytes_that_are_no_mid_are_logged_once_and_stop_nothing(client, redis, start, send, ledger):
    bad, good = Queue("bad", client), Queue("low", client)
    ready = keys.key(bad.prefix, "ready")
    redis.lpush(ready, b"\xff", b"x" * 70_000)
    worker = start("--processes", "2", "--lease", "600ms", queues="bad,low")
    send("quick", "a", to=bad)
    send("quick", "b", to=good)
    until(lambda: len(ledger.names("end")) == 2)
    until(lambda: quarantined(worker) == 2)
    redis.lpush(ready, b"\xfe")
    send("quick", "c", to=bad)
    until(lambda: quarantined(worker) == 3)
    assert worker.stop() == 0
    assert quarantined(worker) == 3
    assert "exited with" not in worker.log
