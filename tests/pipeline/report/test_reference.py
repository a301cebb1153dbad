"""Time lines and hours equal what pandas computes from the same events: two zones, a change of clocks, hostile names.

The other reports are compared in test_expired.py, on a lake.
"""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobq.pipeline.report.query import ReportQuery
from jobq.pipeline.schema import EVENT_COLUMNS
from tests import tools
from tests.pipeline.report.rows import NOON, answered, event

pd = tools.library("pandas")
#: A Thursday; Berlin's clocks go back on the Sunday.
SINCE = datetime(2026, 10, 22, 10, 20, tzinfo=UTC)
KINDS = ("done", "done", "done", "retry", "dead", "crashed", "recovered", "enqueued")
ENDED = ("done", "retry", "dead", "crashed", "recovered")
QUEUES = ("low", "q'; DROP TABLE x--", "Ä ö", *(f"q{n}" for n in range(7)))
JOBS = ("=cmd|'/C calc'!A0<script>", "日本", *(f"app.job{n}" for n in range(198)))
SOAK = os.environ.get("JOBQ_LAKE") == "soak"


def history(days: int, count: int) -> list[tuple[Any, ...]]:
    """Random events of so many days."""
    pick = random.Random(days)
    begin = (SINCE - NOON).total_seconds()
    made = []
    for number in range(count):
        kind, end = pick.choice(KINDS), begin + round(pick.random() * days * 86_400, 3)
        ran = kind not in ("enqueued", "recovered")
        made.append(
            event(
                kind, end=end, mid=f"m{number}", queue=pick.choice(QUEUES),
                job=pick.choice(JOBS) if ran else None, run=round(pick.random() * 9, 3) if ran else None,
                cpu_us=pick.randrange(10**6) if ran else None, attempt=pick.choice((1, 1, 2)),
            )
        )  # fmt: skip
    return made


def framed(events: list[tuple[Any, ...]]) -> Any:
    """The events as a frame of pandas."""
    frame = pd.DataFrame(events, columns=[column.name for column in EVENT_COLUMNS])
    return frame.assign(finished_at=pd.to_datetime(frame["finished_at"], utc=True))


def lines(asked: ReportQuery, frame: Any, beginning: Any) -> dict[Any, tuple[float, ...]]:
    """Throughput by the beginning of a stretch in the zone and by queue, where there is any."""
    ended = frame[frame["kind"].isin(ENDED)]
    begins = beginning(ended["finished_at"].dt.tz_convert(asked.zone)).dt.tz_convert("UTC")
    begins = begins.where(begins > asked.since, pd.Timestamp(asked.since))
    found = {}
    for key, some in ended.groupby([begins, "queue"]):
        kinds = list(some["kind"])
        done, dead = kinds.count("done"), kinds.count("dead")
        found[key] = (done, len(kinds) - done - dead, dead)
    return found


def hour_of(local: Any) -> Any:
    past = pd.to_timedelta(local.dt.minute * 60 + local.dt.second, unit="s")
    return local - past - pd.to_timedelta(local.dt.microsecond, unit="us")


def week_of(local: Any) -> Any:
    walls = local.dt.tz_localize(None).dt.to_period("W").dt.start_time
    return walls.dt.tz_localize(local.dt.tz)


@pytest.mark.parametrize(
    ("zone", "days", "beginning"),
    [("Europe/Berlin", 4, hour_of), ("Asia/Kolkata", 400, week_of)]
    + ([("Asia/Kolkata", 4, hour_of), ("Europe/Berlin", 400, week_of)] if SOAK else []),
)  # fmt: skip
def test_time_lines_and_hours_equal_those_of_pandas(engine, zone, days, beginning):
    until = SINCE + timedelta(days=days) - timedelta(minutes=7)
    asked = ReportQuery(since=SINCE, until=until, zone=zone)
    events = history(days, 3_000)
    frame = framed(events)
    frame = frame[frame["finished_at"] < until]
    rows = answered(engine, "throughput", events, asked)
    found = {
        (row["at"], row["queue"]): (row["done"], row["failed"], row["dead"])
        for row in rows
        if row["done"] + row["failed"] + row["dead"]
    }
    assert found == lines(asked, frame, beginning)
    times = sorted({row["at"] for row in rows})
    assert len(rows) == len(times) * frame[frame["kind"].isin(ENDED)]["queue"].nunique()
    lengths = dict(
        zip(times, (b - a for a, b in zip(times, [*times[1:], until], strict=True)), strict=True)
    )
    for row in rows:
        assert row["done_per_s"] == pytest.approx(row["done"] / lengths[row["at"]].total_seconds())
    assert heat_found(engine, events, asked) == pytest.approx(heat_of(frame, asked))


def heat_found(engine: Any, events: Any, asked: ReportQuery) -> dict[Any, float]:
    rows = answered(engine, "heatmap", events, asked)
    return {(row["weekday"], row["hour"]): row["per_hour"] for row in rows}


def heat_of(frame: Any, asked: ReportQuery) -> dict[Any, float]:
    """Attempts per hour of that kind in the range, counted in minutes."""
    minutes = pd.date_range(asked.since, asked.until, freq="min", inclusive="left").tz_convert(
        asked.zone
    )
    hours = pd.Series(1 / 60, minutes).groupby([minutes.weekday, minutes.hour]).sum()
    local = frame[frame["kind"].isin(ENDED)]["finished_at"].dt.tz_convert(asked.zone)
    attempts = local.groupby([local.dt.weekday, local.dt.hour]).count()
    return {key: count / hours[key] for key, count in attempts.items()}
