"""The difference of two medians with a confidence interval, for run times of any distribution.

Each median's interval is between two order statistics (Conover, Practical Nonparametric Statistics, 3.2), which
sql/regressions.sql finds. MOVER combines two intervals into the interval of the difference: Zou and Donner,
"Construction of confidence limits about effect measures: a general approach", Statistics in Medicine 27 (2008)
1693-1702. An interval from the standard error would be shorter. But at the confidence needed for many jobs together,
it would be wrong several times more often than allowed.
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
    """Return the difference of the medians, after minus before, with its interval."""
    delta = after.median - before.median
    return MedianDifference(
        delta,
        delta - math.hypot(after.median - after.low, before.high - before.median),
        delta + math.hypot(after.high - after.median, before.median - before.low),
    )
