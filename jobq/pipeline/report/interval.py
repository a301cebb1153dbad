"""The difference of two medians with a confidence interval, from order statistics; pure.

Price and Bonett, "Distribution-free confidence intervals for difference and ratio of medians", Journal of
Statistical Computation and Simulation 72 (2002) 119-124. A median's variance comes from the width between two
order statistics, so run times may have any distribution, the same or not on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, median
from typing import NamedTuple

#: Fewer runs on a side say nothing.
LEAST = 30


class Side(NamedTuple):
    """A sample: its size, its median, and its order statistics number c and n - c + 1."""

    n: int
    median: float
    low: float
    high: float


class Interval(NamedTuple):
    """A difference, and between which values it lies."""

    difference: float
    low: float
    high: float


def rank(n: int) -> int:
    """c of a sample of n, counted from 1: (n + 1) / 2 - sqrt(n), halves rounded up as Spark's round does."""
    return max(1, math.floor((n + 1) / 2 - math.sqrt(n) + 0.5))


def side(sample: Sequence[float]) -> Side:
    """What the interval needs of a sample."""
    ordered, c = sorted(sample), rank(len(sample))
    return Side(len(ordered), median(ordered), ordered[c - 1], ordered[-c])


@lru_cache(maxsize=4096)
def _z(n: int) -> float:
    """How many standard errors lie between the median and order statistic c, from the exact binomial tail."""
    tail, c, whole = 0.0, rank(n), math.lgamma(n + 1) - n * math.log(2)
    # Terms further down are too small to count.
    for i in range(max(0, c - 200 - 8 * math.isqrt(n)), c):
        tail += math.exp(whole - math.lgamma(i + 1) - math.lgamma(n - i + 1))
    return NormalDist().inv_cdf(1 - min(tail, 0.5 - 1e-9))


def variance(one: Side) -> float:
    """Of the sample's median."""
    return ((one.high - one.low) / (2 * _z(one.n))) ** 2


def difference(before: Side, after: Side, confidence: float = 0.95) -> Interval:
    """after - before."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    margin = z * math.sqrt(variance(before) + variance(after))
    found = after.median - before.median
    return Interval(found, found - margin, found + margin)


def shared(confidence: float, comparisons: int) -> float:
    """What each of so many intervals needs so that all hold together (Bonferroni)."""
    return 1 - (1 - confidence) / max(1, comparisons)
