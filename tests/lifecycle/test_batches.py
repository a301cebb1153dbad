"""Batch jobs in real workers: each message ends by itself, whatever happens to the process."""

from __future__ import annotations

import signal

import pytest

from jobq.cli.exits import USAGE
from jobq.worker import exit_codes

from .conftest import until
from .jobs_in_batches import together

MODULE = "tests.lifecycle.jobs_in_batches"
pytestmark = [pytest.mark.main_thread, pytest.mark.one_server]


def test_worker_runs_waiting_messages_together_and_stores_each_result(queue, start, send, ledger):
    names = [f"n{number}" for number in range(25)]
    for name in names:
        send("together", name)
    worker = start("--processes", "1", "--burst", module=MODULE)
    assert worker.wait() == 0
    batches = {tuple(line["batch"]) for line in ledger.lines("start")}
    assert sorted(map(len, batches)) == [5, 10, 10]
    assert [together.receipt(name).result(timeout=5) for name in names] == [
        name.upper() for name in names
    ]
    assert queue.admin.counts().messages == 0
    assert queue.admin.fsck() == []


def test_killed_batch_keeps_ended_calls_and_runs_the_others_alone(queue, start, send, ledger):
    names = [*(f"n{number}" for number in range(5)), "poison"]
    for name in names:
        send("kills_together", name)
    worker = start("--processes", "1", "--crash-limit", "3", module=MODULE)
    until(lambda: queue.admin.dead() and queue.admin.counts().messages == 0)
    assert worker.stop() == 0
    attempts = {name: [line["attempt"] for line in ledger.lines("start", name)] for name in names}
    assert attempts == {
        "n0": [1], **{f"n{number}": [1, 2] for number in range(1, 5)}, "poison": [1, 2, 3],
    }  # fmt: skip
    assert all(len(line["batch"]) == 1 for line in ledger.lines("start") if line["attempt"] > 1)
    assert [(one.mid, one.ncrashes) for one in queue.admin.dead()] == [("poison", 3)]
    assert queue.admin.fsck() == []


def test_worker_with_threads_is_refused(start):
    worker = start("--threads", "2", "--burst", module=MODULE)
    assert worker.wait() == USAGE
    assert "takes batches, which need a worker without threads" in worker.log


@pytest.mark.long
def test_ended_calls_are_reported_while_the_function_runs(queue, start, send, ledger):
    for name in ("good", "bad", "dead", "open"):
        send("one_by_one", name)
    worker = start("--processes", "1", module=MODULE)
    until(lambda: ledger.lines("ended"))
    until(lambda: queue.status("good").word in ("nil", "done-awaiting-gc"))
    until(lambda: [one.mid for one in queue.admin.dead()] == ["dead"])
    assert queue.status("bad").word.startswith("queued")
    assert queue.status("open").word == "locked"
    ledger.gate("batch").touch()
    until(lambda: queue.admin.counts().messages == 0)
    assert worker.stop() == 0
    assert [line["attempt"] for line in ledger.lines("start", "bad")] == [1, 2]
    assert len(ledger.lines("start", "good") + ledger.lines("start", "open")) == 2


@pytest.mark.long
def test_cancelled_call_is_lost_and_the_batch_stops_when_all_are(queue, start, send, ledger):
    for name in ("a", "b", "good"):
        send("one_by_one", name)
    worker = start("--processes", "1", "--lease", "3s", module=MODULE)
    until(lambda: ledger.lines("ended"))
    queue.cancel("a")
    until(lambda: ledger.lines("lost", "a"))
    assert not ledger.lines("aborted") and queue.status("b").word == "locked"
    queue.cancel("b")
    until(lambda: ledger.lines("aborted"))
    until(lambda: queue.admin.counts().messages == 0)
    assert worker.stop() == 0
    assert not queue.admin.dead() and queue.admin.fsck() == []


@pytest.mark.long
def test_hurried_batch_returns_its_open_calls_uncharged(queue, start, send, ledger):
    for name in ("a", "b", "good"):
        send("one_by_one", name)
    worker = start("--processes", "1", module=MODULE)
    until(lambda: ledger.lines("ended"))
    worker.send(signal.SIGTERM)
    until(lambda: "drain" in worker.log or "stop" in worker.log)
    worker.send(signal.SIGTERM)
    assert worker.wait() == exit_codes.FORCED
    assert ledger.lines("aborted")
    left = {name: queue.status(name) for name in ("a", "b", "good")}
    assert {name: one.word for name, one in left.items()}["a"] == "queued"
    assert (left["a"].attempts, left["b"].attempts) == (0, 0)
    assert left["good"].word != "queued"


@pytest.mark.long
def test_timeout_of_a_batch_fails_its_calls_and_they_run_again(queue, start, send, ledger):
    for name in ("a", "b"):
        send("overlong_together", name)
    worker = start("--processes", "1", module=MODULE)
    until(lambda: queue.admin.counts().messages == 0)
    assert worker.stop() == 0
    assert sorted(line["name"] for line in ledger.lines("end")) == ["a", "b"]
    assert {line["attempt"] for line in ledger.lines("end")} == {2}
    assert worker.log.count("ran past its timeout of 0.3 s") >= 2
