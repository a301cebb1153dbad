"""The header that tells a call which tick of a schedule enqueued it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

HEADER = "jobq-tick"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Tick(NamedTuple):
    """One tick of a schedule.

    Attributes:
        missed: Number of earlier ticks without a run.
        rule: A cron expression, or `every 600s`.
    """

    schedule: str
    at_ms: int
    missed: int
    zone: str
    rule: str

    @property
    def at(self) -> datetime:
        """The time of the tick, in the schedule's zone."""
        return moment(self.at_ms, self.zone)

    def header(self) -> str:
        """Encode the tick as a header."""
        return f"{self.at_ms} {self.missed} {self.zone} {self.schedule} {self.rule}"


def tick_of(headers: Mapping[str, str]) -> Tick | None:
    """Parse the tick of a schedule from a call's headers; return None without a valid tick."""
    parts = headers.get(HEADER, "").split(" ", 4)
    numbers = [part for part in parts[:2] if part.isascii() and part.isdigit() and len(part) < 16]
    if len(parts) < 5 or len(numbers) < 2:
        return None
    return Tick(parts[3], int(parts[0]), int(parts[1]), parts[2], parts[4])


def moment(at_ms: int, zone: str) -> datetime:
    """Convert epoch ms to a datetime in a time zone, or in UTC if the zone isn't known here."""
    from zoneinfo import ZoneInfo

    at = _EPOCH + timedelta(milliseconds=at_ms)
    try:
        return at.astimezone(ZoneInfo(zone))
    except Exception:
        return at
