"""An audit of the server's events agrees with the ledger outside of it."""

from __future__ import annotations

import pytest

from jobq.chaos.faults import FAULTS
from jobq.chaos.producers import QUEUE, enqueue
from jobq.chaos.round import RoundPlan, run_round
from jobq.chaos.round_setup import Fault, RoundSetup
from jobq.queue.keys import key
from jobq.queue.queue import Queue

from .conftest import JOBS, SEED, broken

AUDITED = ["child-kill", "host-loss", "worker-stop", "lost-reply", "poison", "server-restart"]
#: Over 5 s of CPU; test_rounds.py also plays the fault in make test.
LONG = {"poison": pytest.mark.long}
NUMBERED = [
    pytest.param(number, name, id=name, marks=LONG.get(name, ()))
    for number, name in enumerate(AUDITED)
]


def audited(own, folder, fault, jobs=JOBS):
    return run_round(own, RoundPlan(fault, jobs, SEED, events="all"), folder)


@pytest.mark.parametrize(("own", "fault"), NUMBERED, indirect=["own"])
def test_audit_agrees_with_the_ledger_on(own, folder, fault):
    verdict = audited(own, folder, FAULTS[fault])
    assert broken(verdict) == {}
    seen = verdict.audited
    assert verdict.acknowledged == verdict.attempts
    assert (seen.accepted, seen.finished, seen.lost) == (
        verdict.acknowledged,
        verdict.acknowledged,
        0,
    )
    assert (seen.live, seen.superseded, seen.earlier) == (0, 0, 0)
    again = verdict.runs - verdict.acknowledged
    # An audit also counts messages that may have run: held by a dead worker and not begun, or not yet noted.
    assert verdict.duplicates <= min(again, seen.duplicates)
    if (
        fault != "poison"
    ):  # there a child is killed for one job's hard timeout, and the others are given back
        assert again <= seen.duplicates
    if fault in ("lost-reply", "server-restart"):
        assert seen.duplicates == 0
    if fault in ("child-kill", "poison"):
        assert seen.duplicates <= again + verdict.faults


def test_audit_and_ledger_name_the_same_lost_messages(own, folder):
    def steal(setup: RoundSetup) -> None:
        queue = Queue(QUEUE, setup.client)
        queue.admin.pause()
        # Workers may have emptied the queue just now: there is one message at least.
        enqueue(queue, setup.workers.ledger, f"waits-{setup.random.getrandbits(32):x}", 0.0)
        stolen = setup.client.command("LPOP", key(queue.prefix, "ready"))
        setup.client.command("HDEL", key(queue.prefix, "messages"), stolen)
        queue.admin.resume()

    verdict = audited(
        own, folder, Fault("steal", "takes messages away", steal, pause_s=(0.05, 0.1))
    )
    assert verdict.broken["lost"]
    assert sorted(verdict.audited.lost_mids) == verdict.broken["lost"]
    assert verdict.audited.lost + verdict.audited.finished == verdict.audited.accepted
