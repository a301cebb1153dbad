"""TERM, TERM again, HUP, TSTP, TTIN, burst."""

from __future__ import annotations

import os
import re
import signal

import psutil
import pytest

from .conftest import until


def test_term_drains_and_runs_nothing_twice(queue, start, send, ledger):
    for number in range(200):
        send("quick", f"q{number}")
    send("gated", "long")
    for number in range(200, 400):
        send("quick", f"q{number}")
    worker = start("--processes", "2")
    until(lambda: ledger.lines("start", "long"))
    worker.send(signal.SIGTERM)
    until(lambda: "draining" in worker.log)
    ledger.gate("long").touch()
    assert worker.wait() == 0
    assert queue.admin.counts().locked == 0

    assert start("--burst").wait() == 0
    ended = [line["name"] for line in ledger.lines("end")]
    assert len(ended) == len(set(ended)) == 401
    assert queue.admin.fsck() == []


@pytest.mark.loop
@pytest.mark.parametrize("job", ["gated", "agated"])
def test_second_term_gives_running_jobs_back(queue, start, send, ledger, job):
    worker = start("--processes", "1")
    send(job, "a")
    until(lambda: ledger.lines("start"))
    worker.send(signal.SIGTERM)
    until(lambda: "draining" in worker.log)
    worker.send(signal.SIGTERM)

    assert worker.wait() == 12
    assert ledger.lines("aborted")
    status = queue.status("a")
    assert (status.word, status.attempts, status.ncrashes) == ("queued", 0, 0)


def test_job_that_will_not_stop_is_killed_and_given_back(queue, start, send, ledger):
    worker = start("--processes", "1", "--shutdown-timeout", "100ms")
    send("holds_gil", "a", 30)
    until(lambda: ledger.lines("start"))
    worker.send(signal.SIGTERM)
    assert worker.wait() == 12
    status = queue.status("a")
    assert (status.word, status.ncrashes) == ("queued", 0)


def test_hup_replaces_the_children_one_by_one(start, send, ledger):
    worker = start("--processes", "2")
    until(lambda: worker.log.count(" started") == 2)
    before = set(worker.children())
    send("quick", "a")
    until(lambda: ledger.lines("end"))
    worker.send(signal.SIGHUP)
    until(lambda: len(worker.children()) == 2 and not before & set(worker.children()))
    send("quick", "b")
    until(lambda: ledger.lines("end", "b"))
    assert worker.stop() == 0


def test_tstp_takes_nothing_new_until_cont(queue, start, send, ledger):
    worker = start("--processes", "1")
    send("gated", "a")
    until(lambda: ledger.lines("start"))
    worker.send(signal.SIGTSTP)
    until(lambda: "quiet" in worker.log)
    ledger.gate("a").touch()
    until(lambda: queue.status("a").word != "locked")
    send("quick", "b")
    # A child that still fetched messages would be woken by this message immediately.
    collected = [queue.admin.collect() for _ in range(100)]
    assert len(collected) == 100
    assert queue.status("b").word == "queued"
    worker.send(signal.SIGCONT)
    until(lambda: ledger.lines("end", "b"))
    assert worker.stop() == 0


def stacks_of_all(worker, children):
    """Return the log after a TTIN that each child answered in time."""

    def answered():
        before = len(worker.log)
        worker.send(signal.SIGTTIN)
        until(lambda: worker.log[before:].count(" running") == children)
        until(lambda: worker.log.endswith("\n"))
        told = worker.log[before:]
        return (
            told if "(it doesn't answer)" not in told and told.count("in gated") == children else ""
        )

    return until(answered)


def test_ttin_dumps_the_stacks_of_running_jobs(start, send, ledger):
    worker = start("--processes", "1")
    send("gated", "a")
    until(lambda: ledger.lines("start"))
    stacks = stacks_of_all(worker, 1)
    assert "1 running" in stacks and "in gated" in stacks
    ledger.gate("a").touch()
    assert worker.stop() == 0


def test_stacks_of_several_children_stand_apart_when_ttin_comes(start, send, ledger):
    worker = start("--processes", "3")
    for number in range(3):
        send("gated", f"a{number}")
    until(lambda: len(ledger.lines("start")) == 3)
    parts = re.split(r"child (\d+): \d running.*\n", stacks_of_all(worker, 3))[1:]
    for pid, stacks in zip(parts[::2], parts[1::2], strict=True):
        assert int(pid) in worker.children()
        # Every one is whole: it ends in the outermost frames of each child's main thread.
        assert stacks.count("Current thread") + stacks.count("Thread 0x") >= 1
        assert stacks.count("in gated") == 1
    for number in range(3):
        ledger.gate(f"a{number}").touch()
    assert worker.stop() == 0


def test_child_says_that_it_does_not_answer_when_it_is_stopped(start, send, ledger):
    worker = start("--processes", "1")
    send("gated", "a")
    until(lambda: ledger.lines("start"))
    (child,) = worker.children()
    os.kill(child, signal.SIGSTOP)
    worker.send(signal.SIGTTIN)
    until(lambda: "(it doesn't answer)" in worker.log)
    os.kill(child, signal.SIGCONT)
    ledger.gate("a").touch()
    assert worker.stop() == 0


