"""Each report's statement on rows whose answer was computed by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from jobq.errors import PipelineError
from jobq.pipeline.report.engines import LocalEngine, SparkEngine, SqlEngine
from jobq.pipeline.report.query import ReportQuery
from jobq.pipeline.report.registry import REPORTS, named
from jobq.pipeline.report.run import answer, events_view, make_report
from jobq.pipeline.report.sources import EventSource
from jobq.pipeline.schema import EVENT_COLUMNS
from tests import tools
from tests.pipeline.report.first_waits import in_range
from tests.pipeline.report.rows import (
    ASKED,
    NOON,
    answered,
    arrow,
    at,
    event,
    recovered,
    source,
    viewed,
)
from tests.pipeline.report.samples import deviate, side


def check(
    engine: SqlEngine, name: str, events: list[Any], rows: list[Any], asked: ReportQuery = ASKED
) -> None:
    """The statement's answer, in its order, is `rows`."""
    found = [tuple(row.values()) for row in answered(engine, name, events, asked)]
    assert found == [tuple(map(near, row)) for row in rows]
    assert [[type(value) for value in row] for row in found] == [
        list(map(type, row)) for row in rows
    ]


def near(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9) if isinstance(value, float) else value


def test_statements_bear_events_that_tell_nothing_but_their_kind(engine):
    bare = {"job": None, "run": None, "attempt": None}
    later = event("rested", **bare)  # of a kind that a later jobq may add
    told = [
        recovered(),
        event("dead", **bare),
        event("enqueued", **bare),
        event(run=0.0, cpu_us=0),
        later,
    ]
    rows = {}
    with viewed(engine, told):
        for report in REPORTS:
            found = answer(engine, report, ASKED)
            assert all(tuple(row) == report.answered for row in found)
            rows[report.name] = len(found)
    # A row per group that has such events, or per minute of the hour.
    few = dict.fromkeys(
        ("dead", "slo", "queue-time", "capacity", "run-time", "heatmap", "cost", "regressions"), 1
    )
    many = {"backlog": 60, "throughput": 60}
    assert rows == {
        **few,
        **many,
        "anomalies": 0,
        "keys": 0,
        "schedules": 0,
        "flows": 0,
        "errors": 2,
        "retries": 2,
    }


def test_events_are_kept_only_when_to_read_them_again_is_dear(spark):
    engine = SparkEngine(spark)
    made = source(engine, [event()])
    for dear in (False, True):
        with events_view(engine, EventSource(lambda since, until: made, dear), ASKED) as seen:
            assert spark.catalog.isCached("events_plain") is dear
        assert (seen.events, seen.queues) == (1, ("low",))
    assert not spark.catalog.tableExists("events")


def many(count: int) -> pa.Table:
    """Random runs of an hour, of 40 jobs in 5 queues."""
    numpy, one = tools.library("numpy"), arrow([event()])
    pick, numbers = numpy.random.default_rng(1), range(count)
    ends = round(NOON.timestamp() * 1e6) + pick.integers(0, 3_600_000_000, count)
    ran = pick.integers(0, 5_000_000, count)
    columns = {name: pa.repeat(one[name][0], count) for name in one.column_names} | {
        "finished_at": pa.array(ends, pa.timestamp("us", "UTC")),
        "started_at": pa.array(ends - ran, pa.timestamp("us", "UTC")),
        "run_us": pa.array(ran),
        "wait_ms": pa.array(pick.integers(0, 100_000, count)),
        "mid": pa.array([f"m{n}" for n in numbers]),
        "job": pa.array([f"app.job{n % 40}" for n in numbers]),
        **dict.fromkeys(("queue", "base_queue"), pa.array([f"q{n % 5}" for n in numbers])),
    }
    return pa.table([columns[name] for name in one.column_names], schema=one.schema)


def test_statements_answer_for_many_rows():
    """DuckDB 2.0.0 ended a join of so many rows with an internal error."""
    count, engine = 400_000, LocalEngine()
    rows = many(count)
    with events_view(engine, EventSource(lambda since, until: rows), ASKED) as seen:
        assert seen.events == count
        answers = {
            name: len(answer(engine, *named(name), ASKED))
            for name in ("regressions", "queue-time", "run-time")
        }
    assert answers == {"regressions": 40, "queue-time": 40, "run-time": 40}


