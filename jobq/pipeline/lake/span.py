"""From when to when: what of a table is asked for, as instants and as days."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import NamedTuple

from jobq.pipeline.lake.live import LAST_DAY
from jobq.pipeline.options import parsed_moment

Moment = datetime | date | str | None


class Span(NamedTuple):
    """From `since`, included, to `until`, excluded; None is without end."""

    since: datetime | None = None
    until: datetime | None = None

    @property
    def first_day(self) -> str:
        """The first day that may hold some of it."""
        return self.since.date().isoformat() if self.since else ""

    @property
    def last_day(self) -> str:
        """The last one."""
        return (
            (self.until - timedelta(microseconds=1)).date().isoformat() if self.until else LAST_DAY
        )


def span(since: Moment = None, until: Moment = None) -> Span:
    """From datetimes, days or ISO texts; what says no zone is UTC."""
    return Span(_instant("since", since), _instant("until", until))


def _instant(name: str, value: Moment) -> datetime | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return parsed_moment(name, value)
    if not isinstance(value, datetime):
        return datetime.combine(value, time(), UTC)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
