"""Leftovers of jobs: programs end with a killed job, and threads and tasks are named when they are cut off."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from jobq.client.clock import boot_ns
from jobq.worker.programs import running_processes

from .conftest import alive, until

MODULE = "tests.lifecycle.jobs_with_programs"


def runs(pid):
    try:
        return alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def age_s(pid):
    """How long ago a program started, to a hundredth of a second. The time of day of its start is known less well."""
    return boot_ns() / 1e9 - running_processes()[pid].started / os.sysconf("SC_CLK_TCK")


@pytest.mark.one_server
@pytest.mark.parametrize("threads", ["1", "2"])
def test_programs_of_a_job_end_with_it_at_its_hard_timeout_and_earlier_ones_run_on(
    queue, start, send, ledger, threads
):
    worker = start("--processes", "1", "--threads", threads, "--crash-limit", "1", module=MODULE)
    send("leaves_programs", "before")
    [before] = until(lambda: ledger.lines("end"))
    until(lambda: age_s(before["programs"][1]) > 0.1)
    send("waits_for_programs", "killed")
    [killed] = until(lambda: ledger.lines("start"))
    [dead] = until(queue.admin.dead)
    assert "hard timeout" in dead.reason
    until(lambda: not any(runs(pid) for pid in killed["programs"]), "a program goes on")
    assert all(runs(pid) for pid in before["programs"])
    assert worker.stop() == 0
    assert "the programs started by its jobs were killed" in worker.log
    for pid in before["programs"]:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.one_server
@pytest.mark.parametrize("number", [signal.SIGSEGV, 0])
def test_programs_of_a_job_end_when_its_child_crashes_and_earlier_ones_run_on(
    queue, start, send, ledger, number
):
    worker = start("--processes", "1", "--crash-limit", "1", module=MODULE)
    send("leaves_programs", "before")
    [before] = until(lambda: ledger.lines("end"))
    until(lambda: age_s(before["programs"][1]) > 0.1)
    send("crashes_over_programs", "crashed", number)
    [crashed] = until(lambda: ledger.lines("start"))
    until(queue.admin.dead)
    until(lambda: not any(runs(pid) for pid in crashed["programs"]), "a program goes on")
    assert all(runs(pid) for pid in before["programs"])
    assert worker.stop() == 0
    assert "the programs started by its jobs were killed" in worker.log
    for pid in before["programs"]:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.one_server
def test_thread_that_a_job_left_is_named_when_its_child_leaves(start, send, ledger):
    worker = start("--processes", "1", module=MODULE, env={"LIFECYCLE_LOOP": "no"})
    send("leaves_threads", "a")
    until(lambda: ledger.lines("end"))
    assert worker.stop() == 0
    assert "uploader (threading.Event.wait)" in worker.log
    assert "by-the-way" not in worker.log
    assert "ThreadPoolExecutor" not in worker.log


@pytest.mark.one_server
@pytest.mark.loop
def test_task_that_a_job_left_is_named_when_its_child_leaves(start, send, ledger):
    worker = start("--processes", "1", module=MODULE)
    send("leaves_tasks", "a")
    until(lambda: ledger.lines("end"))
    assert worker.stop() == 0
    assert "mailer (sleep)" in worker.log