def test_statement_that_duckdb_refuses_names_the_remedy():
    with pytest.raises(
        PipelineError, match=r"DuckDB .* can't compute this \(.*nowhere.*choose --engine spark"
    ):
        LocalEngine().rows("SELECT * FROM nowhere")


def test_wait_is_that_of_first_attempts(engine):
    events = [
        *(event(wait=n, end=100 + n) for n in range(1, 101)),
        event(attempt=2, wait=999), event("enqueued", wait=999), recovered(), event(wait=None),
        event(queue="high", wait=0.25), event("retry", queue="high", job="app.b", wait=0.5),
    ]  # fmt: skip
    check(engine, "queue-time", events, [
        ("low", "app.send", 100, 50_000, 95_000, 99_000, 100_000),
        ("high", "app.b", 1, 500, 500, 500, 500),
        ("high", "app.send", 1, 250, 250, 250, 250),
    ])  # fmt: skip


def test_wait_leaves_out_what_ran_again_after_a_snooze(engine):
    events = [
        event("snoozed", mid="a", end=10, wait=1), event(mid="a", end=900, wait=890),
        event("snoozed", mid="a", queue="high", end=950, wait=1), event(mid="b", end=20, wait=3),
    ]  # fmt: skip
    check(engine, "queue-time", events, [
        ("low", "app.send", 2, 1000, 3000, 3000, 3000), ("high", "app.send", 1, 1000, 1000, 1000, 1000),
    ])  # fmt: skip


def test_wait_counts_from_the_revival_when_a_dead_message_was_put_back(engine):
    life = {"mid": "a", "enqueued_at": at(0)}
    told = {"run": None, "job": None, "attempt": 0, "error": None}
    events = [
        event("dead", end=11, wait=10, **life), event("revived", mid="a", end=500, **told),
        event("dead", end=504, wait=503, **life), event("revived", mid="a", end=900, **told),
        event("retry", end=906, wait=905, **life), event(end=990, wait=989, **life | {"attempt": 2}),
        # Another message, with the same mid, and one of another queue.
        event(mid="a", end=1000, wait=7), event(mid="a", queue="high", end=1001, wait=990),
    ]  # fmt: skip
    check(engine, "queue-time", events, [
        ("high", "app.send", 1, 990_000, 990_000, 990_000, 990_000),
        ("low", "app.send", 4, 5_000, 10_000, 10_000, 10_000),
    ])  # fmt: skip
    rows = [dict(zip((one.name for one in EVENT_COLUMNS), row, strict=True)) for row in events]
    assert [one["first"] for one in in_range(rows, ASKED) if one["first"]] == [
        10_000, 3_000, 5_000, 7_000, 990_000
    ]  # fmt: skip


def test_first_run_after_a_revival_counts_when_the_message_was_snoozed_before(engine):
    life, told = {"mid": "a", "enqueued_at": at(0)}, {"run": None, "job": None, "attempt": None}
    events = [
        event("snoozed", end=5, wait=4, **life), event("dead", end=20, wait=19, **life),
        event("revived", mid="a", end=100, **told), event("snoozed", end=104, wait=103, **life),
        event("dead", end=200, wait=199, **life), event("revived", mid="a", end=300, **told),
        event(end=308, wait=307, **life),
    ]  # fmt: skip
    check(engine, "queue-time", events, [("low", "app.send", 3, 4_000, 7_000, 7_000, 7_000)])
    rows = [dict(zip((one.name for one in EVENT_COLUMNS), row, strict=True)) for row in events]
    assert [one["first"] for one in in_range(rows, ASKED) if one["first"]] == [4_000, 3_000, 7_000]


def test_tick_of_a_queue_starts_with_its_call_in_a_partition(engine):
    tick = event(
        "tick", mid=None, job="a", run=None, attempt=0, end=60.1, enqueued_at=at(60),
        error="enqueued", fingerprint="a@60",
    )  # fmt: skip
    [row] = answered(engine, "schedules", [tick, event(mid="a@60", queue="low/3", end=62.5, run=2)])
    assert (row["queue"], row["ticks"], row["started"], row["max_ms"]) == ("low", 1, 1, 500)


