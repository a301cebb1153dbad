"""Parse and format durations, rates, counts and lists of names as people write them. Invalid text raises ValueError."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, timedelta
from typing import NamedTuple, SupportsFloat

Duration = float | timedelta | str

DAY_MS = 86_400_000
#: Maximum number of names in one sentence.
MAX_NAMES = 3
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604_800}
_NUMBER = r"(\d+(?:\.\d+)?)"
#: Units as words: `5 min`, `2 hours`. They go from the longest to the shortest, each at most once: `1h30m`.
_WORDS = {
    "w": "w|weeks?", "d": "d|days?", "h": "h|hrs?|hours?", "m": "m|mins?|minutes?", "s": "s|secs?|seconds?", "ms": "ms",
}  # fmt: skip
_WRITTEN = re.compile(
    "".join(rf"(?:\s*{_NUMBER}\s*(?:{words})(?![a-z]))?" for words in _WORDS.values()) + r"\s*"
)
_PLAIN = re.compile(rf"\s*{_NUMBER}\s*")
#: ISO 8601, without years and months, because their lengths differ.
_ISO = re.compile(
    rf"\s*P(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?\s*"
)
#: All three formats of an HTTP date contain a time of day; durations don't.
_TIME_OF_DAY = re.compile(r"\d\d:\d\d:\d\d")
_EXAMPLES = "30, 1.5, '500ms', '30s', '5m', '1h30m', '2d', '1w', 'PT15M' or a timedelta"

_RATE = re.compile(r"\s*(\d{1,10})\s*/\s*(\d{1,4})?\s*([smhd])\s*")
#: Maximum count and span of a rate. Scripts calculate with doubles, and these bounds keep their numbers whole.
MAX_PER_SPAN = 1_000_000_000
MAX_SPAN_MS = 30 * DAY_MS


class Rate(NamedTuple):
    """A rate of at most `most` events in any `span_ms` milliseconds. `str` formats a rate as `100/m` or `3/10s`."""

    most: int
    span_ms: int

    def __str__(self) -> str:
        unit = next(unit for unit in "dhms" if self.span_ms % (_UNITS[unit] * 1000) == 0)
        number = self.span_ms // int(_UNITS[unit] * 1000)
        return f"{self.most}/{number if number > 1 else ''}{unit}"


def rate_of(value: object) -> Rate:
    """Parse a rate: `rate_of("100/m") == Rate(100, 60_000)`.

    Units are s, m, h and d. A number before the unit multiplies the span: `3/10s`.
    """
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r:.200} is not a rate; write '100/m', '5/s' or '1000/h'")
    most, span_ms = int(match[1]), int(match[2] or 1) * int(_UNITS[match[3]]) * 1000
    if not (1 <= most <= MAX_PER_SPAN and 0 < span_ms <= MAX_SPAN_MS):
        raise ValueError(
            f"{value!r:.200} is out of range; use 1 to {MAX_PER_SPAN:,} starts per span of 1 s to 30 days"
        )
    return Rate(most, span_ms)


def seconds_of(value: object) -> float:
    """Return a duration in seconds: `seconds_of("1h30m") == 5400`. ISO 8601 also works. The result is never NaN.

    Units are ms, s, m, h, d and w, or words, as in `2 hours`. Numbers without a unit are seconds.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        return _read(value)
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        raise _refused(value, _EXAMPLES)
    try:
        seconds = float(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise _refused(value, _EXAMPLES) from error
    if math.isnan(seconds):
        raise _refused(value, _EXAMPLES)
    return seconds


def _read(text: str) -> float:
    if plain := _PLAIN.fullmatch(text):
        return float(plain[1])
    match = _WRITTEN.fullmatch(text) or _ISO.fullmatch(text)
    parts = match.groups() if match else ()
    if not any(parts):
        raise _refused(text, _EXAMPLES)
    return sum(float(part) * _UNITS[unit] for part, unit in zip(parts, _WORDS) if part)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 step`, `1,204 steps`, `2 children`, `3 entries`."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural of a noun, or of a phrase that ends with its noun, such as `lost worker`."""
    if noun.endswith("child"):
        return f"{noun}ren"
    ending = "es" if noun.endswith(("x", "s", "ch")) else "s"
    return f"{noun[:-1]}ies" if noun.endswith(("entry", "retry")) else noun + ending


def listed(names: Sequence[str], most: int = MAX_NAMES) -> str:
    """Return the first names, and how many more there are: `a, b, c and 4 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def lasting(seconds: float) -> str:
    """Format a duration as people write it: `0.8 ms`, `3.2 s`, `4 m 38 s`, `2 h 05 m`, `3 d 4 h`, `12 d`."""
    seconds = max(0.0, seconds)
    if not 0 < seconds < 0.9995:
        short = f"{seconds:.1f}".removesuffix(".0")
        return f"{short} s" if seconds < 59.95 else _whole_units(round(seconds))
    ms = seconds * 1000
    return f"{ms:.1f} ms" if ms < 9.95 else f"{ms:.0f} ms"


def _whole_units(seconds: int) -> str:
    if seconds < 3600:
        return f"{seconds // 60} m {seconds % 60:02} s"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02} m"
    days, left = divmod(seconds, 86_400)
    return f"{days:,} d" + (f" {left // 3600} h" if days < 7 else "")


def wait_of(value: object, clock: Callable[[], float] = time.time) -> float:
    """Return the seconds to wait, given a duration or an HTTP date as in `Retry-After`. Return 0 for a past date."""
    if not isinstance(value, str) or not _TIME_OF_DAY.search(value):
        return seconds_of(value)
    from email.utils import parsedate_to_datetime

    try:
        at = parsedate_to_datetime(value)
        # A date without a zone, such as asctime's format, is in UTC.
        return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - clock())
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        remedy = f"{_EXAMPLES}, or an HTTP date such as 'Sun, 06 Nov 1994 08:49:37 GMT'"
        raise _refused(value, remedy) from error


def _refused(value: object, remedy: str) -> ValueError:
    return ValueError(f"{value!r:.200} is not a duration; write {remedy}")
