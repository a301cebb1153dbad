"""A seed settles what is struck, when, and by which luck; how many, the machine does."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from jobq.chaos.faults import CALM, FAULTS, Fault, Stage
from jobq.chaos.ledger import Ledger
from jobq.chaos.round import Plan, play
from jobq.chaos.schedule import schedule


def strokes(seed: int, name: str, count: int = 50) -> list[tuple[int, float, float]]:
    """Number, pause and first draw of each."""
    found = islice(schedule(seed, FAULTS[name]), count)
    return [(one.number, one.pause_s, one.luck.random()) for one in found]


def test_equal_seeds_give_equal_schedules():
    assert strokes(7, "child-kill") == strokes(7, "child-kill")
    assert strokes(7, "child-kill") != strokes(8, "child-kill")
    assert strokes(7, "child-kill") != strokes(7, "worker-kill")


def test_pauses_are_those_of_the_fault():
    low, high = FAULTS["child-kill"].pause_s
    pauses = [pause for _, pause, _ in strokes(7, "child-kill", 500)]
    assert low <= min(pauses) < max(pauses) <= high
    assert len(set(pauses)) == 500


def test_what_one_stroke_draws_changes_no_later_one():
    greedy = schedule(7, FAULTS["storm"])
    for stroke in islice(greedy, 20):
        for _ in range(stroke.number):
            stroke.luck.random()
    assert next(greedy).luck.random() == strokes(7, "storm", 21)[-1][2]


@pytest.fixture
def storms(monkeypatch):
    """storms(seed): the names of what fifty storms chose."""

    def chosen(seed: int) -> list[str]:
        found: list[str] = []
        for name, fault in list(FAULTS.items()):
            if name not in CALM:
                note = fault._replace(stroke=lambda _, name=name: found.append(name))
                monkeypatch.setitem(FAULTS, name, note)
        storm = FAULTS["storm"]
        for stroke in islice(schedule(seed, storm), 50):
            storm.stroke(Stage(None, None, None, random=stroke.luck))
        return found

    return chosen


def test_storm_of_a_seed_chooses_the_same_faults_again(storms):
    assert storms(7) == storms(7)
    assert storms(7) != storms(8)
    assert len(set(storms(7))) > 10


def test_round_is_played_again_by_its_seed(own, folder):
    def rehearse(name: str) -> tuple[list[float], list[float]]:
        drawn: list[float] = []
        fault = Fault("again", "", lambda stage: drawn.append(stage.random.random()))
        place = Path(folder) / name
        place.mkdir()
        assert play(own, Plan(fault, 60, 7), place).holds
        lines = Ledger(str(place / "ledger")).lines()
        return drawn, [line["pause"] for line in lines if line["word"] == "stroke"]

    (first, pauses), (second, others) = rehearse("a"), rehearse("b")
    shared = min(len(first), len(second))
    assert shared
    assert first[:shared] == second[:shared]
    assert pauses[:shared] == others[:shared]