def test_schedules_are_late_until_their_calls_start(engine):
    def tick(name, due, asked, outcome="enqueued", missed=0, mid=None):
        return event(
            "tick", mid=None, job=name, run=None, attempt=missed, end=asked, enqueued_at=at(due),
            error=outcome, fingerprint=mid or f"{name}@{due}",
        )  # fmt: skip

    events = [
        tick("a", 60, 60.1), event(mid="a@60", end=62.5, run=2),
        # A retry is no second start.
        event("retry", mid="a@60", end=62.3, run=2),
        tick("a", 120, 120.2, missed=3), event(mid="a@120", end=130, run=1),
        tick("a", 180, 180.1, "skipped", mid="a@120"), tick("a", 240, 300, "missed", mid=""),
        tick("a", 360, 360.1),  # it hasn't started yet
        # It waits for the run before, under the mid of that.
        tick("b", 60, 60.0), event(mid="b@60", end=100, run=39.9),
        tick("b", 90, 90.0, "waits", mid="b@60"), event(mid="b@60", end=101, run=0.5, attempt=2),
        # The end of a run has its own clock: its start may seem a little early.
        tick("c", 60, 60.002), event(mid="c@60", end=61, run=1.0),
    ]  # fmt: skip
    check(engine, "schedules", events, [
        ("low", "a", 4, 2, 1, 4, 4650.0, 8565.0, 8913.0, 9000),
        ("low", "b", 2, 2, 0, 0, 5300.0, 9980.0, 10396.0, 10500),
        ("low", "c", 1, 1, 0, 0, 0.0, 0.0, 0.0, 0),
    ])  # fmt: skip


def test_flows_take_as_long_as_their_critical_path(engine):
    def member(flow, step, ready, end, kind="done", index=0):
        mid = f"~{flow}.r1.{step}.{index}"
        return event(
            kind, mid=mid, flow=flow, step=step, enqueued_at=at(ready), end=end, run=end - ready,
        )  # fmt: skip

    events = [
        # rows > slow > mail decides; quick runs next to slow runs, and its first try failed.
        *(member("import:1", "rows", 10, 10 + end, index=end) for end in (5, 20)),
        member("import:1", "quick", 30, 40), member("import:1", "slow", 30.001, 90),
        event("retry", mid="~import:1.r1.quick.0", flow="import:1", step="quick", end=35),
        # The next step is enqueued by another clock.
        member("import:1", "mail", 89.998, 100),
        # Here quick is slower, slow dies, and nothing follows.
        member("import:2", "rows", 200, 210), member("import:2", "slow", 210, 220, "dead"),
        # The signal of a wait cancels its timer.
        event("cancelled", mid="~import:2.r1.gate.0", flow="import:2", step="gate", run=None, end=205),
        member("import:2", "quick", 210, 250),
        member("other:1", "only", 300, 301), event(mid="m"),
    ]  # fmt: skip
    check(engine, "flows", events, [
        ("import", None, 2, 9, 1, 70_000.0, 88_000.0, 90_000, None, None, "rows > quick"),
        ("import", "slow", 2, 2, 1, 34_999.5, 57_499.05, 59_999, 0.5, 59_999 / 140_000, None),
        ("import", "quick", 2, 2, 0, 25_000.0, 38_500.0, 40_000, 0.5, 40_000 / 140_000, None),
        ("import", "rows", 2, 3, 0, 15_000.0, 19_500.0, 20_000, 1.0, 30_000 / 140_000, None),
        ("import", "mail", 1, 1, 0, 10_002.0, 10_002.0, 10_002, 1.0, 10_002 / 140_000, None),
        ("import", "gate", 1, 1, 0, 0.0, 0.0, 0, 0.0, 0.0, None),
        ("other", None, 1, 1, 0, 1000.0, 1000.0, 1000, None, None, "only"),
        ("other", "only", 1, 1, 0, 1000.0, 1000.0, 1000, 1.0, 1.0, None),
    ])  # fmt: skip


def test_range_begins_at_since_and_ends_before_until(engine):
    events = [event(end=-0.000001), event(end=0, run=0.5), event(end=3599.999999), event(end=3600)]
    assert [row["attempts"] for row in answered(engine, "run-time", events)] == [2]


