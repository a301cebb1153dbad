"""A job forks: whatever the forked process does, it is not a second worker."""

from __future__ import annotations

import pytest

from .conftest import until
from .jobs_that_fork import CODES, FORKING, LEAVING

MODULE = "tests.lifecycle.jobs_that_fork"


def ran_once(queue, ledger, worker, names):
    """Check that each ended once, in one child, and the queue is in order."""
    until(lambda: queue.admin.counts().messages == 0)
    ended = [line["name"] for line in ledger.lines("end")]
    assert sorted(ended) == sorted(names)
    assert queue.admin.dead() == []
    assert worker.stop() == 0
    assert worker.log.count(" starts 1 child") == worker.log.count(" started") == 1, worker.log
    assert queue.admin.fsck() == []
    assert "was rejected" not in worker.log


@pytest.mark.parametrize("middleware", ["no", "yes"], ids=["plain", "middleware-and-import"])
def test_process_that_a_sync_job_forks_ends_and_bystanders_run_once(
    queue, start, send, ledger, middleware
):
    jobs = [
        (job, f"{how}-{leaves}-{job}", how, leaves)
        for job in ("forks_and", "forks_limited_and")
        for how in FORKING
        for leaves in LEAVING
        if how == "os" or leaves in ("return", "exit", "raise")
    ]
    names = [name for _, name, *_ in jobs]
    for number, (job, name, how, leaves) in enumerate(jobs):
        send(job, name, how, leaves)
        send("quick", f"q{number}")
    for job in ("forks_process", "forks_in_thread", "policy_forks", "forked_around"):
        send(job, job)
        send("quick", f"after-{job}")
        names += [job, f"after-{job}"]
    names += [f"q{number}" for number in range(len(jobs))]
    env = {"FORKING_MIDDLEWARE": middleware, "FORKING_IMPORT": middleware}
    worker = start("--processes", "1", module=MODULE, env=env)
    ran_once(queue, ledger, worker, names)
    for _, name, _, leaves in jobs:
        assert ledger.lines("end", name)[0]["code"] == CODES.get(leaves, 1), name
    assert ledger.lines("end", "forks_process")[0]["codes"] == [0, 7, 1]
    assert len(ledger.lines("start", "policy_forks")) == 2
    assert "ValueError: in the fork" in worker.log


@pytest.mark.loop
def test_process_that_an_async_job_forks_ends_and_its_neighbours_run_once(
    queue, start, send, ledger
):
    send("steps", "neighbour", 300)
    names = ["neighbour"]
    for how in FORKING:
        for leaves in LEAVING if how == "os" else ("return", "exit", "raise"):
            send("aforks_and", f"{how}-{leaves}", how, leaves)
            names.append(f"{how}-{leaves}")
        send("aforks_and_awaits", f"{how}-awaits", how)
        send("task_forks", f"{how}-task", how)
        names += [f"{how}-awaits", f"{how}-task"]
    for number in range(50):
        send("quick", f"q{number}")
        names.append(f"q{number}")
    worker = start("--processes", "1", "--concurrency", "8", module=MODULE)
    ran_once(queue, ledger, worker, names)
    steps = [line["number"] for line in ledger.lines("step")]
    assert steps == list(range(300)), "a forked process ran its neighbour on"
    for how in FORKING:
        assert ledger.lines("end", f"{how}-awaits")[0]["code"] == 1
        assert ledger.lines("end", f"{how}-task")[0]["code"] == 1
    assert "can't await" in worker.log
