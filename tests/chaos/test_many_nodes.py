"""Faults that take more than one node: a slot that moves, a master that dies with its writes replicated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from jobq.chaos.producers import QUEUE
from jobq.chaos.round import RoundPlan, run_round
from jobq.chaos.round_setup import Fault, RoundSetup
from jobq.chaos.servers import TargetServer
from tests.client.deployments import Node, Spread, Watched, role, wait_for
from tests.conftest import binary, kinds

from .conftest import JOBS, SEED, broken


@pytest.fixture
def program(request: pytest.FixtureRequest) -> str:
    """The last of the servers that are here: Redis, where there is one."""
    return binary(kinds(request.config)[-1]) or ""


@pytest.fixture
def spread(program: str, folder: Path) -> Iterator[Spread]:
    deployment = Spread(program, folder)
    yield deployment
    deployment.close()


@pytest.fixture
def watched(program: str, folder: Path) -> Iterator[Watched]:
    deployment = Watched(program, folder)
    yield deployment
    deployment.close()


def test_every_promise_is_kept_while_the_slot_of_the_queue_moves(spread, folder):
    def move(setup: RoundSetup) -> None:
        slot = key_slot(f"{setup.client.namespace}:{{{QUEUE}}}:ready".encode())
        taker = setup.random.choice(spread.nodes)
        with setup.injected("slot-move"):
            for giver in (node for node in spread.nodes if node is not taker):
                give(spread, slot, giver, taker)

    verdict = run_round(
        TargetServer(spread.url), RoundPlan(Fault("slot-move", "moves", move), JOBS, SEED), folder
    )
    assert broken(verdict) == {}
    assert verdict.attempts == JOBS
    assert verdict.faults
    assert verdict.duplicates == 0
    assert not any(node.redis.keys("*") for node in spread.nodes)


def give(spread: Spread, slot: int, giver: Node, taker: Node) -> None:
    """Move the slot to the taker if this node has keys of it."""
    if giver.redis.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot):
        spread.move(slot, giver, taker)


def test_every_promise_is_kept_over_a_failover_that_loses_no_write(watched, folder):
    def fail_over(setup: RoundSetup) -> None:
        if watched.master.process.poll() is None:
            with setup.injected("failover"):
                kill_when_replicated(watched)
                with watched.impatient():
                    wait_for(lambda: role(watched.replica) == "master", "no failover")

    fault = Fault("failover", "kill -9 of the master", fail_over)
    verdict = run_round(TargetServer(watched.url), RoundPlan(fault, JOBS, SEED), folder)
    assert broken(verdict) == {}
    assert verdict.attempts == JOBS
    assert verdict.faults == 1
    assert verdict.duplicates == 0
    assert role(watched.replica) == "master"


def kill_when_replicated(watched: Watched) -> None:
    """No write is in the master alone when it dies: pending calls wait for the end of the pause."""
    watched.master.redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")

    def level() -> Any:
        return offset(watched.replica, "slave_repl_offset") >= offset(
            watched.master, "master_repl_offset"
        )

    wait_for(level, "the replica doesn't follow")
    watched.master.kill()


def offset(node: Node, field: str) -> int:
    return int(node.redis.info("replication")[field])
