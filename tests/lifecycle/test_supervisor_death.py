"""The supervisor dies, or the whole worker is paused: the lease decides."""

from __future__ import annotations

import signal

import psutil
import pytest

from .conftest import until


def test_children_are_gone_and_jobs_come_back_after_the_lease_when_the_supervisor_is_killed(
    queue, start, send, ledger
):
    worker = start("--processes", "2", "--lease", "1s")
    send("gated", "a")
    until(lambda: ledger.lines("start"))
    pids = until(lambda: len(found := worker.children()) == 2 and found)

    worker.send(signal.SIGKILL)
    worker.wait()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "children live on")

    start("--processes", "1", "--lease", "1s")
    until(lambda: len(ledger.lines("start", "a")) >= 2)
    assert ledger.lines("end") == []
    ledger.gate("a").touch()
    until(lambda: queue.admin.counts().messages == 0)
    assert queue.admin.fsck() == []


@pytest.mark.one_server
def test_job_keeps_its_lock_when_it_holds_the_gil_for_longer_than_its_lease(
    queue, start, send, ledger
):
    for _ in range(2):
        start("--processes", "1", "--lease", "4s")
    send("holds_gil", "a", 5.0)
    until(lambda: ledger.lines("end"))
    until(lambda: queue.admin.counts().messages == 0)
    assert len(ledger.lines("start")) == 1
    assert len(ledger.lines("end")) == 1
