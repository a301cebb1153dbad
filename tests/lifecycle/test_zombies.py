"""Workers that are suspended and woken after the state has changed: their word counts no more."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from .conftest import until

MODULE = "tests.lifecycle.jobs_that_freeze"
#: Options of the worker whose lease will end, and of the worker that takes over.
SHORT, LONG = ("--processes", "1", "--lease", "1500ms"), ("--processes", "1")


def stopped(*pids):
    """Whether all of them are, now."""
    return all(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in pids)


def wake(pids):
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def frozen(start, send, ledger):
    """frozen("freezes_after"): a worker that its job "a" has stopped, and the pids of both processes."""

    def begin(job, options=SHORT):
        worker = start(*options, module=MODULE)
        send(job, "a")
        until(lambda: ledger.lines(name="a"))
        pids = [worker.pid, *worker.children()]
        until(lambda: stopped(*pids))
        return worker, pids

    return begin


@pytest.fixture
def leave(send, ledger):
    """leave(worker): the last worker, which ignored signals, handles them again and leaves; its exit code."""

    def end(worker):
        send("hears", "h")
        until(lambda: ledger.lines("end", "h"))
        return worker.stop()

    return end


def ends(ledger):
    return [line["fence"] for line in ledger.lines("end", "a")]


@pytest.mark.main_thread
def test_effect_comes_twice_and_the_late_end_is_refused_when_the_whole_worker_was_stopped(
    queue, start, ledger, frozen, leave
):
    zombie, pids = frozen("freezes_after")
    ledger.gate("a").touch()
    other = start(*LONG, module=MODULE)
    until(lambda: len(ends(ledger)) == 2)
    until(lambda: queue.status("a").word in ("nil", "done-awaiting-gc"))
    wake(pids)
    until(lambda: "was rejected" in zombie.log)
    assert other.stop() == leave(zombie) == 0
    first, second = ends(ledger)
    assert first < second
    assert queue.admin.counts().messages == 0
    assert queue.admin.dead() == []
    assert queue.admin.fsck() == []


def test_woken_run_is_stopped_and_has_no_effect_when_its_lease_went_elsewhere(
    queue, start, ledger, frozen
):
    zombie, pids = frozen("freezes_amid")
    other = start(*LONG, module=MODULE)
    until(lambda: len(ends(ledger)) == 1)
    wake(pids)
    until(lambda: ledger.lines("aborted", "a"))
    assert zombie.stop() == other.stop() == 0
    assert len(ends(ledger)) == 1
    assert len(ledger.lines("start", "a")) == 2
    assert queue.admin.counts().messages == 0
    assert queue.admin.fsck() == []


@pytest.mark.main_thread
def test_woken_run_is_stopped_once_when_its_child_and_its_supervisor_both_notice(
    queue, start, ledger, frozen
):
    # The child kills a job that doesn't end within a tenth of the lease: the supervisor must notice before.
    zombie, pids = frozen("cleans_up", ("--processes", "1", "--lease", "5s"))
    other = start(*LONG, module=MODULE)
    until(lambda: len(ends(ledger)) == 1)
    wake(pids)
    until(lambda: "its lock was lost or it was cancelled" in zombie.log)
    ledger.gate("a").touch()
    until(lambda: ledger.lines("aborted", "a"))
    assert zombie.stop() == other.stop() == 0
    assert queue.admin.fsck() == []


@pytest.mark.main_thread
@pytest.mark.parametrize("state", ["queued", "locked"])
def test_late_end_leaves_a_new_message_of_the_same_mid_alone(
    queue, start, send, ledger, frozen, leave, state
):
    zombie, pids = frozen("freezes_after")
    ledger.gate("a").touch()
    other = start(*LONG, module=MODULE)
    until(lambda: len(ends(ledger)) == 2)
    assert other.stop() == 0
    until(lambda: queue.admin.collect() and queue.status("a").word == "nil")
    ledger.gate("a").unlink()
    send("freezes_after", "a")
    third = None
    if state == "locked":
        third = start(*LONG, module=MODULE)
        until(lambda: len(ledger.lines("start", "a")) == 2)
    wake(pids)
    until(lambda: "was rejected" in zombie.log)
    # It lives: waiting for the woken worker, or at its run.
    assert queue.status("a").word in ("queued", "locked")
    ledger.gate("a").touch()
    until(lambda: len(ends(ledger)) == 3)
    until(lambda: queue.status("a").word in ("nil", "done-awaiting-gc"))
    assert third is None or third.stop() == 0
    assert leave(zombie) == 0
    assert ends(ledger) == sorted(ends(ledger))
    assert len(ends(ledger)) == 3
    assert queue.admin.counts().messages == 0
    assert queue.admin.fsck() == []


@pytest.mark.one_server
def test_stopped_child_keeps_its_lock_until_its_timeout_ends_it(queue, start, send, ledger):
    options = ("--processes", "1", "--lease", "4s", "--crash-limit", "1")
    worker, _ = start(*options, module=MODULE), start(*options, module=MODULE)
    send("stops", "a")
    [line] = until(lambda: ledger.lines("start"))
    until(lambda: stopped(line["pid"]))
    first = queue.status("a").lock_expires_at
    until(lambda: queue.status("a").lock_expires_at > first + 4_000)
    assert queue.status("a").word == "locked"
    [dead] = until(queue.admin.dead)
    assert "hard timeout" in dead.reason
    assert len(ledger.lines("start")) == 1
    assert ledger.lines("end") == []
    assert worker.process.poll() is None
    assert queue.admin.fsck() == []
