"""A schedule: a call of a job, and its times. It is declared in code, or stored on the server as JSON."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo

import msgspec
from msgspec import structs

from jobq.config import duration_s, parse_time
from jobq.durations import Duration
from jobq.errors import ConfigError
from jobq.habits import remedy
from jobq.jobs.ticks import Tick
from jobq.schedules.expressions import Cron, Every, Ticks, Within

Missed = Literal["skip", "one", "all"]
Overlap = Literal["skip", "queue", "allow", "cancel"]
#: With missed="skip", a tick that is later than this is missed.
GRACE_MS = 60_000
#: Maximum number of missed ticks that missed="all" enqueues, and maximum number of missed ticks to count.
CAP, MAX_COUNTED = 100, 10_000
MAX_NAME = 100
#: Maximum value of `times`.
MAX_TIMES = 10_000
_BOUNDS = ("start", "end", "times")
_DAY_S = 86_400.0


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One schedule of a queue.

    Attributes:
        every_ms: The interval; 0 for a cron expression.
        args, kwargs: Arguments of the job.
        tz: The time zone; '' means UTC.
        start_ms, end_ms: Bounds of the ticks, epoch ms; 0: no bound.
        times: Maximum number of ticks, counted from start_ms; 0: no limit.
    """

    name: str
    job: str
    cron: str = ""
    every_ms: int = 0
    tz: str = ""
    missed: Missed = "one"
    overlap: Overlap = "skip"
    spread_ms: int = 0
    start_ms: int = 0
    end_ms: int = 0
    times: int = 0
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}

    @property
    def ticks(self) -> Ticks:
        """Return the schedule's times."""
        ticks = ticks_of(self.cron, self.every_ms, self.zone)
        if not (self.start_ms or self.end_ms):
            return ticks
        last_ms = self.end_ms or math.inf
        if self.times:
            counted = _nth(self.cron, self.every_ms, self.zone, self.start_ms, self.times)
            last_ms = min(last_ms, counted)
        return Within(ticks, self.start_ms, last_ms)

    @property
    def zone(self) -> str:
        """The time zone of the schedule's expression."""
        return self.tz or "UTC"

    @property
    def rule(self) -> str:
        """Return the expression or the interval as text for people."""
        return self.cron or f"every {self.every_ms / 1000:g}s"

    def shift_ms(self, queue: str) -> int:
        """Return the delay in ms between a tick and its call in this queue, a fixed part of `spread`."""
        return zlib.crc32(f"{queue}/{self.name}".encode()) % self.spread_ms if self.spread_ms else 0

    def tick(self, at_ms: int, missed: int) -> Tick:
        """Return the `Tick` that a scheduled job reads as `current().tick`."""
        return Tick(self.name, at_ms, missed, self.zone, self.rule)

    def mid(self, tick_ms: int) -> str:
        """Return the mid of a tick's message.

        With the overlap "queue" or "cancel", all messages of the schedule have the same mid.
        """
        if self.overlap in ("queue", "cancel"):
            return f"{self.name}@latest"
        return f"{self.name}@{self.tick(tick_ms, 0).at.isoformat(timespec='auto')}"


class Owed(NamedTuple):
    """A tick that is due.

    Attributes:
        missed: Number of earlier ticks that this tick replaces.
        runs: Whether the tick is enqueued. If it isn't, it is only recorded as missed.
    """

    tick_ms: int
    missed: int
    runs: bool


def owed(schedule: Schedule, last_ms: int, now_ms: int) -> list[Owed]:
    """Return the due ticks after the last tick, oldest first.

    Args:
        now_ms: The current time minus `shift_ms`.
    """
    all_of_them = schedule.missed == "all"
    newest: list[int] = []
    count = 0
    for tick in schedule.ticks.between(last_ms, now_ms):
        count += 1
        if len(newest) < (CAP if all_of_them else 1):
            newest.append(tick)
        if count == MAX_COUNTED:
            break
    if not newest:
        return []
    runs = schedule.missed != "skip" or now_ms - newest[0] <= GRACE_MS
    first, *others = reversed(newest)
    return [Owed(first, count - len(newest), runs), *(Owed(tick, 0, runs) for tick in others)]


def following(schedule: Schedule, now_ms: int) -> Iterator[int]:
    """Return the ticks after `now_ms`, in order."""
    return schedule.ticks.after(now_ms)


@lru_cache(maxsize=2_000)
def ticks_of(cron: str, every_ms: int, zone: str) -> Ticks:
    """Return the ticks of a schedule. Raises ConfigError if an argument is invalid."""
    return Cron(cron, zone) if cron else Every(every_ms / 1000)


@lru_cache(maxsize=2_000)
def _nth(cron: str, every_ms: int, zone: str, start_ms: int, number: int) -> float:
    """Return the time of a tick, given its number, counted from `start_ms`; infinity if there are fewer ticks."""
    ticks = ticks_of(cron, every_ms, zone).after(start_ms - 1)
    return next(islice(ticks, number - 1, None), math.inf)


