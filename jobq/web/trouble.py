"""The state of a queue, computed from its figures."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from jobq.web.outcomes import Recent

#: A queue is late when its next message has waited longer than this.
LATE_S = 60.0
#: A queue is failing when more than this share of its attempts failed, and it had more than this many.
FAILING_SHARE, FAILING_ATTEMPTS = 0.2, 20
#: Growth is measured over GROWTH_S, with a point every GROWTH_EVERY_S; before MIN_GROWTH_S it is unknown.
GROWTH_S, MIN_GROWTH_S, GROWTH_EVERY_S = 300.0, 20.0, 10.0
#: A backlog that is processed within this time doesn't need attention.
SHORT_S = 30.0
#: States of a queue, worst first.
CODES = ("damaged", "paused", "no_worker", "falling_behind", "late", "failing", "working", "idle")
_FINE = frozenset(("working", "idle"))


class Growth(NamedTuple):
    """Growth of the number of ready messages.

    Attributes:
        per_s: Change per second; None if the number wasn't measured for long enough.
        since_s: Time at which the number was last at its minimum, in epoch seconds.
    """

    per_s: float | None = None
    since_s: float | None = None


class QueueFigures(NamedTuple):
    """Figures of a queue at one time. None means unknown.

    Attributes:
        oldest_ms: How long the next message has waited.
        paused: Whether the queue or any of its partitions is paused.
        at_least: Whether the next message may have waited longer than oldest_ms.
        dequeued_per_s: Messages dequeued per second, or None before the second reading.
        broken: Reason why the queue can't be read.
        pause_ends: When the pause ends, epoch ms; 0 if it doesn't end by itself.
        events_off: Whether the queue's event level is `off`.
        job: The job of the next message; '' if unknown.
        served_partitions, paused_partitions: See Counts.
    """

    queue: str
    at_ms: int
    ready: int = 0
    delayed: int = 0
    running: int = 0
    dead: int = 0
    messages: int = 0
    paused: bool = False
    workers: int | None = None
    slots: int = 0
    oldest_ms: int | None = None
    at_least: bool = False
    dequeued_per_s: float | None = None
    dequeued: int = 0
    growth: Growth = Growth()
    recent: Recent = Recent()
    broken: str = ""
    pause_ends: int = 0
    events_off: bool = False
    job: str = ""
    served_partitions: int = 1
    paused_partitions: int = 0

    @property
    def partly_paused(self) -> bool:
        """Return whether some but not all partitions are paused."""
        return 0 < self.paused_partitions < self.served_partitions

    @property
    def busy(self) -> int:
        """Number of running messages. Workers may fetch more messages than they have slots."""
        return busy_slots(self.running, self.slots)

    @property
    def state(self) -> str:
        """The first state in CODES that applies to the queue."""
        return _state(self)

    @property
    def is_fine(self) -> bool:
        """Return whether the queue doesn't need attention. A paused, empty queue is fine."""
        return self.state in _FINE or (self.state == "paused" and not self.ready)

    @property
    def empty_in_s(self) -> float | None:
        """Estimated seconds until the queue has no ready messages; infinity if never, None if unknown."""
        if not self.ready:
            return 0.0
        per_s = self.growth.per_s
        if per_s is None:
            return None
        return self.ready / -per_s if per_s < 0 and not self.paused else math.inf

    @property
    def trouble(self) -> tuple[int, float, str]:
        """Sort key that puts the queue with the worst problem first."""
        if self.is_fine:
            return len(CODES), -float(self.ready + self.running), self.queue
        return CODES.index(self.state), -float(self.oldest_ms or 0), self.queue


def busy_slots(taken: int, slots: int) -> int:
    """Return how many of the fetched messages can be running: at most one per slot, if the number of slots is known."""
    return min(taken, slots) if slots else taken


def _state(figures: QueueFigures) -> str:
    if figures.broken:
        return "damaged"
    if figures.ready and figures.paused:
        return "paused"
    if figures.ready and figures.workers == 0:
        return "no_worker"
    if falls_behind(figures):
        return "falling_behind"
    if figures.ready and figures.oldest_ms is not None and figures.oldest_ms > LATE_S * 1000:
        return "late"
    attempts = figures.recent.done + figures.recent.failed + figures.recent.dead
    share = figures.recent.failure_share
    if share is not None and share > FAILING_SHARE and attempts > FAILING_ATTEMPTS:
        return "failing"
    if figures.paused:
        return "paused"
    return "working" if figures.ready or figures.running else "idle"


def falls_behind(figures: QueueFigures) -> bool:
    """Return whether messages arrive noticeably faster than workers fetch them."""
    per_s = figures.growth.per_s
    if not figures.ready or per_s is None or per_s <= 0:
        return False
    if per_s * GROWTH_S < 0.05 * figures.ready:
        return False  # it hardly grows
    waited = (figures.oldest_ms or 0) / 1000
    rate = figures.dequeued_per_s or 0.0
    return waited > SHORT_S or rate == 0 or figures.ready / rate > SHORT_S


class GrowthWatch:
    """Watches how one number grows, in bounded memory."""

    __slots__ = ("_lowest", "_points", "_since")

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()
        self._lowest, self._since = math.inf, 0.0

    def put(self, at_s: float, value: int) -> Growth:
        """Record a number measured at `at_s`, in epoch seconds. Return how fast the number grows."""
        if value <= self._lowest:
            self._lowest, self._since = value, at_s
        points = self._points
        while points and points[0][0] < at_s - GROWTH_S:
            points.popleft()
        if not points or at_s - points[-1][0] >= GROWTH_EVERY_S:
            points.append((at_s, value))
        first, before = points[0]
        if at_s - first < MIN_GROWTH_S:
            return Growth(None, self._since)
        return Growth((value - before) / (at_s - first), self._since)
