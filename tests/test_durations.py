"""Durations: every form means the same, nonsense is refused, nothing else escapes."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq.durations import rate_of, seconds_of, wait_of

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


def clock() -> float:
    return NOW.timestamp()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("10m", 600), ("1.5h", 5400), (" 500 ms ", 0.5), ("2d", 172_800), ("90", 90), ("1h30m", 5400), ("1w", 604_800),
     ("5 min", 300), ("2 hours 1 minute", 7260), ("1 week 2 days", 777_600), ("1 h 1.5 s 20 ms", 3601.52),
     ("PT15M", 900), ("P1DT2H", 93_600), ("P2W", 1_209_600), ("PT1.5S", 1.5), (90, 90), (1.5, 1.5),
     (timedelta(minutes=10), 600), (Decimal("1.5"), 1.5), (-3, -3), (math.inf, math.inf)],
)  # fmt: skip
def test_every_form_of_a_duration_is_seconds(value: Any, seconds: float):
    assert seconds_of(value) == wait_of(value) == seconds


@pytest.mark.parametrize(
    "value",
    ["", "soon", "10 months", "1m1h", "1h1h", "1h 30", "5 M", "1hm", "5 minutest", "h", "P", "PT", "P1Y", "P1M",
     "PT15", "pt15m",
     "-5s", "1e3", math.nan, Decimal("nan"), True, False, None, b"10", [10], 1j,
     10**400, "12:00:00", "Sun, 36 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 99999 08:49:37 GMT",
     "Sun, 06 Nov 1994 08:49:37 +9999"],
)  # fmt: skip
def test_nonsense_is_refused(value: Any):
    with pytest.raises(ValueError, match="is not a duration"):
        wait_of(value)


@pytest.mark.parametrize(
    "text",
    ["Sun, 22 Nov 2026 12:01:30 GMT", "Sunday, 22-Nov-26 12:01:30 GMT", "Sun Nov 22 12:01:30 2026"],
)
def test_http_date_in_each_of_its_shapes_is_a_wait_until_then(text: str):
    assert wait_of(text, clock) == 90


@given(st.integers(-(10**9), 10**9), st.integers(-11, 12))
def test_http_date_is_the_same_wait_in_any_zone_and_never_negative(ahead_s: int, hours: int):
    at = (NOW + timedelta(seconds=ahead_s)).astimezone(timezone(timedelta(hours=hours)))
    assert wait_of(format_datetime(at), clock) == max(0, ahead_s)


@given(
    st.one_of(
        st.text(), st.text("0123456789:, +-JanSuGMT"), st.floats(), st.integers(), st.binary()
    )
)
def test_any_value_is_seconds_or_a_value_error(value: Any):
    try:
        seconds = wait_of(value)
    except ValueError:
        return
    assert not math.isnan(seconds)


@pytest.mark.parametrize(
    ("text", "rate", "shown"),
    [("100/m", (100, 60_000), "100/m"), ("5/s", (5, 1_000), "5/s"), (" 1000 / h ", (1000, 3_600_000), "1000/h"),
     ("3/10s", (3, 10_000), "3/10s"), ("7/60s", (7, 60_000), "7/m"), ("2/24h", (2, 86_400_000), "2/d"),
     ("1/90m", (1, 5_400_000), "1/90m")],
)  # fmt: skip
def test_rate_is_a_count_in_a_span_and_prints_as_it_is_written(text, rate, shown):
    assert rate_of(text) == rate
    assert str(rate_of(text)) == shown
    assert rate_of(shown) == rate


@pytest.mark.parametrize(
    "text",
    ["100", "", "/m", "m", "100/ms", "-1/s", "1.5/s", "1/0.5s", "100 per m", 100, None, b"1/s"],
)
def test_rate_that_cannot_be_read_is_refused_with_examples(text):
    with pytest.raises(ValueError, match="is not a rate; write '100/m', '5/s' or '1000/h'"):
        rate_of(text)


@pytest.mark.parametrize("text", ["0/s", "1/0s", "1/31d", "9999999999/s"])
def test_rate_out_of_range_is_refused(text):
    with pytest.raises(
        ValueError, match="out of range; use 1 to 1,000,000,000 starts per span of 1 s to 30 days"
    ):
        rate_of(text)
