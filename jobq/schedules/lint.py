"""Warnings about schedules that may behave unexpectedly."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

from jobq.schedules.definition import Schedule
from jobq.schedules.expressions import Cron

#: Number of days to search for changes of clocks, and number of ticks to search for the shortest interval.
DAYS, TICKS = 400, 200
MINUTE_MS = 60_000


def findings(schedule: Schedule, now_ms: int, timeout_s: float | None = None) -> Iterator[str]:
    """Yield warnings about a schedule, each as a sentence.

    Args:
        timeout_s: Timeout of the schedule's job.
    """
    coming = list(islice(schedule.ticks.after(now_ms), TICKS))
    if not coming:
        yield f"{schedule.rule!r} never occurs again"
        return
    times = schedule.ticks
    if isinstance(times, Cron):
        if not schedule.tz and not times.is_open:
            yield "its times are in UTC, because tz= is not set"
        yield from _gaps(times, now_ms)
        for field, name, step in times.long_steps():
            remedy = f"; write every='{step}{name[0]}'" if name in ("minute", "hour") else ""
            yield (
                f"{field!r} as {name} matches one value only, because steps begin again after the last {name}{remedy}"
            )
    shortest_ms = min((after - before for before, after in pairwise(coming)), default=0)
    if shortest_ms and schedule.overlap == "allow" and timeout_s and shortest_ms < timeout_s * 1000:
        yield (
            f"it has a tick every {shortest_ms / 1000:g} s, but a run may take {timeout_s:g} s, so runs "
            "can pile up with overlap='allow'"
        )
    if schedule.missed == "all" and 0 < shortest_ms <= MINUTE_MS:
        yield "missed='all' enqueues up to 100 runs together after an outage; consider missed='one'"


def _gaps(times: Cron, now_ms: int) -> Iterator[str]:
    """Yield a warning about the first scheduled time that a clock change skips."""
    if times.is_open:
        return
    today = datetime.fromtimestamp(now_ms / 1000, UTC).date()
    for number in range(DAYS):
        for local in times.gaps_on(today + timedelta(days=number)):
            yield (
                f"{local:%Y-%m-%d %H:%M} doesn't exist in {times.zone}, where clocks change; it runs after that"
            )
            return
