"""What `@schedule` takes, and which ticks are owed after which."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from jobq import Registry, job, schedule
from jobq.errors import ConfigError
from jobq.jobs.middleware import Middlewares
from jobq.jobs.ticks import HEADER, Tick, tick_of
from jobq.schedules.declared import declared_in, schedules_of, without_job
from jobq.schedules.definition import (
    Owed,
    Schedule,
    checked_schedule,
    decoded,
    encoded,
    owed,
)

pytestmark = pytest.mark.one_server
HOUR = 3_600_000
START = round(datetime.fromisoformat("2026-11-23T00:00Z").timestamp() * 1000)


@pytest.fixture
def registry() -> Registry:
    return Registry(Middlewares())


def every(minutes: int, **options: Any) -> Schedule:
    return Schedule(name="s", job="app.s", every_ms=minutes * 60_000, **options)


def test_schedules_are_declared_above_or_below_job_and_several_times(registry: Registry):
    @schedule(every="10m", spread="1m", name="refresh")
    @job(queue="reports", name="digest", registry=registry)
    @schedule("0 7 * * 1-5", tz="Europe/Berlin", overlap="queue")
    def digest() -> None: ...

    [refresh, morning] = schedules_of(digest)
    assert (refresh.name, refresh.every_ms, refresh.spread_ms) == ("refresh", 600_000, 60_000)
    assert (morning.name, morning.cron, morning.overlap) == ("digest", "0 7 * * 1-5", "queue")
    assert declared_in(registry) == {"reports": {"refresh": refresh, "digest": morning}}
    assert digest() is None


def test_schedule_belongs_to_the_job_that_it_is_put_on(registry: Registry):
    def digest() -> None: ...

    plain = job(name="plain", registry=registry)(digest)
    hourly = schedule("@hourly")(job(name="hourly", registry=registry)(digest))
    assert [one.job for one in schedules_of(hourly)] == ["hourly"]
    assert schedules_of(plain) == []


def test_two_schedules_of_one_name_are_refused(registry: Registry):
    @schedule("@daily")
    @schedule("@hourly")
    @job(name="twice", registry=registry)
    def twice() -> None: ...

    with pytest.raises(ConfigError, match="two schedules of queue default are named 'twice'; pass"):
        declared_in(registry)


def test_arguments_that_do_not_fit_are_refused_before_a_worker_runs(registry: Registry):
    @schedule("@daily")
    @job(name="needs", registry=registry)
    def needs(customer: int) -> None: ...

    with pytest.raises(
        ConfigError, match=r"can't call needs: .*customer.*; pass @schedule\(args=…"
    ):
        declared_in(registry)


@pytest.mark.parametrize(
    ("cron", "options", "words"),
    [
        (None, {}, "needs either a cron expression"),
        ("@daily", {"every": 60}, "needs either a cron expression"),
        (5, {}, "5 is not a cron expression"),
        (" ", {}, "' ' is not a cron expression"),
        (None, {"every": 60, "tz": "UTC"}, "leave out tz"),
        ("@daily", {"tz": "Mars/Base"}, "tz='Mars/Base'"),
        ("@daily", {"missed": "twice"}, "use one of skip, one, all"),
        ("@daily", {"missed": "all"}, "add overlap='allow'"),
        ("@daily", {"overlap": "never"}, "use one of skip, queue, allow, cancel"),
        ("@daily", {"spread": "2d"}, "between 0 seconds and a day"),
        ("@daily", {"name": "two words"}, "without spaces"),
        ("@daily", {"jitter": 5}, "no option 'jitter'"),
    ],
)
def test_bad_option_is_refused_where_it_is_written(cron: Any, options: Any, words: str):
    with pytest.raises(ConfigError, match=words):
        schedule(cron, **options)


def test_schedule_is_read_again_as_it_was_written():
    one = every(5, args=(1, "x"), kwargs={"a": [2]}, overlap="cancel")

    assert decoded(encoded(one)) == one
    for text in (
        "",
        "{}",
        "[]",
        '{"name": "a b", "job": "x"}',
        "[" * 100_000,
        '{"name":"s","job":"x","cron":"x"}',
    ):
        with pytest.raises(ConfigError):
            decoded(text)


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("skip", [Owed(START + 3 * HOUR, 17, False)]),
        ("one", [Owed(START + 3 * HOUR, 17, True)]),
        ("all", [Owed(START + n * HOUR // 6, 0, True) for n in range(1, 19)]),
    ],
)
def test_three_hours_without_a_worker(missed: Any, expected: list[Owed]):
    now = START + 3 * HOUR + 90_000

    assert owed(every(10, missed=missed, overlap="allow"), START, now) == expected


def test_tick_that_is_late_by_less_than_a_minute_runs_whatever_the_policy():
    assert owed(every(10, missed="skip"), START, START + 600_000 + 59_000) == [
        Owed(START + 600_000, 0, True)
    ]
    assert owed(every(10), START, START + 599_999) == []


def test_at_most_a_hundred_are_made_up_for_and_ten_thousand_counted():
    found = owed(every(1, missed="all", overlap="allow"), START, START + 300 * 60_000)

    assert (len(found), found[0]) == (100, Owed(START + 201 * 60_000, 200, True))
    assert all(after.tick_ms - before.tick_ms == 60_000 for before, after in pairwise(found))
    assert owed(every(1), START, START + 1_000 * 24 * HOUR)[0].missed == 9_999


def test_spread_is_a_schedules_own_and_always_the_same():
    shifts = {
        Schedule(name=f"s{n}", job="x", every_ms=1, spread_ms=60_000).shift_ms("low")
        for n in range(50)
    }

    assert len(shifts) > 40
    assert all(0 <= shift < 60_000 for shift in shifts)
    assert every(1, spread_ms=60_000).shift_ms("low") == every(5, spread_ms=60_000).shift_ms("low")


def test_header_tells_the_tick():
    tick = Tick("digest", START, 2, "Europe/Berlin", "0 7 * * 1-5")

    assert tick_of({HEADER: tick.header()}) == tick
    assert tick.at == datetime.fromisoformat("2026-11-23T01:00+01:00")
    for text in (
        "",
        "x",
        "1 2 UTC name",
        "1 x UTC a b",
        f"{'9' * 30} 0 UTC a b",
        "1 0 Mars/Base a b",
    ):
        found = tick_of({HEADER: text})
        assert found is None or found.at.year == 1970


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def bounded(cron: str | None = None, **options: Any) -> Schedule:
    return checked_schedule("s", "app.s", cron, options)


def test_ticks_are_between_start_and_end_when_a_schedule_has_them():
    found = bounded(every="1h", start="2026-11-23T08:00Z", end="2026-11-23T10:00Z")
    hours = [ms(f"2026-11-23T{hour:02}:00Z") for hour in (8, 9, 10)]
    assert list(found.ticks.after(START)) == hours
    assert list(found.ticks.after(hours[0])) == hours[1:] and not list(found.ticks.after(hours[2]))
    assert list(found.ticks.between(START, hours[2] + HOUR)) == hours[::-1]
    assert owed(found, START, hours[0] - 1) == []
    # The last tick is owed also later.
    assert owed(found, hours[1], hours[2] + 9 * HOUR) == [Owed(hours[2], 0, runs=True)]
    assert decoded(encoded(found)) == found


def test_times_count_the_ticks_from_the_start_on():
    found = bounded("30 7 * * *", tz="Europe/Berlin", start="2026-11-23T08:00", times=2)
    assert found.start_ms == ms("2026-11-23T08:00+01:00")
    days = [ms(f"2026-11-{day}T07:30+01:00") for day in (24, 25)]
    assert list(found.ticks.after(0)) == days
    assert list(found.ticks.between(0, days[1] + 24 * HOUR)) == days[::-1]
    earlier = bounded(
        "30 7 * * *", start=datetime(2026, 11, 23, tzinfo=UTC), times=9, end="2026-11-24T12:00Z"
    )
    assert len(list(earlier.ticks.after(0))) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"start": "tomorrow"}, "start='tomorrow' is not a time"),
        ({"end": "2026-11-23T08:00"}, "end='2026-11-23T08:00' has no time zone"),
        ({"start": 5}, "start=5 is not a time"),
        ({"times": 3}, "times=3 of schedule 's' needs start"),
        ({"start": "2026-11-23T08:00Z", "times": 10_001}, "times=10001 is out of range"),
        ({"start": "2026-11-23T08:00Z", "times": True}, "times=True is out of range"),
        ({"start": "2026-11-23T08:00Z", "end": "2026-11-22T08:00Z"}, "ends before it starts"),
    ],
)
def test_bounds_that_cannot_be_are_refused(options: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as told:
        bounded(every="1h", **options)
    assert said in str(told.value)


def test_schedule_that_has_ended_can_be_declared(registry: Registry):
    @job(name="old", registry=registry)
    @schedule("@hourly", end="2020-01-01T00:00Z")
    def old() -> None: ...

    [found] = schedules_of(old)
    assert next(found.ticks.after(START), None) is None


def test_function_with_a_schedule_is_told_when_it_is_no_job(registry: Registry):
    @schedule("@daily")
    def forgotten() -> None: ...

    @schedule("@daily")
    @job(registry=registry, name="above")
    def above() -> None: ...

    @job(registry=registry, name="below")
    @schedule("@daily")
    def below() -> None: ...

    def logged(function: Callable[[], None]) -> Callable[[], None]:
        return functools.wraps(function)(lambda: function())

    @job(registry=registry, name="around")
    @logged
    @schedule("@daily")
    def around() -> None: ...

    told = [text for text in without_job() if "is_told_when_it_is_no_job" in text]
    assert len(told) == 1 and told[0].startswith("@schedule on ")
    assert ".forgotten (" in told[0] and told[0].endswith("because it isn't a job; add @job")
    job(registry=registry, name="later")(forgotten)
    assert not [text for text in without_job() if "is_told_when_it_is_no_job" in text]
