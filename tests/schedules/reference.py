"""The rule of Debian's cron, minute by minute: slow, and simple enough to be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
YEARS = range(2020, 2036)
EXPRESSIONS = (
    "30 2 * * *", "0 0 * * *", "30 1 * * *", "*/30 * * * *", "0 * * * *", "* 2 * * *", "15 */2 * * *",
    "0,30 2,3 * * *", "*/15 0 * * *", "59 23 * * 0", "10 3 1,15 * 1", "5 0-4 * 1-11 *",
)  # fmt: skip


def zones() -> dict[str, list[datetime]]:
    """One zone for each distinct table of transitions, with its transitions."""
    found: dict[tuple[object, ...], tuple[str, list[datetime]]] = {}
    for name in sorted(available_timezones()):
        zone = ZoneInfo(name)
        changes = list(transitions(zone))
        begins = (datetime(YEARS[0], 1, 1, tzinfo=UTC), *changes)
        offsets = (at.astimezone(zone).utcoffset() for at in begins)
        found.setdefault((*changes, *offsets), (name, changes))
    return dict(found.values())


def transitions(zone: ZoneInfo) -> Iterator[datetime]:
    """Yield the minutes at which the offset from UTC changes. In these years, no week has two of them."""

    def offset(minutes: int) -> timedelta | None:
        return (at + minutes * MINUTE).astimezone(zone).utcoffset()

    at, end = datetime(YEARS[0], 1, 1, tzinfo=UTC), datetime(YEARS[-1] + 1, 1, 1, tzinfo=UTC)
    week = 7 * 24 * 60
    now, then = offset(0), offset(week)
    while at < end:
        if now != then:
            before, after = 0, week
            while after - before > 1:
                middle = (before + after) // 2
                before, after = (middle, after) if offset(middle) == now else (before, middle)
            yield at + after * MINUTE
        at += 7 * DAY
        now, then = then, offset(week)


class Minute(NamedTuple):
    """A minute: its time on the wall, whether that comes a second time, and times that were left out before it."""

    at_ms: int
    wall: datetime
    again: bool
    left_out: list[datetime]


def looked_at(zone: ZoneInfo, start: datetime, end: datetime) -> list[Minute]:
    """Every minute from `start` to before `end`."""
    found, at = [], start
    before = (start - MINUTE).astimezone(zone).replace(tzinfo=None)
    while at < end:
        local = at.astimezone(zone)
        wall = local.replace(tzinfo=None, fold=0)
        left_out = [before + i * MINUTE for i in range(1, (wall - before) // MINUTE)]
        found.append(Minute(round(at.timestamp() * 1000), wall, local.fold == 1, left_out))
        before, at = wall, at + MINUTE
    return found


def numbers(field: str, least: int, most: int) -> set[int]:
    """What a field of the expressions above names."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{least}-{most}" if span == "*" else span).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


class Reference:
    """One expression."""

    def __init__(self, expression: str) -> None:
        minute, hour, self._dom, month, self._dow = expression.split()
        self._minutes, self._hours = numbers(minute, 0, 59), numbers(hour, 0, 23)
        self._days, self._months = numbers(self._dom, 1, 31), numbers(month, 1, 12)
        self._weekdays = {day % 7 for day in numbers(self._dow, 0, 7)}
        self._is_open = minute.startswith("*") or hour.startswith("*")

    def names(self, local: datetime) -> bool:
        """Whether a time on the wall is meant."""
        if local.minute not in self._minutes or local.hour not in self._hours:
            return False
        return local.month in self._months and self._names_day(local.date())

    def _names_day(self, day: date) -> bool:
        dom, dow = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        both = self._dom.startswith("*") or self._dow.startswith("*")
        return (dom and dow) if both else (dom or dow)

    def ticks(self, minutes: list[Minute]) -> list[int]:
        """The ticks among these, in epoch ms."""
        found = []
        for at_ms, wall, again, left_out in minutes:
            hit = self.names(wall) if self._is_open else not again and self.names(wall)
            if hit or (left_out and not self._is_open and any(map(self.names, left_out))):
                found.append(at_ms)
        return found
