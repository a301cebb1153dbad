"""Chart data from before this process started. Workers store it: one value per minute, for a day."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import pairwise
from threading import Lock

from jobq.client.connection import Client
from jobq.errors import JobqError
from jobq.queue.charts import MINUTE_MS, ChartMinute, kept_minutes

#: Interval between readings of the rings; and maximum number of queues whose rings are kept.
READ_EVERY_S, MAX_REMEMBERED = 30.0, 50
#: Number of the figure that is a rate; the sampler's rings use the same numbers.
_RATE = 4
Points = list[tuple[float, float | None]]


class KeptCharts:
    """Reads the chart data that workers store. It is thread-safe."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = Lock()
        # Queue -> when it was read, and its minutes.
        self._read: dict[str, tuple[float, list[ChartMinute]]] = {}

    def filled(
        self, own: Points, queue: str, figure: int, since_s: float, until_s: float, *, step_s: int
    ) -> Points:
        """Return a chart's points, with gaps filled by values that workers stored.

        Args:
            own: Points from this process.
            step_s: Seconds between two points.
        """
        known = {int(at // 60) for at, value in own if value is not None}
        kept: Points = []
        for minute, value in _values(self._minutes(queue), figure):
            # Skip minutes with a value of this process, such as the current minute.
            if minute in known or not since_s - 60 < minute * 60 <= until_s:
                continue
            kept += [(float(minute * 60 + at), value) for at in range(0, 60, step_s)]
        if not kept:
            return own
        filled = {int(at // 60) for at, _ in kept}
        kept = [point for point in kept if since_s <= point[0] <= until_s]
        return sorted([*kept, *(point for point in own if int(point[0] // 60) not in filled)])

    def _minutes(self, queue: str) -> list[ChartMinute]:
        with self._lock:
            at, minutes = self._read.get(queue, (0.0, []))
        if at and time.monotonic() < at + READ_EVERY_S:
            return minutes
        # The lock is released here, so that a slow server doesn't make other pages wait.
        with suppress(JobqError):  # reported elsewhere on the page
            minutes = kept_minutes(self._client, queue, self._client.clock_ms() // MINUTE_MS)
        with self._lock:
            if len(self._read) >= MAX_REMEMBERED:
                self._read.clear()
            self._read[queue] = time.monotonic(), minutes
            return minutes


def _values(minutes: list[ChartMinute], figure: int) -> list[tuple[int, float]]:
    if figure != _RATE:
        return [(minute.minute, float(minute[1 + figure])) for minute in minutes]
    return [
        (now.minute, (now.fence - before.fence) / 60 / (now.minute - before.minute))
        for before, now in pairwise(minutes)
        if now.fence >= before.fence and now.minute - before.minute <= 2
    ]