def test_range_of_one_queue_leaves_the_others_out(engine):
    events = [event(), event(queue="high")]
    found = answered(engine, "run-time", events, replace(ASKED, queues=("high",)))
    assert [row["queue"] for row in found] == ["high"]


def test_run_counts_every_attempt_that_ran(engine):
    events = [
        event(run=1),
        event("retry", run=3),
        event("crashed", run=2),
        recovered(),
        event(run=0, job="b"),
    ]
    check(engine, "run-time", events, [
        ("low", "app.send", 3, 2_000_000, 3_000_000, 3_000_000, 3_000_000, 6_000_000),
        ("low", "b", 1, 0, 0, 0, 0, 0),
    ])  # fmt: skip


def test_throughput_has_a_row_for_each_stretch_when_nothing_ended_in_it(engine):
    asked = replace(ASKED, until=at(180))
    events = [
        event(end=0),
        event(end=59.999),
        event("retry", end=120),
        event("dead", end=179),
        event("snoozed", end=70),
    ]
    check(engine, "throughput", events, [
        (at(0), "low", 2, 0, 0, 2 / 60), (at(60), "low", 0, 0, 0, 0.0), (at(120), "low", 0, 1, 1, 0.0),
    ], asked)  # fmt: skip


def test_heatmap_divides_by_the_hours_of_the_range(engine):
    fortnight = ReportQuery(since=NOON, until=NOON + timedelta(days=14))
    events = [event(end=1), event(end=2), event("dead", end=7 * 86400 + 1), event(end=86400)]
    check(engine, "heatmap", events, [(4, 12, 3, 1, 1.5), (5, 12, 1, 0, 0.5)], fortnight)


def test_heatmap_is_in_the_zone_asked_for_when_its_clocks_go_back(engine):
    # Berlin, 2026-10-25: 00:30Z and 01:30Z are both half past two.
    since = NOON.replace(month=10, day=25, hour=0)
    asked = ReportQuery(since=since, until=since + timedelta(hours=2), zone="Europe/Berlin")
    back = (since - NOON).total_seconds()
    events = [event(end=back + 1800), event(end=back + 5400)]
    check(engine, "heatmap", events, [(6, 2, 2, 0, 1.0)], asked)


def test_errors_are_newest_first_seen_first(engine):
    old = {"error": "OSError", "fingerprint": "f1"}
    events = [
        event("retry", end=10, **old), event("retry", end=50, job="b", **old), event("dead", end=90, **old),
        event("retry", end=40, error="KeyError", fingerprint="f2"), recovered(end=20), recovered(end=30),
        event(end=99), event("crashed", end=25, error="signal 9"),
    ]  # fmt: skip
    check(engine, "errors", events, [
        (at(40), at(40), "KeyError", 1, 0, "app.send", "f2"),
        (at(25), at(25), "signal 9", 1, 0, "app.send", None),
        (at(20), at(30), "lock expired", 2, 0, "", None),
        (at(10), at(90), "OSError", 3, 1, "app.send, b", "f1"),
    ])  # fmt: skip


def test_retries_are_attempts_per_finished_message(engine):
    events = [
        event(run=1), event("retry", run=2), event("retry", run=2), event("dead", run=1),
        event("snoozed"), event("crashed", run=0, job="b"), event("enqueued"),
    ]  # fmt: skip
    check(engine, "retries", events, [
        ("low", "b", 1, 0, 0, 0, 1, None, 1.0, None),
        ("low", "app.send", 4, 1, 1, 2, 0, 2.0, 0.75, 5 / 6),
    ])  # fmt: skip


def test_backlog_is_known_from_what_started_when_enqueues_are_not_told(engine):
    asked = replace(ASKED, until=at(240))
    events = [event(end=151, wait=200), event(end=101, wait=90), event(end=131, wait=5, attempt=2)]
    basis = "started messages"
    check(engine, "backlog", events, [
        (at(0), "low", 1, 0, 2, 2, basis), (at(60), "low", 0, 1, 2, 1, basis), (at(120), "low", 0, 1, 1, 0, basis),
        (at(180), "low", 0, 0, 0, 0, basis),
    ], asked)  # fmt: skip


