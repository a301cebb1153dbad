"""Which counts of workers are tried, by a pool that holds from a known count on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobq.pipeline.report.capacity import BEYOND, searched
from jobq.pipeline.report.simulation import Waits
from tests.pipeline.report.rows import ASKED

EQUAL = {"equal": (1, 1)}


class Pool:
    """Starts nothing in time with fewer than `enough` workers, and all with as many; counts how it was asked."""

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
