"""The tried counts of workers, for a pool that meets the target above a known count."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from jobq.pipeline.report.capacity import BEYOND, Trace, Waits, searched, simulate
from tests.pipeline.report.rows import ASKED

EQUAL = {"equal": (1, 1)}


class Pool:
    """Starts nothing in time with fewer than `enough` workers, and all with at least as many; counts how it was
    asked."""

    def __init__(self, enough: int) -> None:
        self.enough, self.rounds = enough, 0

    def __call__(self, tries):
        self.rounds += 1
        return {one: self.waits(one[1]) for one in tries}

    def waits(self, workers: int) -> Waits:
        share = float(workers >= self.enough)
        return Waits(0.0, 0, 0, share, (share, None))


@pytest.mark.parametrize("enough", range(5, 5 + BEYOND[-1] + 1))
def test_least_count_that_holds_is_found_with_the_one_below_it_tried(enough):
    pool = Pool(enough)
    tried = {workers for _, workers in searched(ASKED, EQUAL, 5, pool)}
    assert enough in tried and (enough - 1 in tried or enough == 5)
    assert pool.rounds <= 3


def test_nothing_between_is_tried_when_no_count_holds():
    pool = Pool(1000)
    assert {workers for _, workers in searched(ASKED, EQUAL, 5, pool)} == {5 + n for n in BEYOND}
    assert pool.rounds == 1


def test_counts_asked_for_are_all_that_is_tried():
    asked, pool = replace(ASKED, workers=(2, 40)), Pool(9)
    assert {workers for _, workers in searched(asked, EQUAL, 5, pool)} == {2, 40}


def test_bursts_of_two_queues_at_the_same_moments_take_a_worker_for_each_message():
    arrived = [1_795_219_200_000_000 + burst * 2_000_000 for burst in range(20) for _ in range(40)]
    n = len(arrived)
    made = Trace(
        array("q", [i % 2 for i in range(n)]), array("q", arrived),
        array("q", [1_000_000] * n), array("q", [1] * n),
    )  # fmt: skip

    def judged(tries):
        return {one: simulate(made, one[1], EQUAL["equal"], 500_000) for one in tries}

    found = searched(ASKED, EQUAL, 1, judged)
    assert min(workers for (_, workers), one in found.items() if one.within == 1) == 40