def test_backlog_shows_the_most_that_waited_at_once_when_a_burst_is_over_before_the_stretch_ends(
    engine,
):
    asked = replace(ASKED, until=at(120))
    told = {"run": None, "job": None, "attempt": 0, "error": None}
    events = [
        event("enqueued", end=-5, mid="early", **told),
        *(event("enqueued", end=10, mid=f"m{n}", **told) for n in range(5)),
        *(event(end=20 + n, wait=9 + n, mid=f"m{n}") for n in range(5)),
        event("enqueued", end=40, mid="late", **told),
        event(end=41, wait=1, run=0.5, mid="late"),
        event(end=80, wait=84, mid="early"),
    ]
    basis = "enqueued events"
    check(engine, "backlog", events, [
        (at(0), "low", 6, 6, 6, 1, basis), (at(60), "low", 0, 1, 1, 0, basis),
    ], asked)  # fmt: skip


def test_backlog_counts_what_never_started_when_enqueues_are_told(engine):
    asked = replace(ASKED, until=at(180))
    told = {"run": None, "job": None, "attempt": 0, "error": None}  # as of a new message
    events = [
        *(event("enqueued", end=n, mid=f"m{n}", **told) for n in (5, 6, 7)),
        event("enqueued", end=100, **{**told, "error": "updated"}),
        event("cancelled", end=70, mid="m7", run=None, attempt=0),
        event(end=66, wait=60, mid="m5"),
    ]  # fmt: skip
    basis = "enqueued events"
    check(engine, "backlog", events, [
        (at(0), "low", 3, 0, 3, 3, basis), (at(60), "low", 0, 2, 3, 1, basis), (at(120), "low", 0, 0, 1, 1, basis),
    ], asked)  # fmt: skip


def test_backlog_counts_a_message_once_whose_producer_wrote_the_time_before_the_server_did(engine):
    asked = replace(ASKED, until=at(120))
    told = {"run": None, "job": None, "attempt": 0, "error": None}
    events = [
        *(event("enqueued", end=n, mid=f"m{n}", **told) for n in (20, 21)),
        event(end=66, wait=50, mid="m20"),  # enqueued at 15, by its producer
        event(end=67, wait=56, mid="m9"),  # before enqueues were told
    ]
    basis = "enqueued events"
    check(engine, "backlog", events, [
        (at(0), "low", 3, 0, 3, 3, basis), (at(60), "low", 0, 2, 3, 1, basis),
    ], asked)  # fmt: skip


@pytest.mark.parametrize("level", ["all", "attempts"])
def test_backlog_counts_a_revived_message_again_from_its_revival(engine, level):
    asked = replace(ASKED, until=at(240))
    told = {"mid": "a", "run": None, "job": None, "attempt": None, "error": None}
    life = {"mid": "a", "enqueued_at": at(5)}
    events = [
        event("dead", end=12, wait=6, **life), event("revived", end=70, **told), event(end=131, wait=125, **life),
        # Returned by the undo of an operation before its second attempt.
        event("revived", end=140, **told | {"mid": "b", "attempt": 1}),
    ]  # fmt: skip
    if level == "all":
        events.append(event("enqueued", end=5, **told))
    basis = "enqueued events" if level == "all" else "started messages"
    check(engine, "backlog", events, [
        (at(0), "low", 1, 1, 1, 0, basis), (at(60), "low", 1, 0, 1, 1, basis), (at(120), "low", 0, 1, 1, 0, basis),
        (at(180), "low", 0, 0, 0, 0, basis),
    ], asked)  # fmt: skip


def test_slo_burns_over_both_windows(engine):
    # 10 a minute for an hour; in minutes 30 to 34 all are late.
    events = [
        event(end=60 * m + s + 1, wait=31 if 30 <= m < 35 else 30) for m in range(60) for s in range(10)
        if 60 * m + s + 1 < 3600
    ]  # fmt: skip
    late = 50 / 600
    check(engine, "slo", events, [
        ("low", 600, 50, 1 - late, late / 0.01, 0.0, late / 0.01, 100.0, 50 / 350 / 0.01, at(34 * 60), 6),
    ], replace(ASKED, page_burn=10.0))  # fmt: skip


def test_queue_that_was_never_late_has_no_worst_moment(engine):
    check(engine, "slo", [event(end=60 * n, wait=1) for n in range(1, 4)], [
        ("low", 3, 0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, None, 0),
    ])  # fmt: skip


