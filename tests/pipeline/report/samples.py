"""What the statement `regressions` computes of a job's runs, in Python: judged by simulation, then compared with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from jobq.pipeline.report.interval import MedianSample


def deviate(confidence: float, comparisons: int = 1) -> float:
    """How many standard deviations each of so many intervals must reach so that all hold together (Bonferroni).

    Abramowitz and Stegun 26.2.23, off by less than 0.00045.
    """
    t = math.sqrt(-2 * math.log((1 - confidence) / 2 / comparisons))
    above = 2.515517 + 0.802853 * t + 0.010328 * t**2
    return t - above / (1 + 1.432788 * t + 0.189269 * t**2 + 0.001308 * t**3)


def rank(n: int, z: float) -> int:
    """Which order statistic, counted from 1 and from both ends, bounds the median of a sample of n."""
    return max(1, math.floor((n + 1) / 2 - z * math.sqrt(n) / 2))


def side(sample: Sequence[float], z: float) -> MedianSample:
    """The values of a sample that the interval needs."""
    ordered, c = sorted(sample), rank(len(sample), z)
    return MedianSample(median(ordered), ordered[c - 1], ordered[-c])