def checked_schedule(
    name: str,
    job: str,
    cron: str | None,
    given: Mapping[str, Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Schedule:
    """Check options in the form that people write, and return the schedule; raise ConfigError if they are invalid.

    Args:
        given: The options `every`, `tz`, `missed`, `overlap`, `spread`, `start`, `end` and `times`.
    """
    options = {key: value for key, value in given.items() if value is not None}
    every = options.pop("every", None)
    known = ("tz", "missed", "overlap", "spread", *_BOUNDS)
    if unknown := min(options.keys() - set(known), default=""):
        hint = remedy("schedule", unknown) or f"options are every, {', '.join(known)}"
        raise ConfigError(f"a schedule has no option {unknown!r}; {hint}")
    if (cron is None) == (every is None):
        raise ConfigError(f"schedule {name!r} needs either a cron expression or every=…")
    if cron is not None and not (isinstance(cron, str) and cron.strip()):
        raise ConfigError(
            f"{cron!r:.100} is not a cron expression; for 7:30 from Monday to Friday, use '30 7 * * 1-5'"
        )
    if every is not None and "tz" in options:
        raise ConfigError(
            f"tz={options['tz']!r} has no effect on every={every!r}; leave out tz, or use a cron expression"
        )
    spread = options.pop("spread", 0)
    bounds = {key: options.pop(key) for key in _BOUNDS if key in options}
    made = Schedule(
        name=checked_name(name), job=job, cron=cron or "", args=tuple(args), kwargs=dict(kwargs or {}),
        every_ms=0 if every is None else Every(every).step_ms, spread_ms=_spread_ms(spread), **options,
    )  # fmt: skip
    _one_of("missed", made.missed, get_args(Missed))
    _one_of("overlap", made.overlap, get_args(Overlap))
    if made.missed == "all" and made.overlap != "allow":
        raise ConfigError(
            f"missed='all' of schedule {name!r} enqueues many ticks together, but overlap={made.overlap!r} keeps only "
            f"one; add overlap='allow'"
        )
    if next(ticks_of(made.cron, made.every_ms, made.zone).after(0), None) is None:
        raise ConfigError(f"{cron!r} of schedule {name!r} never occurs; check day and month")
    return structs.replace(made, **_bounds(name, bounds, made.tz)) if bounds else made


def checked_name(name: Any) -> str:
    """Return `name`; raise ConfigError if it can't name a schedule."""
    good = isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()
    if not good or " " in name:
        raise ConfigError(
            f"schedule name {name!r:.120} can't be used; use 1-{MAX_NAME} printable characters without spaces"
        )
    return str(name)


def encoded(schedule: Schedule) -> str:
    """Return the schedule's definition in the form that the server stores."""
    return msgspec.json.encode(schedule).decode()


def decoded(text: str) -> Schedule:
    """Return a schedule read from the server; raise ConfigError if it is invalid."""
    try:
        schedule = msgspec.json.decode(text, type=Schedule)
        checked_name(schedule.name)
        ticks_of(schedule.cron, schedule.every_ms, schedule.zone)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"a schedule on the server can't be read: {error}") from error
    return schedule


def _bounds(name: str, given: Mapping[str, Any], tz: str | None) -> dict[str, int]:
    """Check the options `start`, `end` and `times`, and return them as numbers. Raises ConfigError."""
    moments = {
        f"{key}_ms": _moment_ms(key, given[key], tz) for key in ("start", "end") if key in given
    }
    times = given.get("times", 0)
    if type(times) is not int or not 0 <= times <= MAX_TIMES:
        raise ConfigError(f"times={times!r} is out of range; use 1 to {MAX_TIMES:,}")
    if times and "start_ms" not in moments:
        raise ConfigError(
            f"times={times} of schedule {name!r} needs start=…, the time from which jobq counts"
        )
    if moments.get("end_ms", math.inf) < moments.get("start_ms", 0):
        raise ConfigError(
            f"schedule {name!r} ends before it starts; end={given['end']} is too early"
        )
    return moments | {"times": times}


def _moment_ms(name: str, at: object, tz: str | None) -> int:
    zone = ZoneInfo(tz) if tz else None
    if isinstance(at, datetime):
        at = at.isoformat()
    if not isinstance(at, str):
        raise ConfigError(f"{name}={at!r:.80} is not a time; use '2026-11-21T08:00Z' or a datetime")
    try:
        return round(parse_time(at, zone=zone).timestamp() * 1000)
    except ConfigError as error:
        raise ConfigError(f"{name}={error}") from error


def _spread_ms(spread: Duration) -> int:
    seconds = duration_s(spread)
    if not 0 <= seconds <= _DAY_S:
        raise ConfigError(
            f"spread={spread!r} is out of range; it must be between 0 seconds and a day"
        )
    return round(seconds * 1000)


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is unknown; use one of {', '.join(allowed)}")
