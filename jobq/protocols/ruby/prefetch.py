"""Decides how many jobs to claim from a Ruby queue in advance: about as many as end within a second.

Ruby's API, dashboards and workers can't see claimed jobs. A fixed number would claim too many slow jobs or too few
quick jobs. The caller passes all times in seconds, from any clock that never jumps.
"""

from __future__ import annotations

from jobq.protocols.ruby.claims import LIMIT

#: First size of a window, and its minimum size later.
FIRST = 10
#: If all jobs of a window would run within QUICK_S, it is too small. If they need more than SLOW_S, it is too large.
QUICK_S, SLOW_S = 0.2, 1.0


class PrefetchWindow:
    """Decides how many jobs of a queue may be claimed ahead, up to `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._least = self.size = min(FIRST, most)
        self._held, self._taken_at = 0, 0.0

    def room(self, ready: int, now: float) -> int:
        """Return how many jobs to claim while `ready` jobs wait to run."""
        ended = self._held - ready
        if ended >= self._step():
            self._fit((now - self._taken_at) * self.size / ended)
        room = self.size - ready
        return min(LIMIT, room) if room >= self._step() else 0

    def took(self, ready: int, asked: int, got: int, now: float) -> None:
        """Start to measure how fast claimed jobs run, unless the claim returned fewer jobs than requested."""
        self._held = ready + got if got == asked else 0
        self._taken_at = now

    def _step(self) -> int:
        """Return the minimum number of jobs to claim together, so that the intake doesn't claim jobs one by one."""
        return max(1, min(LIMIT, self.size // 4))

    def _fit(self, seconds: float) -> None:
        if seconds < QUICK_S:
            self.size = min(self._most, 2 * self.size)
        elif seconds > SLOW_S:
            self.size = max(self._least, self.size // 2)
        self._held = 0
