"""The server falls silent: nobody waits for its answer beyond the end of a lease."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from .conftest import ROOT, until
from .test_server_trouble import own, own_queue

__all__ = ["own", "own_queue"]

#: A worker whose calls wait for an answer far longer than its leases last.
PATIENT = """
import sys
from jobq.config import ServerSettings, WorkerSettings
from jobq.client.connection import connect
from jobq.jobs.registry import default_registry
from jobq.worker.run import run_worker
import tests.lifecycle.jobs_at_work, tests.lifecycle.jobs_that_freeze

client = connect(settings=ServerSettings(url=sys.argv[1], socket_timeout_s=60.0))
settings = WorkerSettings(queues=(("low", 1),), processes=1, lease_s=0.8)
sys.exit(run_worker(settings, client, default_registry))
"""


@pytest.fixture(params=["no", "yes"], ids=["plain", "loop"])
def patient(own, tmp_path, request):
    """patient(): start it; its log."""
    log, started = tmp_path / "log", []

    def begin():
        with log.open("wb") as file:
            started.append(subprocess.Popen(
                [sys.executable, "-c", PATIENT, own.url], cwd=ROOT, stdout=file, stderr=file,
                env={**os.environ, "PYTHONPATH": str(ROOT), "LIFECYCLE_LOOP": request.param},
            ))  # fmt: skip
        return log

    yield begin
    own.process.send_signal(signal.SIGCONT)
    for process in started:
        process.kill()
        process.wait()


def test_job_is_stopped_at_its_deadline_though_others_of_its_batch_wait_to_be_reported(
    own, own_queue, send, ledger, patient
):
    for number in range(300):
        send("quick", f"q{number}", to=own_queue)
    send("silences", "a", own.process.pid, to=own_queue)
    patient()
    [aborted] = until(lambda: ledger.lines("aborted", "a"))
    assert aborted["lease_left"] <= 0
    own.process.send_signal(signal.SIGCONT)
    until(lambda: ledger.lines("end", "a"))
    until(lambda: own_queue.admin.counts().messages == 0)
    assert own_queue.admin.fsck() == []


def test_job_that_heeds_nothing_is_killed_by_a_supervisor_that_gets_no_answer(
    own, own_queue, send, ledger, patient
):
    send("stubborn_in_silence", "a", own.process.pid, to=own_queue)
    log = patient()
    until(lambda: "its leases ended and its job is still running" in log.read_text())
    assert len(ledger.lines("start", "a")) == 1
