"""Every way in which a job takes its child along: dead after just so many crashes, and nobody else suffers."""

from __future__ import annotations

from .conftest import until
from .jobs_that_freeze import KINDS

MODULE = "tests.lifecycle.jobs_that_freeze"
SAYS = {
    "segv": "killed by SIGSEGV", "null": "killed by SIGSEGV", "hog": "killed by SIGSEGV",
    "leave": "exited with 1", "abort": "killed by SIGABRT", "spin": "hard timeout",
}  # fmt: skip


def test_each_kind_is_dead_after_three_crashes_and_the_good_ones_run_once(
    queue, start, send, ledger
):
    kinds = iter(KINDS)
    for number in range(60):
        send("quick", f"q{number}")
        if number % 10 == 5:
            kind = next(kinds)
            send("takes_along" if kind != "spin" else "spins", kind)
    worker = start("--processes", "2", "--crash-limit", "3", module=MODULE)
    until(lambda: len(queue.admin.dead()) == len(KINDS) and queue.admin.counts().messages == 0)

    for kind in KINDS:
        attempts = [line["attempt"] for line in ledger.lines("start", kind)]
        # The hard timeout runs from before the job writes that it started.
        expected = {1, 2, 3} if kind != "spin" else {1, 2, 3}.intersection(attempts)
        assert attempts == sorted(expected), kind
    dead = {one.mid: one for one in queue.admin.dead()}
    assert set(dead) == set(KINDS) == set(SAYS)
    assert all(SAYS[kind] in dead[kind].reason for kind in KINDS)
    assert {one.ncrashes for one in dead.values()} == {3}
    ended = [line["name"] for line in ledger.lines("end")]
    assert sorted(ended) == sorted(f"q{number}" for number in range(60))
    assert worker.stop() == 0
    assert worker.log.count("crashed:") == 3 * len(KINDS), "no child died but of these"
    assert queue.admin.fsck() == []


def test_memory_error_is_an_error_of_its_job_and_no_crash(queue, start, send, ledger):
    worker = start("--processes", "1", module=MODULE)
    send("exceeds", "big")
    send("quick", "after")
    until(lambda: queue.admin.dead() and ledger.lines("end", "after"))
    [dead] = queue.admin.dead()
    assert (dead.ncrashes, "MemoryError" in dead.reason) == (0, True)
    assert ledger.lines("start", "big")[0]["pid"] == ledger.lines("end", "after")[0]["pid"]
    assert worker.stop() == 0
