"""The range, queues and targets of a report, and how to write them on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import pairwise
from math import ceil, gcd
from typing import Any
from zoneinfo import ZoneInfo

from jobq.config import parse_queues, parse_time
from jobq.errors import ConfigError
from jobq.pipeline.options import unknown
from jobq.pipeline.report.interval import MIN_COUNT

#: Possible lengths of a time bucket, seconds.
STRETCHES = (60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 604_800)
HOUR_S = 3600
#: Maximum number of points of a chart, and of a chart with a point per week.
POINTS, MAX_POINTS = 180, 2_000


@dataclass(frozen=True, kw_only=True)
class ReportQuery:
    """The parameters of a report on the events with `since` <= finished_at < `until`; both are in UTC."""

    since: datetime
    until: datetime
    #: The range to compare with: its `since` and `until`.
    compared: tuple[datetime, datetime] | None = None
    queues: tuple[str, ...] = ()
    #: Include only the queues of this server, if several servers share the lake.
    source: str = ""
    zone: str = "UTC"
    #: Targets of the service level and of capacity.
    target_s: float = 30.0
    objective: float = 0.99
    #: The burn rate that spends 2 % of 30 days' budget in an hour.
    page_burn: float = 14.4
    #: The time that divides before and after in regressions, and its name.
    at: datetime | None = None
    at_name: str = ""
    confidence: float = 0.95
    min_change: float = 0.05
    min_runs: int = 20
    min_hours: int = 8
    min_score: float = 3.5
    #: For capacity: numbers of workers, and weights like "high:6,low:1" to try. If empty, they are chosen
    #: automatically.
    workers: tuple[int, ...] = ()
    weights: tuple[str, ...] = ()
    trace_rows: int = 200_000
    limit: int = 1000
    #: Minimum length of a time bucket.
    least_bucket_s: int = 0

    def __post_init__(self) -> None:
        if self.since >= self.until:
            raise ConfigError(
                f"--since {iso(self.since)} must be earlier than --until {iso(self.until)}; choose an earlier --since"
            )
        zone_of(self.zone)
        for name, value in (("--objective", self.objective), ("--confidence", self.confidence)):
            if not 0 < value < 1:
                raise ConfigError(f"{name} {value:g} is not between 0 and 1; write it like 0.99")
        if self.target_s < 0:
            raise ConfigError(f"--target-wait {self.target_s:g} s is negative; write it like 30s")
        if self.at and not self.since < self.at < self.until:
            raise ConfigError(
                f"{self.at_name or '--at'} ({iso(self.at)}) isn't between {iso(self.since)} and "
                f"{iso(self.until)}, so there is nothing to compare; widen --since and --until"
            )

    @property
    def earlier(self) -> ReportQuery | None:
        """This query for the range in `compared`, or None if `compared` isn't set."""
        if self.compared is None:
            return None
        since, until = self.compared
        return replace(self, since=since, until=until, compared=None, at=None, at_name="")

    @property
    def bucket_s(self) -> int:
        """The length of a time bucket: the shortest length that gives at most POINTS buckets.

        For a range that is too long for that, the length is a week or, for decades, several weeks.
        """
        span = (self.until - self.since).total_seconds()
        longest = STRETCHES[-1] * ceil(span / STRETCHES[-1] / MAX_POINTS)
        fitting = (s for s in STRETCHES if span / s <= POINTS and s >= self.least_bucket_s)
        return next(fitting, longest)

    @cached_property
    def edges(self) -> list[int]:
        """The edges of the time buckets in epoch seconds, at full minutes, hours, days or weeks of the zone.

        The first edge is at or before `since`, the last at or after `until`. Weeks begin on Monday. A bucket of a day
        has 23 or 25 hours when the clocks change, and a repeated hour is two buckets.
        """
        zone, step = zone_of(self.zone), timedelta(seconds=self.bucket_s)
        wall = self.since.astimezone(zone)
        if self.bucket_s <= HOUR_S:
            # A repeated hour exists twice, so the following edges are counted in UTC.
            edges = [self.since - _past(wall, step)]
            while edges[-1] < self.until:
                edges.append(edges[-1] + step - _past(edges[-1].astimezone(zone), step))
        else:
            begin = wall.replace(tzinfo=None) - _past(wall, step)
            edges = [_at_wall(begin, zone)]
            while edges[-1] < self.until:
                try:
                    begin += step
                    at = _at_wall(begin, zone)
                except OverflowError:  # years after 9999 don't exist
                    at = self.until
                edges += [at] if at > edges[-1] else []
        return [int(at.timestamp()) for at in edges]

    @property
    def compared_at(self) -> datetime:
        """The time that divides before and after: `at`, or else the middle of the range."""
        return self.at or self.since + (self.until - self.since) / 2

    @property
    def values(self) -> Mapping[str, Any]:
        """The values of the statements' parameters, by name."""
        edges = self.edges
        return {
            "since": self.since, "until": self.until, "at": self.compared_at, "zone": self.zone,
            "edges": edges, "start_s": edges[0], "unit_s": gcd(*(b - a for a, b in pairwise(edges))),
            "target_ms": round(self.target_s * 1000), "objective": self.objective,
            "page_burn": self.page_burn, "confidence": self.confidence,
            "least_runs": MIN_COUNT, "min_runs": self.min_runs, "min_hours": self.min_hours,
            "min_score": self.min_score, "trace_rows": self.trace_rows,
        }  # fmt: skip


#: A Monday, from which buckets are counted.
_WEEK_BEGINS = datetime(1, 1, 1)


def _past(at: datetime, step: timedelta) -> timedelta:
    return (at.replace(tzinfo=None) - _WEEK_BEGINS) % step


def _at_wall(wall: datetime, zone: ZoneInfo) -> datetime:
    return wall.replace(tzinfo=zone).astimezone(UTC)


def zone_of(name: str) -> ZoneInfo:
    """Return the time zone with this name."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ConfigError(
            f"--zone {name!r} is not a time zone; write it like Europe/Berlin"
        ) from error


def moment(text: str, now: datetime, zone: str = "UTC") -> datetime:
    """Parse a time: `1h` means an hour ago, and an ISO 8601 time without a time zone is in `zone`."""
    return parse_time(text, now=now, zone=zone_of(zone))


def marked(name: str, marks: Mapping[str, datetime]) -> datetime:
    """Return the time of the mark with this name."""
    if name not in marks:
        if not marks:
            raise ConfigError(
                f"the lake has no mark {name!r}, because no marks were set yet; set a mark with jobq lake mark"
            )
        raise ConfigError(unknown("mark", name, marks))
    return marks[name]


def pools(query: ReportQuery, queues: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """For each value of --weights, return the weights of all queues. A queue that isn't named has the weight 1."""
    by_text = {}
    for text in query.weights:
        given = dict(parse_queues(text))
        for name in given:
            if name not in queues:
                raise ConfigError(unknown("queue", name, queues))
        by_text[text] = tuple(given.get(name, 1) for name in queues)
    return by_text


def iso(at: datetime) -> str:
    """Format a time in UTC, to the second."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
