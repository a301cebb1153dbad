"""A seed settles what is struck, when, and by which luck; how many, the machine does."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from jobq.chaos.faults import FAULTS, NOT_IN_STORM
from jobq.chaos.ledger import Ledger
from jobq.chaos.round import RoundPlan, injections, run_round
from jobq.chaos.round_setup import Fault, RoundSetup


def injected(seed: int, name: str, count: int = 50) -> list[tuple[int, float, float]]:
    """Number, pause and first draw of each."""
    found = islice(injections(seed, FAULTS[name]), count)
    return [(one.number, one.pause_s, one.random.random()) for one in found]


def test_equal_seeds_give_equal_schedules():
    assert injected(7, "child-kill") == injected(7, "child-kill")
    assert injected(7, "child-kill") != injected(8, "child-kill")
    assert injected(7, "child-kill") != injected(7, "worker-kill")


def test_pauses_are_those_of_the_fault():
    low, high = FAULTS["child-kill"].pause_s
    pauses = [pause for _, pause, _ in injected(7, "child-kill", 500)]
    assert low <= min(pauses) < max(pauses) <= high
    assert len(set(pauses)) == 500


def test_what_one_injection_draws_changes_no_later_one():
    greedy = injections(7, FAULTS["storm"])
    for inject in islice(greedy, 20):
        for _ in range(inject.number):
            inject.random.random()
    assert next(greedy).random.random() == injected(7, "storm", 21)[-1][2]


@pytest.fixture
def storms(monkeypatch):
    """storms(seed): the names of the faults that fifty storms chose."""

    def chosen(seed: int) -> list[str]:
        found: list[str] = []
        for name, fault in list(FAULTS.items()):
            if name not in NOT_IN_STORM:
                note = fault._replace(inject=lambda _, name=name: found.append(name))
                monkeypatch.setitem(FAULTS, name, note)
        storm = FAULTS["storm"]
        for inject in islice(injections(seed, storm), 50):
            storm.inject(RoundSetup(None, None, None, random=inject.random))
        return found

    return chosen


def test_storm_of_a_seed_chooses_the_same_faults_again(storms):
    assert storms(7) == storms(7)
    assert storms(7) != storms(8)
    assert len(set(storms(7))) > 10


def test_round_is_played_again_by_its_seed(own, folder):
    def rehearse(name: str) -> tuple[list[float], list[float]]:
        drawn: list[float] = []
        fault = Fault("again", "", lambda setup: drawn.append(setup.random.random()))
        place = Path(folder) / name
        place.mkdir()
        assert run_round(own, RoundPlan(fault, 60, 7), place).holds
        lines = Ledger(str(place / "ledger")).lines()
        return drawn, [line["pause"] for line in lines if line["word"] == "injection"]

    (first, pauses), (second, others) = rehearse("a"), rehearse("b")
    shared = min(len(first), len(second))
    assert shared
    assert first[:shared] == second[:shared]
    assert pauses[:shared] == others[:shared]
