"""Bursts of equal calls while their process is killed. `make soak` sends 1,000 bursts of 1,000 calls."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.lifecycle import jobs_unique
from tests.lifecycle.conftest import until

SOAK = os.environ.get("JOBQ_BURSTS") == "soak"
BURSTS, CALLS = (1_000, 1_000) if SOAK else (12, 100)
SENDERS = 4

pytestmark = pytest.mark.timeout(7_200 if SOAK else 600)


@pytest.mark.one_server
def test_each_burst_runs_once_a_window_and_its_last_content_last_although_a_child_dies_in_it(
    start: Any, queue: Any, ledger: Any
) -> None:
    jobs = [jobs_unique.unique, jobs_unique.debounced, jobs_unique.throttled]
    worker = start(
        "--processes",
        "2",
        "--lease",
        "60s",
        "--crash-limit",
        "0",
        module="tests.lifecycle.jobs_unique",
    )

    def send(number: int) -> tuple[str, str, Counter[str], int]:
        """One burst, half of it in bulk: its name, the outcome of its calls, and the last accepted number."""
        job, burst = jobs[number % len(jobs)], f"burst{number}"
        calls = [(str(ledger.path), burst, call) for call in range(CALLS)]
        half = CALLS // 2
        receipts = [job.enqueue(*call) for call in calls[:half]] + list(
            job.enqueue_many(calls[half:])
        )
        last = max(call for call, receipt in enumerate(receipts) if receipt.accepted)
        return job.name, burst, Counter(receipt.action for receipt in receipts), last

    with ThreadPoolExecutor(SENDERS) as senders:
        bursts = list(senders.map(send, range(BURSTS)))
    until(lambda: at_rest(queue), "something never ran")
    worker.stop()

    ends: dict[str, list[int]] = {}
    for line in ledger.lines("end"):
        ends.setdefault(line["name"], []).append(line["number"])
    for kind, burst, actions, last in bursts:
        runs, begun = ends.get(burst, []), actions["added"] + actions["requeued"]
        # If a child dies between its work and its finish, the run is repeated; here it dies in the middle of it.
        assert 1 <= len(runs) <= begun, (kind, burst, runs, actions)
        assert runs[-1] == last, (kind, burst, runs, last)
        if kind == "throttled":
            assert actions == Counter(added=1, exists=CALLS - 1) and runs == [0]
    assert len(list(ledger.gates.glob("killed-*"))) == BURSTS
    assert queue.admin.fsck() == []


def at_rest(queue: Any) -> bool:
    """Whether nothing is left to run."""
    counts = queue.admin.counts()
    return not counts.ready + counts.delayed + counts.locked + counts.requeued
