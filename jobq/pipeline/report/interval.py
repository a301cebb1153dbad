"""The difference of two medians with a confidence interval, for run times of any distribution; pure.

Each median's own interval lies between two order statistics (Conover, Practical Nonparametric Statistics, 3.2).
Two intervals make that of the difference by MOVER: Zou and Donner, "Construction of confidence limits about effect
measures: a general approach", Statistics in Medicine 27 (2008) 1693-1702. A standard error times a normal deviate
would be shorter and, at the confidence that many jobs together need, wrong several times too often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

#: Fewer runs on a side say nothing.
LEAST = 30


class Side(NamedTuple):
    """A sample: its size, its median, and between which values that of its population lies."""

    n: int
    median: float
    low: float
    high: float


class Interval(NamedTuple):
    """A difference, and between which values it lies."""

    difference: float
    low: float
    high: float


def deviate(confidence: float, comparisons: int = 1) -> float:
    """How many standard deviations each of so many intervals must reach so that all hold together (Bonferroni).

    Abramowitz and Stegun 26.2.23, off by less than 0.00045: what the statement can compute, too.
    """
    t = math.sqrt(-2 * math.log((1 - confidence) / 2 / comparisons))
    above = 2.515517 + 0.802853 * t + 0.010328 * t**2
    return t - above / (1 + 1.432788 * t + 0.189269 * t**2 + 0.001308 * t**3)


def rank(n: int, z: float) -> int:
    """Which order statistic, counted from 1 and from both ends, bounds the median of a sample of n."""
    return max(1, math.floor((n + 1) / 2 - z * math.sqrt(n) / 2))


def side(sample: Sequence[float], z: float) -> Side:
    """What the interval needs of a sample."""
    ordered, c = sorted(sample), rank(len(sample), z)
    return Side(len(ordered), median(ordered), ordered[c - 1], ordered[-c])


def difference(before: Side, after: Side) -> Interval:
    """after - before."""
    found = after.median - before.median
    return Interval(
        found,
        found - math.hypot(after.median - after.low, before.high - before.median),
        found + math.hypot(after.high - after.median, before.median - before.low),
    )
