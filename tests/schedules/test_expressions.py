"""Ticks of expressions in zones, against a reference that looks at every minute."""

from __future__ import annotations

import os
import random
import re
from datetime import UTC, date, datetime
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest

from jobq.errors import ConfigError
from jobq.schedules.definition import Schedule
from jobq.schedules.expressions import NAMES, Cron, Every
from jobq.schedules.lint import findings
from tests.schedules.reference import DAY, EXPRESSIONS, YEARS, Reference, looked_at, zones

WHOLE = os.environ.get("JOBQ_SCHEDULES") == "whole"

pytestmark = pytest.mark.one_server


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def local(moment_ms: int, zone: str) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, ZoneInfo(zone)).isoformat(timespec="minutes")


def spans() -> list[tuple[str, datetime, datetime]]:
    """Three days around transitions, and single days: `make soak` takes all transitions, and 200 days of each zone."""
    draw, found = random.Random(14), []
    for name, changes in zones().items():
        chosen = changes if WHOLE else draw.sample(changes, min(1, len(changes)))
        found += [(name, at - 1.5 * DAY, at + 1.5 * DAY) for at in chosen]
        for _ in range(200 if WHOLE else 1):
            day = datetime(YEARS[0], 1, 1, tzinfo=UTC) + draw.randrange(365 * len(YEARS)) * DAY
            found.append((name, day, day + DAY))
    return found


@pytest.mark.timeout(36_000 if WHOLE else 600)
def test_ticks_are_those_that_a_look_at_every_minute_finds():
    draw, expressions = random.Random(14), [(Reference(text), text) for text in EXPRESSIONS]
    for name, start, end in spans():
        minutes = looked_at(ZoneInfo(name), start, end)
        first, last = (round(at.timestamp() * 1000) for at in (start, end))
        for reference, text in expressions if WHOLE else draw.sample(expressions, 2):
            expected = reference.ticks(minutes)
            cron = Cron(text, name)
            forward = list(takewhile(last.__gt__, cron.after(first - 1)))
            backward = list(cron.between(first - 1, last - 1))
            assert forward == expected, (name, text, start)
            assert backward[::-1] == expected, (name, text, start)


