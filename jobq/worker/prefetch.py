"""How many messages a child takes at once: as many as it ends in about `target_ms`; pure."""

from __future__ import annotations

GROWTH = 4


class Prefetch:
    """Of one queue. Starts at one, grows fourfold at most, shrinks at once."""

    def __init__(self, most: int, target_ms: int) -> None:
        self.size = 1
        self._most = most
        self._target_s = target_ms / 1000

    def ran(self, count: int, seconds: float) -> None:
        """A batch of `count` took so long."""
        fitting = int(self._target_s * count / seconds) if seconds > 0 else self._most
        self.size = max(1, min(self._most, self.size * GROWTH, fitting))
