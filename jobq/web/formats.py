"""Format numbers, durations, sizes, shares and times for pages. An unknown value becomes a dash, not 0."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from jobq.durations import lasting

UNKNOWN = "–"

#: The years 1 to 9999, in epoch milliseconds.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999


def number(value: float | None) -> str:
    """Format a count: in full up to 9,999, then as `12.4k` or `1.23M`."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if abs(value) < 9_999.5:
        return f"{value:,.0f}"
    for size, unit in ((1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")):
        scaled = value / size
        if abs(scaled) < 999.5 or unit == "T":
            return f"{_three(scaled)}{unit}"
    raise AssertionError


def whole(value: float | None) -> str:
    """Format a number with all its digits: `1,234,567`."""
    return UNKNOWN if value is None or math.isnan(value) else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Format a number per second: `0.3/s`, `842/s`, `12.4k/s`."""
    if value is None or math.isnan(value):
        return UNKNOWN
    small = 0 < abs(value) < 9.95
    return (
        f"{value:.1f}" if small and abs(value) >= 0.05 else "<0.1" if small else number(value)
    ) + "/s"


def duration(seconds: float | None) -> str:
    """Format a duration: `0.8 ms`, `12.4 s`, `6 m 12 s`, `3 h 05 m`, `2 d`."""
    if seconds is None or math.isnan(seconds):
        return UNKNOWN
    return f"-{lasting(-seconds)}" if seconds < 0 else lasting(seconds)


def per(seconds: int) -> str:
    """Format the period of a rate: `minute`, `5 minutes`."""
    for unit, name in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds % unit == 0:
            return name if seconds == unit else f"{seconds // unit} {name}s"
    return "second" if seconds == 1 else f"{seconds} seconds"


def size(bytes_: float | None) -> str:
    """Format a size: `512 B`, `4.2 KiB`, `80 MiB`."""
    if bytes_ is None or math.isnan(bytes_):
        return UNKNOWN
    if bytes_ < 1024:
        return f"{bytes_:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        bytes_ /= 1024
        if bytes_ < 1023.5 or unit == "TiB":
            return f"{_three(bytes_)} {unit}"
    raise AssertionError


def share(value: float | None) -> str:
    """Format a share between 0 and 1: `<0.1 %`, `4.2 %`, `41 %`."""
    if value is None or math.isnan(value):
        return UNKNOWN
    percent = 100 * value
    if 0 < percent < 0.05:
        return "<0.1 %"
    return f"{percent:.1f} %" if 0 < percent < 9.95 else f"{percent:.0f} %"


def moment(at: datetime, zone: ZoneInfo) -> str:
    """Format a time in full: `2026-11-23 14:02:03.250 CET`."""
    local = _local(at, zone)
    return f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03} {local:%Z}"


def time(at: datetime, now: datetime, zone: ZoneInfo) -> str:
    """Format a time: relative within an hour, otherwise as clock time, with the date unless it is today."""
    away = (now - at).total_seconds()
    if abs(away) < 3600:
        if abs(away) < 0.5:
            return "now"
        shown = f"{abs(away):.0f} s" if abs(away) < 59.5 else f"{round(abs(away) / 60)} m"
        return f"{shown} ago" if away >= 0 else f"in {shown}"
    local, today = _local(at, zone), now.astimezone(zone)
    if local.date() == today.date():
        return f"{local:%H:%M}"
    return f"{local:%d %b %H:%M}" if local.year == today.year else f"{local:%Y-%m-%d %H:%M}"


def at_ms(ms: float) -> datetime:
    """Return epoch milliseconds as a time; out-of-range values give the first or last possible time."""
    return datetime.fromtimestamp(min(max(ms, _FIRST_MS), _LAST_MS) / 1000, UTC)


def _local(at: datetime, zone: ZoneInfo) -> datetime:
    try:
        return at.astimezone(zone)
    except OverflowError:
        # In other zones, the last hours of the year 9999 are in the year 10000.
        return at


def _three(value: float) -> str:
    places = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{places}f}"