def test_worker_starts_when_ttin_comes_before_it_has_begun(start, send, ledger, tmp_path):
    """Start a worker whose module waits amid its import until TTIN has been sent."""
    reached, gate = tmp_path / "reached", tmp_path / "go"
    (tmp_path / "slow_module.py").write_text(
        f"import pathlib, time\npathlib.Path({str(reached)!r}).touch()\n"
        f"while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.005)\n"
        "from tests.lifecycle.jobs_at_work import quick\n"
    )
    worker = start(module="slow_module", env={"PYTHONPATH": str(tmp_path)})
    until(reached.exists)
    worker.send(signal.SIGTTIN)
    assert psutil.Process(worker.pid).status() != psutil.STATUS_STOPPED
    gate.touch()
    send("quick", "a")
    until(lambda: ledger.lines("end", "a"))
    assert worker.stop() == 0


@pytest.mark.parametrize("processes", ["1", "3"])
def test_burst_leaves_when_everything_is_done(queue, start, send, ledger, processes):
    for number in range(500):
        send("quick", f"q{number}")
    assert start("--burst", "--processes", processes).wait() == 0
    assert len(ledger.lines("end")) == 500
    # A worker that leaves collects what it had ended.
    assert queue.admin.counts().messages == 0


def test_burst_goes_on_after_a_crash(queue, start, send, ledger):
    send("kills", "poison")
    for number in range(50):
        send("quick", f"q{number}")
    assert start("--burst", "--processes", "2").wait() == 0
    assert len(ledger.lines("end")) == 50
    assert [dead.mid for dead in queue.admin.dead()] == ["poison"]


def test_child_born_while_the_worker_is_quiet_is_quiet(queue, start, send, ledger):
    worker = start("--processes", "1")
    until(lambda: worker.children())
    worker.send(signal.SIGTSTP)
    until(lambda: "quiet" in worker.log)
    [first] = worker.children()
    os.kill(first, signal.SIGKILL)
    until(lambda: worker.children() not in ([], [first]))
    send("quick", "a")
    worker.send(signal.SIGCONT)
    until(lambda: ledger.lines("end"))
    assert worker.stop() == 0


@pytest.mark.loop
def test_jobs_cancelled_before_their_first_step_are_given_back(queue, start, send, ledger):
    worker = start("--processes", "1", "--concurrency", "10")
    send("holds_gil", "busy", 1.0)
    until(lambda: ledger.lines("start", "busy"))
    for name in "abc":
        send("agated", name)
    worker.send(signal.SIGTERM)
    until(lambda: "draining" in worker.log)
    worker.send(signal.SIGTERM)
    assert worker.wait() in (0, 12)
    assert queue.admin.counts().locked == 0
    assert all(queue.status(name).word == "queued" for name in "abc")


@pytest.mark.parametrize("burst", ["--burst", "--burst=retries"])
def test_burst_waits_for_retries_that_are_due_soon(queue, start, send, ledger, burst):
    send("later", "soon", 1.2)
    send("later", "late", 3600.0)
    queue.enqueue(b"{}", mid="delayed", delay=30)
    assert start(burst, "--processes", "2").wait() == 0
    assert ledger.names("end") == {"soon"}
    assert queue.status("late").word == queue.status("delayed").word == "queued-with-backoff"


@pytest.mark.one_server
@pytest.mark.parametrize("end", [["--max-jobs", "1"], ["--crash-limit", "1"]])
def test_burst_waits_for_retries_when_the_child_that_ran_them_is_replaced(
    queue, start, send, ledger, end
):
    """Replace a child by --max-jobs, or because the next job kills it."""
    send("later", "soon", 1.2)
    send("kills" if "--crash-limit" in end else "quick", "next")
    assert start("--burst", "--processes", "1", "--prefetch", "1", *end).wait() == 0
    assert "soon" in ledger.names("end")


@pytest.mark.one_server
def test_burst_of_ready_messages_waits_for_no_retry(queue, start, send, ledger):
    send("later", "soon", 30.0)
    assert start("--burst=ready", "--processes", "1").wait() == 0
    assert ledger.names("end") == set()
    assert queue.status("soon").word == "queued-with-backoff"


def test_cancelled_job_is_logged_as_cancelled_at_info(start, send, ledger, queue):
    send("gated", "a")
    worker = start("--processes", "1", "--lease", "3s")
    until(lambda: ledger.lines("start", "a"))
    assert queue.cancel("a") == ["cancelled"]
    until(lambda: "stopping a, which was cancelled" in worker.log)
    until(lambda: ledger.lines("aborted", "a"))
    assert worker.stop() == 0
    [line] = [line for line in worker.log.splitlines() if "which was cancelled" in line]
    assert " INFO " in line and "lock" not in worker.log
    [line] = [line for line in worker.log.splitlines() if " stopped " in line]
    assert " INFO " in line and "it was cancelled, or its lease was lost" in line
