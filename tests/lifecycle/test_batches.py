"""Batch jobs in real workers: each message ends by itself, whatever happens to the process."""

from __future__ import annotations

import os
import signal

import pytest

from jobq.worker import exit_codes

from .conftest import until
from .jobs_in_batches import keyed_together, together

MODULE = "tests.lifecycle.jobs_in_batches"
pytestmark = pytest.mark.one_server

#: Prefix of the job's name, and options of the worker. Tests of `main` and `threads` have no event loop for jobs.
RUNNERS = [
    pytest.param("", (), id="main", marks=pytest.mark.main_thread),
    pytest.param("", ("--threads", "2"), id="threads", marks=pytest.mark.main_thread),
    pytest.param("a", (), id="loop", marks=pytest.mark.loop),
]
IN_EACH = pytest.mark.parametrize(("kind", "options"), RUNNERS)


@IN_EACH
def test_worker_runs_waiting_messages_together_and_stores_each_result(
    queue, start, send, ledger, kind, options
):
    names = [f"n{number}" for number in range(25)]
    for name in names:
        send(f"{kind}together", name)
    worker = start("--processes", "1", "--burst", *options, module=MODULE)
    assert worker.wait() == 0
    batches = {tuple(line["batch"]) for line in ledger.lines("start")}
    assert sorted(map(len, batches)) == [5, 10, 10]
    assert [together.receipt(name).result(timeout=5) for name in names] == [
        name.upper() for name in names
    ]
    assert queue.admin.counts().messages == 0
    assert queue.admin.fsck() == []


@IN_EACH
def test_killed_batch_keeps_ended_calls_and_runs_the_others_alone(
    queue, start, send, ledger, kind, options
):
    names = [*(f"n{number}" for number in range(5)), "poison"]
    for name in names:
        send(f"{kind}kills_together", name)
    worker = start("--processes", "1", "--crash-limit", "3", *options, module=MODULE)
    until(lambda: queue.admin.dead() and queue.admin.counts().messages == 0)
    assert worker.stop() == 0
    attempts = {name: [line["attempt"] for line in ledger.lines("start", name)] for name in names}
    assert attempts == {
        "n0": [1], **{f"n{number}": [1, 2] for number in range(1, 5)}, "poison": [1, 2, 3],
    }  # fmt: skip
    assert all(len(line["batch"]) == 1 for line in ledger.lines("start") if line["attempt"] > 1)
    assert [(one.mid, one.ncrashes) for one in queue.admin.dead()] == [("poison", 3)]
    assert queue.admin.fsck() == []