def test_capacity_takes_the_busiest_hour_and_ten_minutes_before_it(engine):
    asked = replace(ASKED, until=at(3 * 3600))
    events = [
        event(end=10, run=1), event(end=3001, run=1, wait=0), event(end=2000, run=1, wait=0),
        event(end=3720, run=100, wait=20), event("retry", attempt=2, end=7000, run=50, wait=99), recovered(),
        event(end=7300, run=1, wait=0),
    ]  # fmt: skip
    micros = round(NOON.timestamp() * 1e6)
    check(engine, "capacity", events, [
        ("low", micros + 3000_000_000, 1_000_000, False, 3600_000_000),
        ("low", micros + 3600_000_000, 100_000_000, True, 3600_000_000),
        ("low", micros + 6950_000_000, 50_000_000, True, 3600_000_000),
    ], asked)  # fmt: skip


def test_capacity_takes_the_revival_for_the_arrival(engine):
    life = {"mid": "a", "enqueued_at": at(0)}
    events = [
        event("dead", end=11, wait=10, **life), event("retry", end=906, wait=905, **life),
        event("revived", mid="a", end=900, run=None, job=None, attempt=None),
        event(end=1000, wait=999, **life | {"attempt": 2}),
    ]  # fmt: skip
    micros = round(NOON.timestamp() * 1e6)
    check(engine, "capacity", events, [
        ("low", micros + seconds * 1_000_000, 1_000_000, True, 1000_000_000) for seconds in (0, 900, 999)
    ])  # fmt: skip


def test_capacity_divides_by_the_time_that_was_observed(engine):
    events = [event(end=600 + n / 10, run=0.4, wait=0) for n in range(460)]
    (report,) = named("capacity")
    with viewed(engine, events):
        result = make_report(engine, report, replace(ASKED, workers=(4, 5)))
        cut = make_report(engine, report, replace(ASKED, workers=(4, 5), trace_rows=100))
    # 460 arrivals of 0.4 s, ten a second.
    assert [round(row["busy"], 2) for row in result.rows] == [0.99, 0.79]
    assert result.notes[0].startswith(
        "Busiest hour: 460 attempts in the 46.3 s that were observed. By Little's law 3.97 workers are busy"
    )
    assert [round(row["busy"], 1) for row in cut.rows] == [1.0, 0.8]


def test_quantiles_are_the_same_twice_and_exact_for_many_rows(engine):
    waits = random.Random(5).sample(range(1_000_000), 30_000)
    events = [event(wait=wait / 1000, end=wait / 1000) for wait in waits]
    answers = {str(answered(engine, "queue-time", events)) for _ in range(2)}
    (row,) = answered(engine, "queue-time", events)
    ordered = sorted(waits)
    assert answers == {str([row])}
    assert (row["p50_ms"], row["p95_ms"], row["p99_ms"]) == (
        ordered[14_999],
        ordered[28_499],
        ordered[29_699],
    )


def test_regressions_are_told_by_order_statistics_of_both_sides(engine):
    asked = replace(ASKED, at=at(1800))
    events = [event(end=n + 10, run=n) for n in range(1, 10)]
    events += [event(end=2000 + n, run=10 * n) for n in range(1, 5)]
    # It began before the moment, so it ran with the earlier state.
    events += [event(end=1900, run=200), event("retry", run=99), event(job="new", end=3000)]
    check(engine, "regressions", events, [
        # z = 1.96: c of 10 is floor(5.5 - 3.1) = 2, of 4 floor(2.5 - 1.96) = 0, so 1.
        ("app.send", 10, 4, 5_500_000.0, 25_000_000.0, 2_000_000, 9_000_000, 10_000_000, 40_000_000),
        ("new", 0, 1, None, 1_000_000.0, None, None, 1_000_000, 1_000_000),
    ], asked)  # fmt: skip


