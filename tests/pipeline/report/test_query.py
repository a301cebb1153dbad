"""Input of people for a range, a mark, weights; and how values are shown to them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from jobq.errors import ConfigError
from jobq.pipeline.report.formats import (
    cells,
    decimal,
    document,
    duration,
    memory,
    shown,
    spreadsheet,
)
from jobq.pipeline.report.query import ReportQuery, marked, moment, pools, zone_of
from jobq.pipeline.report.registry import (
    ANOMALIES,
    COST,
    REGRESSIONS,
    REPORTS,
    WAIT,
    ReportColumn,
    named,
)
from jobq.pipeline.report.run import ReportResult, judge
from tests.pipeline.report.rows import ASKED, NOON, at


def test_moment_is_so_long_ago_or_an_instant():
    assert moment("90m", NOON) == NOON - timedelta(minutes=90)
    assert moment("2026-11-20T13:00+01:00", NOON) == NOON
    assert moment("2026-11-20T12:00", NOON) == NOON
    assert moment("2026-11-20", NOON, "Europe/Berlin") == datetime(2026, 11, 19, 23, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["yesterday", "", "1y", "2026-13-01", "9" * 30 + "d", "9999-12-31T23:59-14:00"]
)
def test_moment_says_how_to_write_one(text):
    with pytest.raises(ConfigError, match="is not a time; write"):
        moment(text, NOON)


@pytest.mark.parametrize(
    ("span", "bucket_s"),
    [(timedelta(minutes=1), 60), (timedelta(hours=3), 60), (timedelta(hours=3, seconds=1), 300),
     (timedelta(days=7), 3600), (timedelta(days=365), 604_800), (timedelta(days=9999), 604_800),
     (timedelta(days=100_000), 8 * 604_800)],
)  # fmt: skip
def test_stretch_of_a_time_line_grows_with_the_range(span, bucket_s):
    assert ReportQuery(since=NOON, until=NOON + span).bucket_s == bucket_s


def test_time_lines_begin_on_the_round():
    values = ReportQuery(since=at(61), until=at(3600)).values
    assert (values["start_s"], values["unit_s"]) == (NOON.timestamp() + 60, 60)


@pytest.mark.parametrize(
    ("zone", "since", "days", "first", "lengths"),
    [("Europe/Berlin", "2026-10-24T22:00+00:00", 90, "Sun 00:00+0200", {43_200, 46_800}),
     ("Europe/Berlin", "2026-10-24T12:07+00:00", 365, "Mon 00:00+0200", {604_800, 601_200, 608_400}),
     ("Europe/Berlin", "2026-10-24T23:30+00:00", 7, "Sun 01:00+0200", {3600}),
     ("Asia/Kolkata", "2026-10-24T12:07+00:00", 7, "Sat 17:00+0530", {3600}),
     ("Australia/Lord_Howe", "2026-10-03T00:00+00:00", 7, "Sat 10:00+1030", {3600, 1800}),
     ("UTC", "2026-11-19T12:00+00:00", 400, "Mon 00:00+0000", {604_800})],
)  # fmt: skip
def test_time_lines_have_the_hours_days_and_weeks_of_the_zone(zone, since, days, first, lengths):
    begin = datetime.fromisoformat(since)
    query = ReportQuery(since=begin, until=begin + timedelta(days=days), zone=zone)
    edges = query.edges
    local = datetime.fromtimestamp(edges[0], zone_of(zone))
    assert local.strftime("%a %H:%M%z") == first
    assert edges[0] <= query.since.timestamp() < edges[1]
    assert edges[-2] < query.until.timestamp() <= edges[-1]
    assert {b - a for a, b in pairwise(edges)} == lengths


def test_time_lines_end_with_time_itself():
    since, until = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        edges = ReportQuery(since=since, until=until, zone=zone).edges
        assert edges[-1] == until.timestamp()
        assert len(edges) <= 2_001


def test_hour_that_the_clocks_repeat_is_shown_with_its_offset():
    asked = ReportQuery(since=NOON, until=at(1), zone="Europe/Berlin")
    column = ReportColumn("at", "from", "time")
    times = [datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1, 2)]
    assert [shown(one, column, asked) for one in times] == [
        "2026-10-25 02:30+02:00", "2026-10-25 02:30+01:00", "2026-10-25 03:30",
    ]  # fmt: skip


def test_mark_that_is_not_there_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean 'v2\.4'"):
        marked("v24", {"v2.4": NOON})
    with pytest.raises(ConfigError, match="no marks were set yet"):
        marked("v24", {})


def test_weights_are_one_where_none_is_said():
    asked = ReportQuery(since=NOON, until=at(1), weights=("high:6", "low:2,high:3"))
    assert pools(asked, ("high", "low")) == {"high:6": (6, 1), "low:2,high:3": (3, 2)}


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.name)
def test_statement_asks_for_exactly_its_parameters(report):
    import re

    code = "\n".join(line.split("--")[0] for line in report.sql.splitlines())
    assert set(re.findall(r"(?<!:):([a-z_]+)", code)) == set(report.parameters)
    assert set(report.parameters) <= set(ASKED.values)


def test_unknown_report_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'throughput'"):
        named("troughput")


@pytest.mark.parametrize(
    ("us", "text"),
    [(0, "0"), (0.4, "0"), (-0.4, "0"), (850, "850 µs"), (999.6, "1 ms"), (12_345, "12.3 ms"), (999_600, "1 s"),
     (1_250_000, "1.25 s"), (59_940_000, "59.9 s"), (59_960_000, "1 m"), (125e6, "2 m 5 s"), (3599.6e6, "1 h"),
     (11_520e6, "3 h 12 m"), (86_400e6, "1 d"), (183_600e6, "2 d 3 h"), (-2500, "-2.5 ms")],
)  # fmt: skip
def test_duration_is_shown_in_the_unit_that_fits(us, text):
    assert duration(us) == text


def test_other_values_are_shown_short():
    assert [memory(512), memory(90_000), memory(3_000_000)] == ["512 KiB", "88 MiB", "2.9 GiB"]
    assert [decimal(0), decimal(0.00001), decimal(1.234), decimal(1234.5)] == [
        "0",
        "< 0.001",
        "1.23",
        "1,234",
    ]
    change = ReportColumn("change", "change", "share")
    assert [shown(v, change, ASKED) for v in (0.425, -0.031, None)] == ["+42.5 %", "-3.1 %", "–"]


def test_times_are_shown_in_the_zone_asked_for():
    asked = ReportQuery(since=NOON, until=at(1), zone="Asia/Kolkata")
    assert shown(NOON, ReportColumn("at", "from", "time"), asked) == "2026-11-20 17:30"


def test_document_of_several_reports_is_one():
    told = json.loads(document([ReportResult(WAIT, []), ReportResult(COST, [])], ASKED))
    assert [one["report"] for one in told["reports"]] == ["queue-time", "cost"]


def test_spreadsheet_keeps_numbers_and_times_as_they_are():
    row = {
        "hour": NOON,
        "job": "a,b",
        "attempts": 3,
        "p95_us": -5,
        "median_us": 1.5,
        "times": 2.0,
        "score": 4.0,
    }
    assert (
        spreadsheet(ReportResult(ANOMALIES, [row])).splitlines()[1]
        == '2026-11-20T12:00:00+00:00,"a,b",3,-5,1.5,2.0,4.0'
    )


def counted(**given: float) -> dict[str, object]:
    """A row of the statement `regressions`: a hundred runs a side around 10 ms."""
    row = {"n_before": 100, "n_after": 100, "before_us": 10_000, "after_us": 10_000, "before_low": 9_900,
           "before_high": 10_100, "after_low": 9_900, "after_high": 10_100}  # fmt: skip
    return {"job": "a"} | row | given


@pytest.mark.parametrize(
    ("given", "verdict"),
    [({"after_us": 12_000, "after_low": 11_900, "after_high": 12_100}, "slower"),
     ({"after_us": 8_000, "after_low": 7_900, "after_high": 8_100}, "faster"),
     ({"after_us": 10_550, "after_low": 10_450, "after_high": 10_650}, "no change shown"),
     ({"after_us": 14_000, "after_low": 10_200, "after_high": 19_000}, "no change shown"),
     ({"n_after": 29, "after_us": 99_000}, "not enough data"),
     ({"n_before": 0, "before_us": None, "before_low": None, "before_high": None}, "not enough data"),
     ({"before_us": 0, "before_low": 0, "before_high": 0}, "slower")],
)  # fmt: skip
def test_verdict_needs_the_whole_interval_beyond_the_least_change(given, verdict):
    (row,) = judge(REGRESSIONS, ASKED, [counted(**given)]).rows
    assert row["verdict"] == verdict
    list(cells(ReportResult(REGRESSIONS, [row]), ASKED))