@pytest.mark.long
@pytest.mark.main_thread
@pytest.mark.parametrize("options", [(), ("--threads", "2")], ids=["main", "threads"])
def test_ended_calls_are_reported_while_the_function_runs(queue, start, send, ledger, options):
    for name in ("open", "good", "bad", "dead"):
        send("one_by_one", name)
    worker = start("--processes", "1", *options, module=MODULE)
    until(lambda: ledger.lines("ended"))
    until(lambda: queue.status("good").word in ("nil", "done-awaiting-gc"))
    until(lambda: [one.mid for one in queue.admin.dead()] == ["dead"])
    until(lambda: len(ledger.lines("start", "bad")) == 1 + len(options) // 2)
    assert queue.status("open").word == "locked"
    ledger.gate("batch").touch()
    until(lambda: queue.admin.counts().messages == 0)
    assert worker.stop() == 0
    assert [line["attempt"] for line in ledger.lines("start", "bad")] == [1, 2]
    assert len(ledger.lines("start", "good") + ledger.lines("start", "open")) == 2


@pytest.mark.long
@IN_EACH
def test_cancelled_call_is_lost_and_the_batch_stops_when_all_are(
    queue, start, send, ledger, kind, options
):
    for name in ("good", "a", "b"):
        send(f"{kind}one_by_one", name)
    worker = start("--processes", "1", "--lease", "3s", *options, module=MODULE)
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
@IN_EACH
def test_hurried_batch_returns_its_open_calls_uncharged(queue, start, send, ledger, kind, options):
    for name in ("a", "b", "good"):
        send(f"{kind}one_by_one", name)
    worker = start("--processes", "1", *options, module=MODULE)
    until(lambda: ledger.lines("ended"))
    worker.send(signal.SIGTERM)
    until(lambda: "draining" in worker.log)
    worker.send(signal.SIGTERM)
    assert worker.wait() == exit_codes.FORCED
    assert ledger.lines("aborted")
    left = {name: queue.status(name) for name in ("a", "b", "good")}
    assert (left["a"].word, left["b"].word) == ("queued", "queued")
    assert (left["a"].attempts, left["b"].attempts) == (0, 0)
    assert left["good"].word != "queued"


@pytest.mark.long
@pytest.mark.main_thread
@pytest.mark.parametrize("options", [(), ("--threads", "2")], ids=["main", "threads"])
def test_timeout_of_a_batch_fails_its_calls_and_they_run_again(queue, start, send, ledger, options):
    for name in ("a", "b"):
        send("overlong_together", name)
    worker = start("--processes", "1", *options, module=MODULE)
    until(lambda: queue.admin.counts().messages == 0)
    assert worker.stop() == 0
    assert sorted(line["name"] for line in ledger.lines("end")) == ["a", "b"]
    assert {line["attempt"] for line in ledger.lines("end")} == {2}
    assert worker.log.count("ran past its timeout of 0.3 s") >= 2


@pytest.mark.long
@pytest.mark.parametrize(("kind", "options"), RUNNERS[1:])
def test_other_jobs_run_next_to_a_batch_and_in_the_places_of_its_ended_calls(
    queue, start, send, ledger, kind, options
):
    batch = ["open", *(f"good{number}" for number in range(8))]
    for name in batch:
        send(f"{kind}one_by_one", name)
    worker = start("--processes", "1", *options, module=MODULE)
    until(lambda: ledger.lines("ended"))
    until(lambda: queue.admin.counts().messages == 1)
    quick = [f"q{number}" for number in range(30)]
    for name in quick:
        send("quick", name)
    until(lambda: ledger.names("end") == set(quick))
    assert queue.status("open").word == "locked"
    ledger.gate("batch").touch()
    until(lambda: queue.admin.counts().messages == 0)
    assert worker.stop() == 0
    assert sorted(line["name"] for line in ledger.lines("start")) == sorted(batch)
    assert len(ledger.lines("end")) == len(quick)
    assert not queue.admin.dead() and queue.admin.fsck() == []


@IN_EACH
def test_calls_wait_for_others_until_their_batch_is_full_or_their_linger_has_passed(
    queue, start, send, ledger, kind, options
):
    worker = start("--processes", "1", *options, module=MODULE)
    for name in ("a", "b"):
        send(f"{kind}waits_for_three", name)
    until(lambda: all(queue.status(name).word == "locked" for name in ("a", "b")))
    send(f"{kind}lingers", "alone")
    until(lambda: ledger.lines("start", "alone"))
    assert [line["batch"] for line in ledger.lines("start")] == [["alone"]]
    send(f"{kind}waits_for_three", "c")
    until(lambda: queue.admin.counts().messages == 0)
    assert {tuple(line["batch"]) for line in ledger.lines("start")} == {("alone",), ("a", "b", "c")}
    assert worker.stop() == 0


@pytest.mark.long
@IN_EACH
def test_waiting_calls_are_returned_uncharged_by_a_stop_and_after_a_death(
    queue, redis, start, send, ledger, kind, options
):
    names = ("a", "b")
    for name in names:
        send(f"{kind}waits_for_three", name)
    worker = start("--processes", "1", *options, module=MODULE)
    until(lambda: all(queue.status(name).word == "locked" for name in names))
    # A child that waits for more messages isn't reading one: a death then is charged to nothing.
    until(lambda: redis.info("clients")["blocked_clients"])
    [child] = worker.children()
    os.kill(child, signal.SIGKILL)
    until(lambda: worker.children() not in ([], [child]))
    until(lambda: all(queue.status(name).word == "locked" for name in names))
    assert worker.stop() == 0
    left = [queue.status(name) for name in names]
    assert [(one.word, one.attempts, one.ncrashes) for one in left] == [("queued", 0, 0)] * 2
    assert not ledger.lines("start")


@pytest.mark.long
@IN_EACH
def test_call_cancelled_while_it_waits_for_its_batch_does_not_start(
    queue, start, send, ledger, kind, options
):
    for name in ("a", "b"):
        send(f"{kind}waits_for_three", name)
    worker = start("--processes", "1", "--lease", "3s", *options, module=MODULE)
    until(lambda: all(queue.status(name).word == "locked" for name in ("a", "b")))
    queue.cancel("a")
    send(f"{kind}waits_for_three", "c")
    until(lambda: queue.admin.counts().messages == 0)
    assert worker.stop() == 0
    assert ledger.names("start") == {"b", "c"}
    assert queue.admin.fsck() == []


@pytest.mark.long
@pytest.mark.main_thread
def test_waiting_calls_run_in_time_when_a_child_may_fetch_no_more(queue, start, send, ledger):
    for name in ("a", "b"):
        send("lingers", name)
    worker = start("--processes", "1", "--max-jobs", "2", module=MODULE)
    until(lambda: queue.admin.counts().messages == 0)
    assert {tuple(line["batch"]) for line in ledger.lines("start")} == {("a", "b")}
    assert worker.stop() == 0


@pytest.mark.main_thread
def test_batch_has_calls_of_one_key(queue, start, ledger):
    names = [f"{key}{number}" for number in range(8) for key in "ab"]
    keyed_together.enqueue_many((str(ledger.path), name) for name in names)
    queue.rule("b", max=5)
    worker = start("--processes", "1", "--burst", module=MODULE)
    assert worker.wait() == 0
    batches = {tuple(line["batch"]) for line in ledger.lines("start")}
    assert sorted(name for batch in batches for name in batch) == sorted(names)
    assert all(len({name[0] for name in batch}) == 1 for batch in batches)
    assert any(len(batch) > 1 for batch in batches if batch[0][0] == "a")
    assert queue.admin.fsck() == []


@pytest.mark.long
@pytest.mark.loop
def test_batch_is_not_started_next_to_a_message_with_a_crash_on_record(
    queue, redis, start, send, ledger
):
    worker = start("--processes", "1", module=MODULE)
    send("alingers_long", "a")
    until(lambda: queue.status("a").word == "locked")
    send("awatches", "crashed", delay=0.1)
    redis.hset(f"{queue.prefix}ncrashes", "crashed", 1)
    until(lambda: queue.admin.counts().messages == 0)
    assert worker.stop() == 0
    [end] = ledger.lines("end")
    assert not end["beside"] and len(ledger.lines("start", "a")) == 1
