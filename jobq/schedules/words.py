"""Describes a cron expression in English: `30 7 * * 1-5` is "at 07:30, Monday to Friday"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from jobq.schedules.definition import Schedule
from jobq.schedules.expressions import parsed

DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
#: Maximum number of times of day to list one by one.
MAX_TIMES = 6
_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))


def in_words(schedule: Schedule) -> str:
    """Describe when a schedule has its ticks; return '' if its expression has no short description."""
    if not schedule.cron:
        return _every(schedule.every_ms)
    spec = parsed(schedule.cron)
    _, minute, hour, day, month, weekday = spec.parts
    if any(set(field) & set("L#W") for field in (day, weekday)) and day != "L":
        return ""
    when = _times(minute, hour, sorted(spec.minutes), sorted(spec.hours))
    on = _on(day, weekday, spec.days, spec.weekdays)
    if month != "*":
        on += " in " + _listed(MONTHS[number - 1] for number in sorted(spec.months))
    return f"{when}{on}" if when else ""


def _every(ms: int) -> str:
    for length, unit in _UNITS:
        if ms % length == 0:
            number = ms // length
            return f"every {unit}" if number == 1 else f"every {number} {unit}s"
    return f"every {ms / 1000:g} seconds"


def _times(minute: str, hour: str, minutes: Sequence[int], hours: Sequence[int]) -> str:
    if len(minutes) * len(hours) <= MAX_TIMES:
        return "at " + _listed(f"{h:02}:{m:02}" for h, m in product(hours, minutes))
    past = _past(minute, minutes)
    if not past:
        return ""
    step = _step(hour, 24)
    if step:
        hourly = "every hour" if step == 1 else f"every {step} hours"
        if past.startswith("every"):
            return past if step == 1 else ""
        return f"{hourly}, {past}"
    first, last = hours[0], hours[-1]
    if len(hours) != last - first + 1 or first == last:
        return ""
    if past.startswith("every"):
        return f"{past}, {first:02}:00 to {last:02}:59"
    return f"every hour from {first:02} to {last:02}, {past}"


def _past(field: str, minutes: Sequence[int]) -> str:
    """Describe the minutes of an hour; return '' if there are too many."""
    step = _step(field, 60)
    if step:
        return "every minute" if step == 1 else f"every {step} minutes"
    if len(minutes) > MAX_TIMES:
        return ""
    if list(minutes) == [0]:
        return "on the hour"
    return "at " + _listed(f":{number:02}" for number in minutes)


def _step(field: str, most: int) -> int:
    """Return the n of `*/n` if it divides `most`, 1 for `*`, and 0 for anything else."""
    if field == "*":
        return 1
    number = field.removeprefix("*/")
    if number == field or not number.isdecimal():
        return 0
    step = int(number)
    return step if step and most % step == 0 else 0


def _on(day: str, weekday: str, days: Iterable[object], weekdays: Iterable[object]) -> str:
    names = _weekdays({int(str(number)) % 7 for number in weekdays}) if weekday != "*" else ""
    numbers = ""
    if day == "L":
        numbers = "on the last day of the month"
    elif day != "*":
        dates = sorted(int(str(number)) for number in days)
        numbers = f"on day{'s' * (len(dates) > 1)} {_listed(map(str, dates))} of the month"
    # A day needs to match only one of the two fields, unless one of them begins with a star.
    both = " and " if day.startswith("*") or weekday.startswith("*") else " or "
    text = both.join(part for part in (numbers, names) if part)
    return f", {text}" if text else ""


def _weekdays(numbers: set[int]) -> str:
    if len(numbers) == 7:
        return ""
    ordered = sorted(numbers, key=lambda number: (number - 1) % 7)
    places = [(number - 1) % 7 for number in ordered]
    if len(places) > 2 and places[-1] - places[0] == len(places) - 1:
        return f"{DAYS[ordered[0]]} to {DAYS[ordered[-1]]}"
    return _listed(DAYS[number] for number in ordered)


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
