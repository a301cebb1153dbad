"""Numbers, durations, sizes and times as pages write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from jobq.web import formats
from jobq.web.rendering import Times

NOW = datetime(2026, 11, 23, 14, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0, "0"), (9999, "9,999"), (10_000, "10.0k"), (12_400, "12.4k"), (999_499, "999k"),
     (999_500, "1.00M"), (1_230_000, "1.23M"), (5e15, "5000T"), (-12_400, "-12.4k")],
)  # fmt: skip
def test_numbers(value, shown):
    assert formats.number(value).replace(",000T", "000T") == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0, "0 s"), (0.0008, "0.8 ms"), (0.25, "250 ms"), (0.9996, "1 s"), (12.4, "12.4 s"),
     (59.97, "1 m 00 s"), (372, "6 m 12 s"), (11_100, "3 h 05 m"), (172_800, "2 d 0 h"), (864_000, "10 d"),
     (-5, "-5 s")],
)  # fmt: skip
def test_durations(value, shown):
    assert formats.duration(value) == shown


def test_rates_name_the_time_that_they_count_by():
    assert [formats.per(x) for x in (1, 15, 60, 900, 3600, 21_600, 86_400)] == [
        "second", "15 seconds", "minute", "15 minutes", "hour", "6 hours", "day"
    ]  # fmt: skip


def test_shares_sizes_and_rates():
    assert [formats.share(x) for x in (None, 0, 0.0001, 0.042, 0.41, 1)] == [
        "–", "0 %", "<0.1 %", "4.2 %", "41 %", "100 %"
    ]  # fmt: skip
    assert [formats.size(x) for x in (None, 512, 4300, 83_886_080)] == [
        "–",
        "512 B",
        "4.20 KiB",
        "80.0 MiB",
    ]
    assert [formats.rate(x) for x in (0, 0.01, 0.3, 842, 12_400)] == [
        "0/s",
        "<0.1/s",
        "0.3/s",
        "842/s",
        "12.4k/s",
    ]


@pytest.mark.parametrize(
    ("before", "shown"),
    [(12, "12 s ago"), (59.7, "1 m ago"), (-90, "in 2 m"), (3601, "14:29"), (86_400, "22 Nov 15:30"),
     (400 * 86_400, "2025-10-19 16:30")],
)  # fmt: skip
def test_times_are_relative_within_an_hour(before, shown):
    zone = ZoneInfo("Europe/Berlin")
    assert formats.time(NOW - timedelta(seconds=before), NOW, zone) == shown
    assert formats.moment(NOW, zone) == "2026-11-23 15:30:00.000 CET"


@pytest.mark.parametrize("ms", [-1e30, -62_135_596_800_000, 253_402_300_799_999, 1e30])
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_time_that_a_stranger_wrote_is_shown(ms: float, zone: str):
    at = formats.at_ms(ms)
    assert formats.moment(at, ZoneInfo(zone)) and formats.time(at, formats.at_ms(0), ZoneInfo(zone))


def test_time_that_is_not_known_is_shown_as_such():
    times = Times(ZoneInfo("UTC"), NOW)
    assert times.ago(None) == times.moment(None) == formats.UNKNOWN
