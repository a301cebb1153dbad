"""Failovers that take writes away: confirmed messages outlive them, and others may be enqueued again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobq.chaos.faults import HALF_LOAD
from jobq.chaos.ledger import Ledger
from jobq.chaos.producers import QUEUE
from jobq.chaos.round import RoundPlan, run_round
from jobq.chaos.round_setup import Fault, RoundSetup
from jobq.chaos.servers import TargetServer
from jobq.chaos.verdict import Verdict
from jobq.queue.queue import Queue
from tests.client.deployments import Watched, role, wait_for
from tests.conftest import binary, kinds

from .conftest import JOBS, SEED, broken, handed_over

Injection = Callable[[Watched, RoundSetup], None]


@pytest.fixture
def watched(folder: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    there = kinds(request.config)
    deployment = Watched(binary(there[request.param % len(there)]) or "", folder)
    yield deployment
    deployment.close()


def enqueued(folder: str) -> int:
    """How many enqueues have come out so far, well or not."""
    return sum(line["word"] == "enqueued" for line in Ledger(folder).lines())


def kill_while_frozen(watched: Watched, setup: RoundSetup) -> None:
    """The master dies with messages that its replica hasn't; another machine becomes a replica."""
    queue, told = Queue(QUEUE, setup.client), setup.workers.ledger.folder
    queue.admin.pause()
    with setup.injected("killed-while-frozen", cuts=True):
        wait_for(lambda: watched.replica.redis.hget(f"{queue.prefix}meta", "paused"), "no pause")
        watched.replica.process.send_signal(signal.SIGSTOP)
        # Else what is sent to it waits in its socket, and is read after all.
        watched.master.redis.execute_command("CLIENT", "KILL", "TYPE", "replica")
        before = enqueued(told)
        wait_for(lambda: enqueued(told) > before + 2, "nothing is in danger")
        watched.master.kill()
        watched.replica.process.send_signal(signal.SIGCONT)
        watched.master = watched.replica
        with watched.impatient():
            wait_for(lambda: role(watched.master) == "master", "no failover")
        watched.replica = watched.follower(watched.master)
    queue.admin.resume()


def freeze_and_thaw(watched: Watched, setup: RoundSetup) -> None:
    """The master is frozen until another is master, then continues until it is demoted: two do the same work."""
    with setup.injected("frozen", cuts=True):
        watched.master.process.send_signal(signal.SIGSTOP)
        with watched.impatient():
            wait_for(lambda: role(watched.replica) == "master", "no failover")
    with setup.injected("two-masters", cuts=True):
        watched.master.process.send_signal(signal.SIGCONT)
        wait_for(lambda: role(watched.master) == "slave", "two masters")
        watched.master, watched.replica = watched.replica, watched.master


def failed_over(watched: Watched, folder: Path, inject: Injection, level: str) -> Verdict:
    """The verdict on a round with one failover."""
    struck: list[bool] = []

    def once(setup: RoundSetup) -> None:
        if not struck:
            struck.append(True)
            inject(watched, setup)

    fault = Fault("failover", "takes writes away", once, lease_s=2.0, per_second=HALF_LOAD)
    return run_round(TargetServer(watched.url), RoundPlan(fault, JOBS, SEED, level), folder)


@pytest.mark.parametrize(
    ("watched", "inject"),
    [(1, kill_while_frozen), (0, freeze_and_thaw)],
    indirect=["watched"],
)
def test_nothing_that_a_replica_confirmed_is_lost_in_a_failover(watched, folder, inject):
    verdict = failed_over(watched, folder, inject, "replicas=1")
    # Messages handed out and ended at one master are unknown to the other, which hands them out again.
    twice = ("concurrent", "stale_accepted", "unexplained")
    assert broken(verdict, *twice) == {}
    assert handed_over(folder).issuperset(mid for name in twice for mid in verdict.broken[name])
    assert verdict.attempts == verdict.acknowledged == JOBS
    assert verdict.faults
    assert verdict.duplicates <= verdict.hit
    lines = Ledger(str(folder / "ledger")).lines()
    assert any(line.get("again") for line in lines), "nobody heard of anything undurable"


@pytest.mark.parametrize("watched", [0], indirect=True)
def test_what_the_master_alone_had_is_lost_at_memory_level(watched, folder):
    verdict = failed_over(watched, folder, kill_while_frozen, "memory")
    assert verdict.broken["lost"]
    assert not verdict.broken["fsck"]
    assert not verdict.broken["leaked"]
