"""Bounds on what a round measured. A busy machine may make a round miss one, and never makes one keep it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jobq.chaos.verdict import Verdict


class Bound(NamedTuple):
    """`figure`, a field of Verdict, must be at most `limit`, or at least."""

    figure: str
    limit: float
    least: bool = False

    def kept(self, value: float) -> bool:
        """Whether a value is within."""
        return value >= self.limit if self.least else value <= self.limit

    @property
    def told(self) -> str:
        """`recovery p99 <= 1.00`."""
        return f"{self.figure.replace('_', ' ')} {'>=' if self.least else '<='} {self.limit:.2f}"


def missed(verdict: Verdict, bounds: Sequence[Bound]) -> Iterator[str]:
    """The bounds that don't hold, each with what was measured. What wasn't measured misses none."""
    for bound in bounds:
        value = getattr(verdict, bound.figure)
        if value is not None and not bound.kept(value):
            yield f"{bound.told}, measured {value:.2f}"
