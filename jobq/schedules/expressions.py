"""Times of a schedule's ticks: cron expressions in a time zone, or intervals. All times are epoch ms.

cronsim parses the expressions and knows which days match. The times of a day are computed here, because cronsim's own
iteration leaves out ticks when clocks don't change by a whole hour (Lord Howe, Chatham).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import product, takewhile
from typing import Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from jobq.config import duration_s
from jobq.durations import Duration, counted
from jobq.errors import ConfigError

NAMES = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
#: An expression that matches none of this many days is assumed never to match.
MAX_DAYS = 50 * 366
_EXAMPLE = "write it as '30 7 * * 1-5', at 7:30 from Monday to Friday"
_WEEKDAY = "day of the week"
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS = ("", "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
#: Name, names of values, lowest and highest value of each field.
_FIELDS: tuple[tuple[str, Sequence[str], int, int], ...] = (
    ("minute", (), 0, 59), ("hour", (), 0, 23), ("day of the month", (), 1, 31), ("month", _MONTHS, 1, 12),
    (_WEEKDAY, _DAYS, 0, 6),
)  # fmt: skip
_DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime(9990, 1, 1, tzinfo=UTC)


class Ticks(Protocol):
    """The times of a schedule."""

    def after(self, moment_ms: int) -> Iterator[int]:
        """Return the ticks after `moment_ms`, in order."""
        ...

    def between(self, after_ms: int, until_ms: int) -> Iterator[int]:
        """Return the ticks after `after_ms`, up to and including `until_ms`, latest first."""
        ...


class Within:
    """The ticks of a schedule from its first to its last possible moment."""

    def __init__(self, ticks: Ticks, first_ms: int, last_ms: float) -> None:
        self._ticks, self._before_ms, self._last_ms = ticks, first_ms - 1, last_ms

    def after(self, moment_ms: int) -> Iterator[int]:
        """Return the ticks after `moment_ms`, in order."""
        ticks = self._ticks.after(max(moment_ms, self._before_ms))
        return takewhile(lambda tick: tick <= self._last_ms, ticks)

    def between(self, after_ms: int, until_ms: int) -> Iterator[int]:
        """Return the ticks after `after_ms`, up to and including `until_ms`, latest first."""
        until_ms = int(min(until_ms, self._last_ms))
        return self._ticks.between(max(after_ms, self._before_ms), until_ms)


class Every:
    """Ticks at whole multiples of an interval since 1970, in UTC. They are the same in every process."""

    def __init__(self, every: Duration) -> None:
        try:
            seconds = duration_s(every)
        except (ConfigError, TypeError, ValueError) as error:
            raise ConfigError(f"every={every!r} is not a duration; write '10m' or 600") from error
        if not 1 <= seconds <= 366 * 86_400:
            raise ConfigError(
                f"every={every!r} is out of range; it must be between 1 second and 366 days"
            )
        self.step_ms = round(seconds * 1000)

    def __str__(self) -> str:
        return f"every {self.step_ms / 1000:g}s"

    def after(self, moment_ms: int) -> Iterator[int]:
        """Return the ticks after `moment_ms`, in order."""
        tick = (moment_ms // self.step_ms + 1) * self.step_ms
        while True:
            yield tick
            tick += self.step_ms

    def between(self, after_ms: int, until_ms: int) -> Iterator[int]:
        """Return the ticks after `after_ms`, up to and including `until_ms`, latest first."""
        yield from range(until_ms // self.step_ms * self.step_ms, max(-1, after_ms), -self.step_ms)


class Cron:
    """The ticks of an expression in a zone. Clock changes are handled as in Debian's cron.

    If a clock change skips a fixed time, the tick comes right after the change. If a fixed time occurs twice, the
    second occurrence isn't a tick. With `*` in hours or minutes, the intervals between ticks don't change.
    """

    def __init__(self, expression: str, zone: str = "UTC") -> None:
        self.expression, self.zone = expression, zone
        self._zone = zone_of(zone)
        self._spec = parsed(expression)
        fields = self._spec.parts
        self._times = [
            time(hour, minute)
            for hour, minute in product(sorted(self._spec.hours), sorted(self._spec.minutes))
        ]
        #: Whether clock changes leave the intervals between ticks unchanged.
        self.is_open = fields[1].startswith("*") or fields[2].startswith("*")
        self._on = lru_cache(maxsize=4)(self._ticks_on)

    def __str__(self) -> str:
        return f"{self.expression} {self.zone}"

    def after(self, moment_ms: int) -> Iterator[int]:
        """Return the ticks after `moment_ms`, in order."""
        last = moment_ms
        for day in self._days(moment_ms, 1):
            for tick in self._on(day):
                if tick > last:
                    last = tick
                    yield tick

    def between(self, after_ms: int, until_ms: int) -> Iterator[int]:
        """Return the ticks after `after_ms`, up to and including `until_ms`, latest first."""
        last = until_ms + 1
        first_day = _local(max(0, after_ms), self._zone).date() - _DAY
        for day in self._days(until_ms, -1, first_day):
            for tick in reversed(self._on(day)):
                if after_ms < tick < last:
                    last = tick
                    yield tick

    def long_steps(self) -> Iterator[tuple[str, str, int]]:
        """Yield the text, name and step of each field whose step exceeds the field's range, such as `*/90` minutes."""
        for field, (name, _, least, most) in zip(self._spec.parts[1:], _FIELDS, strict=True):
            step = re.fullmatch(r"[^,]+/(\d+)", field)
            if step and int(step[1]) > most - least + 1:
                yield field, name, int(step[1])

    def gaps_on(self, day: date) -> list[datetime]:
        """Return the scheduled times on `day` that a clock change skips."""
        if not self._matches(day):
            return []
        local = (datetime.combine(day, at) for at in self._times)
        return [at for at in local if self._is_left_out(at)]

    def _matches(self, day: date) -> bool:
        return day.month in self._spec.months and self._spec.match_day(day)

    def _days(self, moment_ms: int, step: int, first: date = date(1970, 1, 1)) -> Iterator[date]:
        """Yield the days with ticks, forward or backward from a moment.

        The search begins one day early, because a day can begin twice around a clock change.
        """
        last = _LAST.date()
        day = _local(min(moment_ms, _ms(_LAST)), self._zone).date() - step * _DAY
        day, empty = max(first, min(day, last)), 0
        while empty < MAX_DAYS and first <= day <= last:
            if self._matches(day):
                empty = 0
                yield day
            empty += 1
            day += step * _DAY

    def _ticks_on(self, day: date) -> list[int]:
        """Return the ticks of a local day, sorted."""
        ticks: set[int] = set()
        first = datetime.combine(day, time(), self._zone)
        if first.utcoffset() == (first + _DAY).utcoffset() == (first + _DAY / 2).utcoffset():
            start = _ms(datetime.combine(day, time(), UTC)) - _ms_of(first.utcoffset())
            return [start + (at.hour * 60 + at.minute) * 60_000 for at in self._times]
        for at in self._times:
            local = datetime.combine(day, at)
            if not self._is_left_out(local):
                twice = (0, 1) if self.is_open else (0,)
                ticks |= {_ms(local.replace(tzinfo=self._zone, fold=fold)) for fold in twice}
            elif not self.is_open:
                ticks.add(self._moved(local))
        return sorted(ticks)

    def _is_left_out(self, local: datetime) -> bool:
        there = local.replace(tzinfo=self._zone)
        return there.astimezone(UTC).astimezone(self._zone).replace(tzinfo=None) != local

    def _moved(self, local: datetime) -> int:
        """Return the first moment after a clock change that skips this local time."""
        while self._is_left_out(local):
            local += timedelta(minutes=1)
        return _ms(local.replace(tzinfo=self._zone))


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone by its name; raise ConfigError for an unknown name."""
    try:
        return ZoneInfo(name)
    except Exception as error:
        raise ConfigError(
            f"tz={name!r:.100} can't be used as a time zone; use a name such as 'Europe/Berlin' or 'UTC'"
        ) from error


@lru_cache(maxsize=1_000)
def parsed(expression: str) -> CronSim:
    """Parse an expression with cronsim; raise ConfigError if it is invalid."""
    text = NAMES.get(expression.strip().lower(), expression)
    if text.startswith("@"):
        raise ConfigError(f"{expression!r:.100} is unknown; use one of {', '.join(NAMES)}")
    if len(text) > 500:
        raise ConfigError(
            f"a cron expression of {len(text):,} characters is too long; use at most 500"
        )
    count = len(text.split())
    if count != 5:
        seconds = "; for seconds use every='10s'" * (count == 6)
        raise ConfigError(
            f"{expression!r:.100} has {counted(count, 'field')}; write minute, hour, day of the month, month and "
            f"day of the week{seconds}"
        )
    try:
        return CronSim(text, datetime(2000, 1, 1))
    except (CronSimError, AssertionError, ValueError) as error:
        raise ConfigError(
            f"{expression!r:.100} can't be read as a cron expression: {error or 'a field is wrong'}; "
            f"{_hint(text) or _EXAMPLE}"
        ) from error


def _hint(text: str) -> str:
    """Return advice about a field that only other programs accept; '' if there is none."""
    for field, (name, names, least, most) in zip(text.split(), _FIELDS, strict=True):
        if "?" in field:
            return f"write * instead of ? as {name}"
        if name == _WEEKDAY and (last := re.fullmatch(r"L(\d|\w{3})", field, re.IGNORECASE)):
            day = last[1] if last[1].isdigit() else names.index(last[1].upper())
            return f"write {day}L for the last such day of the month"
        if re.fullmatch(r"L-\d+|\d+W", field, re.IGNORECASE):
            return "L-3 and 15W (days before the last, nearest weekday) aren't supported; compare the date in the job"
        for first, last in re.findall(r"(\w+)-(\w+)", field):
            begin, end = (_number(part, names) for part in (first, last))
            if least <= end < begin <= most:
                parts = (first, _shown(most, names, first)), (_shown(least, names, last), last)
                ranges = [a if a.upper() == b.upper() else f"{a}-{b}" for a, b in parts]
                return f"write {','.join(ranges)} instead of {first}-{last}"
    return ""


def _number(text: str, names: Sequence[str]) -> int:
    if text.isdecimal():
        return int(text)
    return names.index(text.upper()) if text.upper() in names else -1


def _shown(number: int, names: Sequence[str], beside: str) -> str:
    return str(number) if beside.isdecimal() else names[number].capitalize()


def _local(moment_ms: int, zone: ZoneInfo) -> datetime:
    return (_EPOCH + timedelta(milliseconds=moment_ms)).astimezone(zone)


def _ms(moment: datetime) -> int:
    return _ms_of(moment.astimezone(UTC) - _EPOCH)


def _ms_of(span: timedelta | None) -> int:
    assert span is not None
    return span // timedelta(milliseconds=1)
