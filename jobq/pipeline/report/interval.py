"""Compute a confidence interval for the difference between two medians. Run times may have any distribution.

sql/regressions.sql finds each median's interval from two order statistics (Conover, Practical Nonparametric Statistics,
3.2). The method MOVER combines two intervals into an interval for the difference (Zou and Donner, "Construction of
confidence limits about effect measures: a general approach", Statistics in Medicine 27 (2008) 1693-1702). Standard
errors would give shorter intervals. But a test of many jobs needs high confidence, at which these intervals would be
wrong too often.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: Minimum number of runs on each side.
MIN_COUNT = 30


class MedianSample(NamedTuple):
    """A sample's median and its confidence interval."""

    median: float
    low: float
    high: float


class MedianDifference(NamedTuple):
    """A difference of medians and its confidence interval."""

    difference: float
    low: float
    high: float


def difference(before: MedianSample, after: MedianSample) -> MedianDifference:
    """Return the difference of the medians (after minus before) and its confidence interval."""
    delta = after.median - before.median
    return MedianDifference(
        delta,
        delta - math.hypot(after.median - after.low, before.high - before.median),
        delta + math.hypot(after.high - after.median, before.median - before.low),
    )
