"""A job meddles with its child's event loop or signals: it ends by its own rules, and no other job suffers."""

from __future__ import annotations

import signal

import pytest

from .conftest import until
from .jobs_that_meddle import CANCELLING, MEDDLING

MODULE = "tests.lifecycle.jobs_that_meddle"


@pytest.mark.loop
def test_job_that_cancels_itself_or_all_tasks_fails_and_its_neighbours_run_on(
    queue, start, send, ledger
):
    worker = start("--processes", "1", "--concurrency", "20", "--lease", "1h", module=MODULE)
    neighbours = ["a", "b", "c"]
    for name in neighbours:
        send("agated", name)
    send("gathers", "gathers")
    until(lambda: len(ledger.lines("start")) == 4)
    for how in CANCELLING:
        send("cancels", f"{how}-awaits", how)
        send("cancels_and_returns", f"{how}-returns", how)
        send("cancels_and_goes_on", f"{how}-goes-on", how)
    send("stops_loop", "stops_loop")
    send("aborts", "aborts")
    send("aaborts", "aaborts")
    failed = {f"{how}-awaits" for how in CANCELLING} | {"aborts", "aaborts"}
    until(lambda: {one.mid for one in queue.admin.dead()} == failed)
    until(lambda: all(ledger.lines("end", f"{how}-goes-on") for how in CANCELLING))
    until(lambda: ledger.lines("end", "stops_loop"))
    send("quick", "after")
    until(lambda: ledger.lines("end", "after"))
    for name in neighbours:
        ledger.gate(name).touch()
    until(lambda: queue.admin.counts().messages == 0)

    reasons = {one.mid: one.reason for one in queue.admin.dead()}
    assert set(reasons) == failed
    for mid, reason in reasons.items():
        assert ("JobAborted" if "aborts" in mid else "CancelledError") in reason
    for name in neighbours:
        assert len(ledger.lines("start", name)) == 1
        assert not ledger.lines("aborted", name)
    assert len(ledger.lines("end", "gathers")) == 1
    assert worker.stop() == 0
    assert worker.log.count(" started") == 1


@pytest.mark.loop
def test_job_that_ends_its_event_loop_is_charged_with_it(queue, start, send, ledger):
    start("--processes", "1", "--concurrency", "5", "--crash-limit", "2", module=MODULE)
    send("agated", "neighbour")
    until(lambda: ledger.lines("start"))
    send("exits_in_task", "exits")
    # From its crash on each of them runs alone.
    until(lambda: ledger.lines("start", "exits"))
    ledger.gate("neighbour").touch()
    until(lambda: queue.admin.counts().messages == 0)
    assert [(one.mid, one.ncrashes) for one in queue.admin.dead()] == [("exits", 2)]
    assert ledger.lines("end", "neighbour")


@pytest.mark.loop
def test_job_that_fails_and_ends_its_event_loop_runs_once(queue, start, send, ledger):
    worker = start("--processes", "1", "--concurrency", "5", module=MODULE)
    send("fails_and_exits", "fails")
    until(queue.admin.dead)
    assert "failed first" in queue.admin.dead()[0].reason
    assert worker.stop() == 0
    assert len(ledger.lines("start", "fails")) == 1


@pytest.mark.loop
def test_job_is_still_stopped_by_its_worker_when_another_one_cancelled_all_tasks(
    queue, start, send, ledger
):
    worker = start("--processes", "1", "--concurrency", "5", "--lease", "3s", module=MODULE)
    send("agated", "a")
    until(lambda: ledger.lines("start"))
    send("cancels", "all", "all")
    until(queue.admin.dead)
    queue.cancel("a")
    until(lambda: ledger.lines("aborted", "a"))
    assert worker.stop() == 0


@pytest.mark.main_thread
def test_job_that_changes_signals_takes_them_from_no_other_job(queue, start, send, ledger):
    for how in MEDDLING:
        send("meddles", how, how)
        send("lasts", f"{how}-lasts")
        send("meddles", f"{how}-again", how)
        send("limited", f"{how}-limited")
    worker = start("--processes", "1", module=MODULE)
    until(lambda: len(queue.admin.dead()) == len(MEDDLING) and queue.admin.counts().messages == 0)
    for dead in queue.admin.dead():
        assert dead.mid.endswith("-limited")
        assert "timeout of 0.1 s" in dead.reason
        assert dead.ncrashes == 0
    assert len(ledger.lines("end")) == 3 * len(MEDDLING)
    assert {(line["code"], line["blocked"]) for line in ledger.lines("end") if "code" in line} == {
        (3, 0)
    }
    worker.send(signal.SIGTSTP)  # heard while it sleeps
    until(lambda: "quiet" in worker.log)
    assert worker.stop() == 0
    assert worker.log.count(" started") == 1, worker.log
    assert "crashed" not in worker.log


@pytest.mark.main_thread
def test_timeout_holds_for_a_job_that_is_deaf_to_its_timer(queue, start, send, ledger):
    deaf = ["ignore", "own", "stop", "block", "block-all"]
    for how in deaf:
        send("meddles_and_hangs" if how != "block-all" else "blocks_and_hangs", how, how)
    worker = start("--processes", "4", "--crash-limit", "1", module=MODULE)
    until(lambda: len(queue.admin.dead()) == len(deaf))
    reasons = {one.mid: one.reason for one in queue.admin.dead()}
    # Only a job that blocks all signals must be killed; the supervisor reminds the others of their soft timeout.
    assert "hard timeout" in reasons.pop("block-all")
    assert all("ran past its timeout of 0.1 s" in reason for reason in reasons.values())
    # A timeout may come before the job writes that it started, but none runs twice.
    assert len(ledger.lines("start")) == len(ledger.names("start"))
    assert worker.stop() == 0


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("options", "loop"),
    [((), "no"), (("--threads", "2"), "yes"), (("--concurrency", "1"), "yes")],
    ids=["alone", "threads", "loop"],
)
def test_context_variables_end_with_the_job_that_set_them(
    queue, start, send, ledger, monkeypatch, options, loop
):
    monkeypatch.setenv("LIFECYCLE_LOOP", loop)
    names = [f"{kind}sets_context-{number}" for number in range(4) for kind in ("", "a")]
    names = [name for name in names if loop == "yes" or not name.startswith("a")]
    for name in names:
        send(name.partition("-")[0], name)
    worker = start("--processes", "1", *options, module=MODULE)
    until(lambda: len(ledger.lines("saw")) == len(names))
    assert {(one["tenant"], one["prec"]) for one in ledger.lines("saw")} == {("nobody", 11)}
    assert worker.stop() == 0


@pytest.mark.loop
def test_thread_lets_signals_through_when_the_job_before_blocked_them(queue, start, send, ledger):
    start("--processes", "1", module=MODULE)
    for name in ("a", "b"):
        send("meddles", f"{name}-meddles", "block-all")
        until(lambda name=name: ledger.lines("end", f"{name}-meddles"))
        send("lasts", name)
        until(lambda name=name: ledger.lines("end", name))
    assert [ledger.lines("end", name)[0]["blocked"] for name in ("a", "b")] == [0, 0]