def test_regressions_bound_medians_as_the_simulated_samples_do(engine):
    rng, asked = random.Random(7), replace(ASKED, at=at(1800))
    runs = {
        f"app.{name}": [[rng.randrange(1, 10**6) for _ in range(n)] for n in sizes]
        for name, sizes in (("a", (30, 41)), ("b", (64, 100)), ("c", (200, 75)), ("few", (29, 90)))
    }
    events = [
        event(job=job, end=moment, run=micros / 1e6)
        for job, sides in runs.items()
        for moment, sample in zip((1000, 2000), sides, strict=True)
        for micros in sample
    ]
    z = deviate(asked.confidence, 3)
    found = [(job, *(side(sample, z) for sample in sides)) for job, sides in runs.items()]
    check(engine, "regressions", events, [
        (job, *map(len, runs[job]), float(before.median), float(after.median), *before[1:], *after[1:])
        for job, before, after in found
    ], asked)  # fmt: skip


def test_anomalies_are_hours_far_from_the_median(engine):
    asked = replace(ASKED, until=at(10 * 3600), min_runs=2, min_hours=5)
    runs = [10, 11, 12, 13, 14, 40]
    events = [
        event(end=3600 * h + 100 + i, run=run) for h, run in enumerate(runs) for i in range(2)
    ]
    events += [event(job="even", end=3600 * h + 100 + i, run=5) for h in range(9) for i in range(2)]
    events += [event(job="rare", end=3600 * h + 100, run=50 * h) for h in range(9)]
    # Median 12.5, deviations 2.5 1.5 0.5 0.5 1.5 27.5: MAD 1.5.
    check(engine, "anomalies", events, [
        (at(5 * 3600), "app.send", 2, 40_000_000, 12_500_000.0, 3.2, 0.6745 * 27.5 / 1.5),
    ], asked)  # fmt: skip


def test_anomalies_use_the_mean_deviation_when_most_hours_are_alike(engine):
    asked = replace(ASKED, until=at(10 * 3600), min_runs=1, min_hours=5)
    events = [event(end=3600 * h + 100, run=60 if h == 8 else 10) for h in range(9)]
    check(engine, "anomalies", events, [
        (at(8 * 3600), "app.send", 1, 60_000_000, 10_000_000.0, 6.0, 50 / (1.253314 * 50 / 9)),
    ], asked)  # fmt: skip


def test_dead_letters_are_clustered_with_the_newest_as_examples(engine):
    cause = {"error": "OSError", "fingerprint": "f1", "attempt": 3}
    events = [event("dead", mid=f"m{n}", end=n, **cause) for n in range(1, 5)]
    events += [
        event("dead", mid="x", end=9, job=None, error="lock expired", run=None),
        event("retry", **cause),
    ]
    check(engine, "dead", events, [
        ("low", "app.send", "OSError", 4, 0.8, 3.0, at(1), at(4), "m4, m3, m2", "f1"),
        ("low", None, "lock expired", 1, 0.2, 1.0, at(9), at(9), "x", None),
    ])  # fmt: skip


def test_cost_shares_processor_and_run_time(engine):
    events = [
        event(run=4, cpu_us=3_000_000, rss_kib=2048), event("retry", run=2, cpu_us=0, rss_kib=4096),
        event(job="b", run=2, cpu_us=1_000_000, rss_kib=None), recovered(), event(job="c", run=0, cpu_us=None),
    ]  # fmt: skip
    check(engine, "cost", events, [
        ("app.send", 2, 3_000_000, 0.75, 1_500_000.0, 6_000_000, 0.75, 0.5, 4096),
        ("b", 1, 1_000_000, 0.25, 1_000_000.0, 2_000_000, 0.25, 0.5, None),
        ("c", 1, 0, 0.0, 0.0, 0, 0.0, None, None),
    ])  # fmt: skip


def test_keys_are_listed_with_wait_and_cost_where_a_queue_has_some(engine):
    events = [
        event(run=4, wait=1, cpu_us=3_000_000, key="acme"), event(run=2, wait=3, cpu_us=500_000, key="acme"),
        event("retry", run=1, attempt=2, cpu_us=500_000, key="bob"), event(run=1, wait=2, cpu_us=0),
        event(queue="other", run=9), recovered(key="acme"),
    ]  # fmt: skip
    check(engine, "keys", events, [
        ("low", "acme", 2, 1_000, 3_000, 3_000, 2, 3_500_000, 0.875, 6_000_000, 0.75),
        ("low", None, 1, 2_000, 2_000, 2_000, 1, 0, 0.0, 1_000_000, 0.125),
        ("low", "bob", 0, None, None, None, 1, 500_000, 0.125, 1_000_000, 0.125),
    ])  # fmt: skip
