"""`jobq check audit` beside real workers, one of which is killed amid its work."""

from __future__ import annotations

import os
import signal

from jobq.queue.audit import Audit

from . import jobs_at_work as jobs
from .conftest import until


def test_live_queue_with_a_killed_child_adds_up(client, queue, start, ledger):
    queue.admin.events_level("all")
    start("--processes", "2", "--lease", "5s")
    audit = Audit(queue)
    jobs.gated.options(client=client).enqueue(os.fspath(ledger), "g")
    for number in range(300):
        jobs.quick.options(client=client).enqueue(os.fspath(ledger), f"q{number}")
    [begun] = until(lambda: ledger.lines("start", "g"))
    audit.read()
    os.kill(begun["pid"], signal.SIGKILL)
    until(lambda: audit.read() or len(ledger.lines("start", "g")) == 2)
    jobs.gate(os.fspath(ledger), "g").touch()
    until(lambda: audit.read() or not queue.admin.counts().messages)
    result = audit.result()
    assert (result.accepted, result.finished, result.duplicates, result.lost) == (301, 301, 1, 0)
    assert (result.live, result.superseded, result.earlier) == (0, 0, 0)


def test_crowded_queue_adds_up_while_it_is_drained(client, queue, start, ledger):
    queue.admin.events_level("all")
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
