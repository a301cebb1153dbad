"""Every fault in its short form: nothing accepted is lost, and nothing runs twice without a reason."""

from __future__ import annotations

import pytest

from jobq.chaos.faults import FAULTS, NOT_IN_STORM
from jobq.chaos.producers import QUEUE, enqueue
from jobq.chaos.round_setup import Fault, RoundSetup
from jobq.queue.keys import key
from jobq.queue.queue import Queue

from .conftest import JOBS, broken

#: tests/lifecycle/test_poison.py holds its promise in make test.
LONG = {"poison": pytest.mark.long, "batches": pytest.mark.long}
#: Network faults are in test_network_rounds, faults of a Cluster in test_shard_gone.
NUMBERED = [
    pytest.param(number, name, id=name, marks=LONG.get(name, ()))
    for number, name in enumerate(FAULTS)
    if not {"proxy", "shards"}.intersection(FAULTS[name].needs)
]


@pytest.mark.parametrize(("own", "fault"), NUMBERED, indirect=["own"])
def test_every_promise_is_kept_under(played, own, fault):
    verdict = played(fault)
    assert broken(verdict) == {}
    assert verdict.attempts - verdict.dead >= JOBS
    assert verdict.duplicates <= verdict.hit, verdict
    quiet = fault in NOT_IN_STORM and fault not in ("poison", "keys-under-kills", "batches")
    assert bool(verdict.faults) != quiet
    assert bool(verdict.dead) == fault.startswith("poison")


def test_messages_that_somebody_cleared_are_found_lost(played):
    def clear(setup: RoundSetup) -> None:
        queue = Queue(QUEUE, setup.client)
        queue.admin.pause()
        enqueue(queue, setup.workers.ledger, f"cleared-{setup.random.getrandbits(32):x}", 0.0)
        queue.admin.clear()
        queue.admin.resume()

    verdict = played(Fault("clear", "drops everything", clear))
    assert verdict.broken["lost"]
    assert not verdict.holds


def test_keys_and_broken_invariants_that_are_left_behind_are_found(played):
    def sow(setup: RoundSetup) -> None:
        queue = Queue(QUEUE, setup.client)
        setup.client.command("SET", key(queue.prefix, "forgotten"), "1")
        setup.client.command("HSET", key(queue.prefix, "backoffs"), "nobody", "1")

    verdict = played(Fault("sow", "leaves what nobody removes", sow), 60)
    assert [name.rpartition(":")[2] for name in verdict.broken["leaked"]] == [
        "backoffs",
        "forgotten",
    ]
    assert verdict.broken["fsck"]
    assert not verdict.holds
