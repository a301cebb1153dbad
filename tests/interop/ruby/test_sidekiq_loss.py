"""What a kill costs: Sidekiq the job it ran, a jobq worker nothing; and both on one list at once."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter

import psutil
import pytest

from tests.interop.ruby.conftest import until

#: What Ruby and Node do is the same on each server; test_sidekiq_out tries both.
pytestmark = pytest.mark.one_server


def test_sidekiq_loses_the_job_that_a_killed_process_ran(ruby, sidekiq, ledger):
    ruby("async", args=[str(ledger.path), "a", "wait"])
    real = sidekiq("-q", "default")
    until(lambda: ledger.lines("start"))
    real.kill()
    real.wait()
    stats = ruby("stats")
    assert (stats["enqueued"], stats["retries"], stats["scheduled"], stats["dead"]) == (0, 0, 0, 0)


def test_jobq_runs_the_job_again_that_a_killed_worker_ran(ruby, worker, ledger):
    jid = ruby("async", args=[str(ledger.path), "a", "wait"])
    killed = worker("--sidekiq", "default", "--lease", "1s")
    until(lambda: ledger.lines("start"))
    killed.kill()
    ledger.open_gate("a")
    worker("--sidekiq", "default")
    [ran] = until(lambda: ledger.lines())
    assert (ran["mid"], ran["attempt"]) == (jid, 2)


def test_nothing_is_lost_when_workers_are_killed_at_any_moment(ruby, redis, worker, ledger):
    jids = ruby("bulk", fields={"args": [[str(ledger.path), str(n)] for n in range(3000)]})
    chance = random.Random(7)
    # No limit of crashes: whoever was running at three of the kills would be dead.
    options = [
        "--sidekiq",
        "default",
        "--lease",
        "1s",
        "--crash-limit",
        "0",
        "--ruby-backlog",
        "200",
    ]
    one = worker(*options)
    for _ in range(6):
        before = len(ledger.lines())
        until(lambda before=before: len(ledger.lines()) > before + chance.randrange(1, 200))
        one.kill()
        one = worker(*options)
    until(lambda: len({line["mid"] for line in ledger.lines()}) == 3000, "jobs were lost")
    assert {line["mid"] for line in ledger.lines()} == set(jids)
    until(lambda: not redis.keys("jobq:intake:*}:claims"), "a claim was left behind")


def test_each_job_runs_once_when_only_the_intake_is_killed(ruby, redis, worker, ledger):
    jids = ruby("bulk", fields={"args": [[str(ledger.path), str(n)] for n in range(3000)]})
    one = worker("--sidekiq", "default", "--ruby-backlog", "300", "--lease", "5s")
    killed = 0
    while len(ledger.lines()) < 3000:
        intake = intake_of(one)
        if intake and killed < 5:
            os.kill(intake, signal.SIGKILL)
            killed += 1
        until(lambda intake=intake: intake_of(one) != intake or len(ledger.lines()) >= 3000)
    ran = Counter(line["mid"] for line in ledger.lines())
    assert set(ran) == set(jids)
    assert max(ran.values()) == 1
    assert killed


def test_each_job_runs_once_when_sidekiq_and_jobq_work_side_by_side(ruby, sidekiq, worker, ledger):
    sidekiq("-q", "default")
    worker("--sidekiq", "default", "--ruby-backlog", "5")
    until(lambda: len(ruby("processes")) == 2)
    jids = []

    def push_and_run() -> set[str]:
        for _ in range(20):
            jids.extend(ruby("bulk", fields={"args": [[str(ledger.path), "x"]] * 50}))
        until(lambda: len(ledger.lines()) >= len(jids))
        return {line["by"] for line in ledger.lines()}

    # On a busy machine one of both may be through with a thousand before the other is woken.
    until(lambda: push_and_run() == {"sidekiq", "jobq"})
    ran = Counter(line["mid"] for line in ledger.lines())
    assert set(ran) == set(jids)
    assert max(ran.values()) == 1


def intake_of(worker) -> int | None:
    """The process that takes in: the first that the supervisor forked and that runs no job."""
    try:
        children = psutil.Process(worker.process.pid).children()
    except psutil.NoSuchProcess:
        return None
    known = {
        int(line.split()[-2])
        for line in worker.log.splitlines()
        if "child" in line and line.endswith(" started")
    }
    found = [child.pid for child in children if child.pid not in known]
    return found[0] if found else None
