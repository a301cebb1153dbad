"""The interval of the medians' difference: by hand, and how often it is wrong on data whose shift is known."""

from __future__ import annotations

import random
from statistics import NormalDist

import pytest

from jobq.pipeline.report.interval import MedianDifference, MedianSample, difference
from tests.pipeline.report.samples import deviate, rank, side

Z = 1.96


@pytest.mark.parametrize(("n", "c"), [(1, 1), (4, 1), (10, 2), (30, 10), (100, 40), (10_000, 4902)])
def test_rank_is_that_of_the_tables_for_95_percent(n, c):
    assert rank(n, Z) == c


@pytest.mark.parametrize(
    ("confidence", "comparisons"), [(0.95, 1), (0.99, 1), (0.95, 40), (0.95, 5000)]
)
def test_deviate_is_the_normal_one_shared_among_comparisons(confidence, comparisons):
    exact = NormalDist().inv_cdf(1 - (1 - confidence) / 2 / comparisons)
    assert deviate(confidence, comparisons) == pytest.approx(exact, abs=4.5e-4)


def test_side_takes_order_statistics_from_both_ends():
    assert side([9, 1, 5, 3, 7, 2, 8, 4, 6, 10], Z) == MedianSample(5.5, 2, 9)


def test_difference_is_the_after_less_the_before_with_both_sides_doubts():
    # Down: 4 of the after, 3 of the before; up: 12 and 5.
    assert difference(MedianSample(10, 5, 13), MedianSample(30, 26, 42)) == MedianDifference(
        20, 15, 33
    )


def test_difference_has_no_width_when_all_runs_are_alike():
    assert difference(side([5] * 30, Z), side([7] * 30, Z)) == (2, 2, 2)


def drawn(rng: random.Random, n: int, z: float, scale: float = 1.0) -> MedianSample:
    """Run times as they are: skewed, with a long tail."""
    return side([scale * rng.lognormvariate(0, 1) for _ in range(n)], z)


@pytest.mark.parametrize(("before", "after"), [(30, 30), (40, 300), (400, 400)])
def test_false_alarms_are_as_rare_as_the_confidence_says(before, after):
    rng, rounds, z = random.Random(20261121), 1000, deviate(0.95)
    found = [difference(drawn(rng, before, z), drawn(rng, after, z)) for _ in range(rounds)]
    # Of 1000 rounds at 5 %, three standard deviations of the count are 21.
    assert sum(not one.low <= 0 <= one.high for one in found) <= 50 + 21


def test_shift_is_inside_the_interval_as_often_as_the_confidence_says():
    rng, rounds, z = random.Random(4), 1000, deviate(0.95)
    found = [difference(drawn(rng, 200, z), drawn(rng, 200, z, 1.5)) for _ in range(rounds)]
    assert sum(one.low <= 0.5 <= one.high for one in found) >= 950 - 21


def test_shift_is_found_when_the_samples_are_large_enough():
    rng, z = random.Random(5), deviate(0.95)
    found = [difference(drawn(rng, 500, z), drawn(rng, 500, z, 1.5)) for _ in range(100)]
    assert sum(one.low > 0 for one in found) >= 95


def test_any_of_forty_jobs_gives_a_false_alarm_as_rarely_as_a_single_one():
    rng, z = random.Random(6), deviate(0.95, 40)
    alarming = 0
    for _ in range(60):
        found = (difference(drawn(rng, 60, z), drawn(rng, 60, z)) for _ in range(40))
        alarming += any(not one.low <= 0 <= one.high for one in found)
    # 5 % of 60 rounds is 3, and three standard deviations 5.
    assert alarming <= 8
