"""`jobq audit` beside real workers, one of which is killed amid its work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from jobq.chaos.audit import Audit

from . import jobs_at_work as jobs
from .conftest import ROOT, until


def test_live_queue_with_a_killed_child_adds_up(client, queue, start, ledger):
    queue.events_level("all")
    start("--processes", "2", "--lease", "2s")
    command = f"{sys.executable} -m jobq audit --url {client.url} --queues low --for 4s"
    with subprocess.Popen(command.split(), cwd=ROOT, stdout=subprocess.PIPE, text=True) as audit:
        time.sleep(1.5)  # it reads from its start on
        jobs.gated.options(client=client).enqueue(os.fspath(ledger), "g")
        for number in range(300):
            jobs.quick.options(client=client).enqueue(os.fspath(ledger), f"q{number}")
        [begun] = until(lambda: ledger.lines("start", "g"))
        os.kill(begun["pid"], signal.SIGKILL)
        threading.Timer(0.3, jobs.gate(os.fspath(ledger), "g").touch).start()
        said = audit.communicate(timeout=30)[0]
    assert audit.returncode == 0, said
    assert said == "low: 301 accepted, 301 finished, 1 duplicates, 0 lost\n"


def test_crowded_queue_adds_up_while_it_is_drained(client, queue, start, ledger):
    queue.events_level("all")
    start("--processes", "2")
    jobs.quick.options(client=client).enqueue_many(
        [(os.fspath(ledger), f"q{n}") for n in range(3_000)]
    )
    while True:
        result = Audit(queue).result()
        assert (result.accepted, result.lost, result.duplicates) == (3_000, 0, 0)
        assert result.finished + result.live == 3_000
        if not result.live:
            return
