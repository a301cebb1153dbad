"""The difference of two medians with a confidence interval, for run times of any distribution; pure.

Each median's own interval lies between two order statistics (Conover, Practical Nonparametric Statistics, 3.2),
which sql/regressions.sql finds. Two intervals make that of the difference by MOVER: Zou and Donner, "Construction of
confidence limits about effect measures: a general approach", Statistics in Medicine 27 (2008) 1693-1702. A standard
error times a normal deviate would be shorter and, at the confidence that many jobs together need, wrong several
times too often.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: Fewer runs on a side say nothing.
LEAST = 30


class MedianSample(NamedTuple):
    """A sample: its median, and between which values that of its population lies."""

    median: float
    low: float
    high: float


class MedianDifference(NamedTuple):
    """A difference, and between which values it lies."""

    difference: float
    low: float
    high: float


def difference(before: MedianSample, after: MedianSample) -> MedianDifference:
    """after - before."""
    found = after.median - before.median
    return MedianDifference(
        found,
        found - math.hypot(after.median - after.low, before.high - before.median),
        found + math.hypot(after.high - after.median, before.median - before.low),
    )