@pytest.mark.parametrize(
    ("expression", "moment", "ticks"),
    [("30 2 * * *", "2026-03-07T12:00-05:00", ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"]),
     ("30 1 * * *", "2026-10-31T12:00-04:00", ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"])],
    ids=["left out", "twice"],
)  # fmt: skip
def test_fixed_time_runs_once_when_the_clocks_leave_it_out_or_repeat_it(expression, moment, ticks):
    found = Cron(expression, "America/New_York").after(ms(moment))
    assert [local(tick, "America/New_York") for tick in islice(found, 2)] == ticks


def test_star_keeps_real_intervals_when_clocks_change():
    for moment in ("2026-03-08T00:00-05:00", "2026-11-01T00:00-04:00"):
        ticks = list(islice(Cron("*/30 * * * *", "America/New_York").after(ms(moment)), 20))
        assert {after - before for before, after in pairwise(ticks)} == {1_800_000}


def test_intervals_are_the_same_in_every_process():
    every = Every("10m")

    assert list(islice(every.after(ms("2026-11-23T00:03Z")), 2)) == [
        ms("2026-11-23T00:10Z"),
        ms("2026-11-23T00:20Z"),
    ]
    assert list(every.between(ms("2026-11-23T00:00Z"), ms("2026-11-23T00:25Z"))) == [
        ms("2026-11-23T00:20Z"),
        ms("2026-11-23T00:10Z"),
    ]


def test_names_stand_for_expressions():
    for name, text in NAMES.items():
        start = ms("2026-05-05T05:05Z")
        assert next(Cron(name).after(start)) == next(Cron(text).after(start))


def test_gaps_are_named():
    cron = Cron("30 2 * * *", "Europe/Berlin")

    assert cron.gaps_on(date(2026, 3, 29)) == [datetime(2026, 3, 29, 2, 30)]
    assert cron.gaps_on(date(2026, 3, 30)) == []


def test_expression_that_names_a_day_in_many_years_is_found():
    assert (
        local(next(Cron("0 0 29 2 *").after(ms("2028-03-01T00:00Z"))), "UTC")
        == "2032-02-29T00:00+00:00"
    )


@pytest.mark.parametrize(
    ("text", "zone", "words"),
    [
        ("* * * *", "UTC", "has 4 fields; write minute, hour"),
        ("* * * * * *", "UTC", "every='10s'"),
        ("61 * * * *", "UTC", "Bad minute"),
        ("0 0 30 2 *", "UTC", "Bad day-of-month"),
        ("H * * * *", "UTC", "can't be read"),
        ("@reboot", "UTC", "use one of @yearly"),
        ("1," * 400, "UTC", "too long"),
        ("0 0 ? * 1", "UTC", "write * instead of ? as day of the month"),
        ("0 0 1 * ?", "UTC", "write * instead of ? as day of the week"),
        ("0 0 * * Fri-Sun", "UTC", "write Fri-Sat,Sun instead of Fri-Sun"),
        ("0 0 * * 5-0", "UTC", "write 5-6,0 instead of 5-0"),
        ("0 0 * * SAT-mon", "UTC", "write SAT,Sun-mon instead of SAT-mon"),
        ("0 0 * Nov-Mar *", "UTC", "write Nov-Dec,Jan-Mar instead of Nov-Mar"),
        ("0 22-6 * * *", "UTC", "write 22-23,0-6 instead of 22-6"),
        ("0 0 * * L5", "UTC", "write 5L for the last"),
        ("0 0 * * LFri", "UTC", "write 5L for the last"),
        ("0 0 15W * *", "UTC", "nearest weekday"),
        ("0 0 L-3 * *", "UTC", "days before the last"),
        ("\x00 * * * *", "UTC", "can't be read"),
        ("* * * * *", "Europe/Bonn", "use a name such as 'Europe/Berlin'"),
        ("* * * * *", "../../etc/passwd", "can't be used"),
        ("* * * * *", "", "can't be used"),
    ],
)
def test_bad_expression_or_zone_is_refused_in_words(text: str, zone: str, words: str):
    with pytest.raises(ConfigError, match=re.escape(words)):
        Cron(text, zone)


@pytest.mark.parametrize("every", [0, 0.5, "500ms", "never", "400d", None])
def test_bad_interval_is_refused(every):
    with pytest.raises(ConfigError, match="every="):
        Every(every)


@pytest.mark.parametrize(
    "written",
    ["0 0 * * Fri-Sat,Sun", "0 0 * * 5-6,0", "0 0 * * SAT,Sun-mon", "0 0 * Nov-Dec,Jan-Mar *",
     "0 22-23,0-6 * * *", "0 0 * * 5L"],
)  # fmt: skip
def test_expression_that_a_hint_names_is_good(written: str):
    assert next(Cron(written).after(0))


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("*/90 * * * *", "'*/90' as minute matches one value only.*write every='90m'"),
        ("0 */36 * * *", "'*/36' as hour matches one value only.*write every='36h'"),
        (
            "0 0 */40 * *",
            "'*/40' as day of the month matches one value only.*after the last day of the month$",
        ),
        ("5/70 * * * *", "'5/70' as minute"),
    ],
)
def test_step_that_is_longer_than_its_field_is_a_finding(expression: str, words: str):
    [found] = findings(Schedule(name="s", job="j", cron=expression, tz="UTC"), 0)
    assert re.search(words, found)


@pytest.mark.parametrize("expression", ["*/60 * * * *", "*/7 */24 */31 */12 */7", "1,*/90 * * * *"])
def test_step_that_its_field_has_room_for_is_none(expression: str):
    assert list(findings(Schedule(name="s", job="j", cron=expression, tz="UTC"), 0)) == []
