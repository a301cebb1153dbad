"""Recent values of a few figures, in 4 bytes each."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

_UNKNOWN = float("nan")


class Ring:
    """A ring buffer with the latest `size` points of several figures, one point every `step_s` seconds.

    A point is the maximum of its values, or the mean for figures in `means`. Unknown points are NaN.
    """

    __slots__ = ("_last", "_means", "_parts", "_seen", "size", "step_s", "width")

    def __init__(
        self, size: int, step_s: float, width: int, means: frozenset[int] = frozenset()
    ) -> None:
        self.size, self.step_s, self.width = size, step_s, width
        self._means = means
        self._parts = array("f", [_UNKNOWN]) * (size * width)
        #: Number of the newest point, counted from the epoch, and how many values are in it.
        self._last, self._seen = -1, 0

    def put(self, at_s: float, values: Sequence[float]) -> None:
        """Store a value of each figure, measured at the epoch second `at_s`. Ignore values before the latest point."""
        point = int(at_s // self.step_s)
        if point < self._last:
            return
        if point > self._last:
            self._forget(point)
            self._last, self._seen = point, 0
        at = point % self.size * self.width
        for i, value in enumerate(values):
            before = self._parts[at + i]
            if math.isnan(before):
                self._parts[at + i] = value
            elif i in self._means:
                self._parts[at + i] = before + (value - before) / (self._seen + 1)
            elif value > before:
                self._parts[at + i] = value
        self._seen += 1

    def _forget(self, point: int) -> None:
        """Clear the buffer's slots for new points up to `point`, because the slots still have old values."""
        if point - self._last >= self.size:
            if self._last >= 0:  # else nothing was put yet
                self._parts = array("f", [_UNKNOWN]) * len(self._parts)
            return
        for index in range(max(self._last + 1, point - self.size + 1), point + 1):
            at = index % self.size * self.width
            for i in range(self.width):
                self._parts[at + i] = _UNKNOWN

    def add(self, at_s: float, column: int, value: float) -> None:
        """Add `value` to a figure's point at `at_s`, which may be in the past. Ignore points older than the buffer."""
        point = int(at_s // self.step_s)
        if point > self._last:
            self._forget(point)
            self._last, self._seen = point, 0
        if point <= self._last - self.size:
            return
        at = point % self.size * self.width + column
        before = self._parts[at]
        self._parts[at] = value if math.isnan(before) else before + value

    def value(self, at_s: float, column: int) -> float | None:
        """Return a figure's value at `at_s`; None if unknown."""
        point = int(at_s // self.step_s)
        if not self._last - self.size < point <= self._last:
            return None
        part = self._parts[point % self.size * self.width + column]
        return None if math.isnan(part) else part

    def points(
        self, column: int, since_s: float, until_s: float
    ) -> list[tuple[float, float | None]]:
        """Return the points of a figure as pairs of epoch seconds and value; an unknown value is None."""
        first = max(int(since_s // self.step_s), self._last - self.size + 1)
        last = min(int(until_s // self.step_s), self._last)
        points: list[tuple[float, float | None]] = []
        for point in range(first, last + 1):
            value = self._parts[point % self.size * self.width + column]
            points.append((point * self.step_s, None if math.isnan(value) else value))
        return points
