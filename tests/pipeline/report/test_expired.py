"""Every report equals its reference in pandas on one lake, before its older events expire and after.

Two time zones, a day with 25 hours, ten queues, 200 jobs and hostile names, messages that retry, snooze, crash and die.
This process computes what hasn't expired, and Spark must answer the same. `make test` compares reports that rollups
answer after their events have expired; JOBQ_LAKE=soak compares all.
"""

from __future__ import annotations

import math
import os
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from jobq.errors import PipelineError
from jobq.pipeline.lake import rollup, upkeep
from jobq.pipeline.lake.commit import commit_batch, state_of
from jobq.pipeline.lake.files import write_rows
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.tables import EVENTS, to_lake
from jobq.pipeline.report.engines import LocalEngine, SparkEngine, SqlEngine
from jobq.pipeline.report.query import ReportQuery
from jobq.pipeline.report.registry import REPORTS, Report, named
from jobq.pipeline.report.run import answer, answers, check_range, report_views
from jobq.pipeline.report.sources import EventSource, engine_for, from_lake
from jobq.pipeline.schema import EVENT_COLUMNS, events_schema
from tests import tools
from tests.pipeline.report.first_waits import Rows, in_range
from tests.pipeline.report.reference import REFERENCES, Answer, trace
from tests.pipeline.report.rows import ASKED, event, source

tools.library("pyspark")
SOAK = os.environ.get("JOBQ_LAKE") == "soak"
#: A Monday; Berlin's clocks go back on the Sunday, which has expired.
BEGIN = datetime(2026, 10, 19, 11, tzinfo=UTC)
BORDER = datetime(2026, 10, 26, tzinfo=UTC)
BERLIN = ReportQuery(
    since=BEGIN, until=BEGIN + timedelta(days=8) - timedelta(minutes=7), zone="Europe/Berlin", target_s=300,
    min_runs=5, min_hours=5, page_burn=2.0,
)  # fmt: skip
KOLKATA = replace(BERLIN, zone="Asia/Kolkata")
QUEUES = ("low", "q'; DROP TABLE x--", "Ä ö", *(f"q{n}" for n in range(7)))
#: Queues that record enqueues.
TOLD = ("low", "q1", "q2")
JOBS = ("=cmd|'/C calc'!A0<script>", "日本", *(f"app.job{n}" for n in range(198)))
MS = timedelta(milliseconds=1)


class History:
    """Events of messages, from their enqueue to their end."""

    def __init__(self) -> None:
        self.pick, self.rows = random.Random(18), list[dict[str, Any]]()

    def add(self, kind: str, end: datetime, **given: Any) -> None:
        run_us, enqueued = given.get("run_us"), given.get("enqueued_at")
        started = None if run_us is None else end - timedelta(microseconds=run_us)
        row = {
            "kind": kind, "finished_at": end, "entry_at": end, "entry_seq": 0, "version": 1, "started_at": started,
            "wait_ms": max(0, (started - enqueued) // MS) if started and enqueued else None, **given,
        }  # fmt: skip
        self.rows.append({column.name: row.get(column.name) for column in EVENT_COLUMNS})

    def message(self, mid: str, at: datetime, queue: str, job: str) -> None:
        pick = self.pick
        if queue in TOLD:
            self.add("enqueued", at + 2 * MS, queue=queue, mid=mid, attempt=0)
            if pick.random() < 0.05:
                self.add("cancelled", at + 60_000 * MS, queue=queue, mid=mid, attempt=0)
                return
        key = pick.choice((None, "acme", "b'); --")) if queue == "q1" else None
        now, attempt = at + pick.randrange(400_000) * MS, 1
        while True:
            kind = pick.choice(("done",) * 7 + ("retry", "dead", "crashed", "recovered", "snoozed"))
            ran = pick.randrange(1, 90_000)
            now += ran * MS
            own: dict[str, Any] = {"job": job, "enqueued_at": at, "run_us": ran * 1000, "key": key}
            own |= {"cpu_us": ran * 300, "rss_kib": pick.randrange(10_000)}
            if kind in ("retry", "dead"):
                error = pick.choice(("OSError", "ValueError", "<b>'\""))
                own |= {"error": error, "fingerprint": f"of {error}"}
            elif kind == "crashed":
                own["error"] = "signal 9"
            elif kind == "recovered":
                own = {"error": "lock expired"}
            self.add(kind, now, queue=queue, mid=mid, attempt=attempt, **own)
            # job_runs has one first run per revived message, so all revivals are later than the expired events.
            revived = kind == "dead" and now >= BORDER and pick.random() < 0.7
            if kind == "done" or (kind == "dead" and not revived):
                return
            attempt += kind != "snoozed"
            if revived:
                now, attempt = now + pick.randrange(1_000, 9_000_000) * MS, 1
                self.add("revived", now, queue=queue, mid=mid)
            now += pick.randrange(1_000, 20_000_000) * MS

    def hot(self) -> None:
        """A job with runs in many hours, one of which is slow."""
        for n in range(240):
            ran = (
                self.pick.randrange(800, 1_200) * (9 if n // 6 == 20 else 1) * (2 if n > 120 else 1)
            )
            end = BEGIN + timedelta(hours=4 * (n // 6) + 1, minutes=n % 6)
            self.add(
                "done", end, queue="q6", mid=f"hot{n}", job="app.hot", attempt=1, run_us=ran * 1000, cpu_us=ran,
                enqueued_at=end - (ran + 5) * MS,
            )  # fmt: skip

    def flow(self, number: int, at: datetime) -> None:
        for step in ("rows", "slow", "mail"):
            ran = self.pick.randrange(1_000, 90_000)
            end = at + (ran + 50) * MS
            kind = "dead" if step == "mail" and number % 4 == 0 else "done"
            self.add(
                kind, end, queue="q5", mid=f"~import:{number}.r1.{step}.0", flow=f"import:{number}", step=step,
                attempt=1, job="app.flow", enqueued_at=at, run_us=ran * 1000,
                **({"error": "KeyError", "fingerprint": "k"} if kind == "dead" else {}),
            )  # fmt: skip
            at = end + MS

    def ticks(self) -> None:
        for n in range(48):
            due = BEGIN + timedelta(hours=4 * n, minutes=1)
            word = self.pick.choice(("enqueued", "enqueued", "waits", "skipped", "missed"))
            self.add(
                "tick", due + 70 * MS, queue="q4", job=f"nightly {n % 3}", fingerprint=f"tick{n}", attempt=n % 2,
                enqueued_at=due, error=word,
            )  # fmt: skip
            if word in ("enqueued", "waits"):
                self.message(f"tick{n}", due + 80 * MS, "q4", "app.tick")


def made_history() -> Rows:
    """The events, in the order of their streams."""
    made = History()
    for number in range(900):
        at = BEGIN + timedelta(milliseconds=made.pick.randrange(8 * 86_400_000))
        made.message(f"m{number}'--", at, made.pick.choice(QUEUES), made.pick.choice(JOBS))
    made.hot()
    made.ticks()
    for number in range(12):
        made.flow(number, BEGIN + timedelta(hours=12 * number))
    # Its first step ends before midnight, the others after it.
    made.flow(12, BORDER - timedelta(milliseconds=60))
    rows = sorted(made.rows, key=lambda row: row["finished_at"])
    return [{**row, "entry_seq": number} for number, row in enumerate(rows)]


HISTORY = made_history()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with all events."""
    made = Lake.create(str(tmp_path_factory.mktemp("expired") / "lake"))
    ingested(made, HISTORY)
    return made


def ingested(lake: Lake, rows: Rows) -> None:
    """Commit rows as a batch of events."""
    [batch] = pa.Table.from_pylist(rows, events_schema()).combine_chunks().to_batches()
    files = write_rows(lake.below("events"), EVENTS, to_lake(batch))
    before = state_of(lake, EVENTS)
    commit_batch(lake, EVENTS, files, before.following({}, len(rows), {}))


@pytest.fixture(scope="module")
def expired(lake: Lake, spark: Any) -> Lake:
    """The lake at a later time: only the rollups have what was before BORDER."""
    before = BORDER.date().isoformat()
    with pytest.raises(PipelineError, match="never counted"):
        upkeep.expire(lake, 0, now=BORDER + timedelta(hours=9), first=refused)
    [done] = upkeep.expire(
        lake, 0, now=BORDER + timedelta(hours=9), first=lambda _: rollup.refresh(lake, spark)
    )
    assert done.rows == sum(row["finished_at"] < BORDER for row in HISTORY)
    assert rollup.uncounted(lake, before) == {}
    return lake


def cached(spark: Any, lake: Lake) -> EventSource:
    """The lake's events, read once for all reports, as from a bucket."""
    return from_lake(spark, lake)._replace(dear=True)


def refused(before: str) -> None:
    raise PipelineError("never counted")


def found(engine: SqlEngine, report: Report, query: ReportQuery) -> Any:
    """The rows of the statement by key; those of capacity in order."""
    rows = answer(engine, report, query)
    if report.name == "capacity":
        return [tuple(row.values()) for row in rows]
    names = REFERENCES[report.name][1]
    made = {
        tuple(row[name] for name in names): tuple(row[name] for name in report.answered if name not in names)
        for row in rows
    }  # fmt: skip
    assert len(made) == len(rows)
    return made


def differences(report: Report, answer: Any, rows: Rows, query: ReportQuery) -> list[Any]:
    """Return the differences of the answer from the reference on these rows."""
    rows = in_range(rows, query)
    if report.name == "capacity":
        return [] if answer == trace(rows, query) else [("capacity", answer, trace(rows, query))]
    expected: Answer = REFERENCES[report.name][0](rows, query)
    return [
        (report.name, key, answer.get(key), expected.get(key))
        for key in {**answer, **expected}
        if not alike(answer.get(key), expected.get(key))
    ]


def alike(one: Any, two: Any) -> bool:
    """Whether they are equal, numbers but for rounding."""
    if isinstance(one, tuple) and isinstance(two, tuple):
        return len(one) == len(two) and all(map(alike, one, two))
    if isinstance(one, float) and two is not None:
        return math.isclose(one, two, rel_tol=1e-9)
    return bool(one == two)


def test_reports_equal_their_references_when_the_lake_has_all_events(lake):
    wrong, engine = [], LocalEngine()
    with report_views(engine, from_lake(None, lake), BERLIN) as (seen, show):
        for report in REPORTS:
            assert show(report) == (BERLIN, [])
            figures = found(engine, report, BERLIN)
            assert figures, report.name
            wrong += differences(report, figures, HISTORY, BERLIN)
        assert seen.queues == tuple(sorted(QUEUES))
        for name in ("throughput", "heatmap", "anomalies"):
            [report] = named(name)
            wrong += differences(report, found(engine, report, KOLKATA), HISTORY, KOLKATA)
    assert wrong == []


def test_spark_and_this_process_answer_the_same(spark, lake):
    engines = (LocalEngine(), from_lake(None, lake)), (SparkEngine(spark), cached(spark, lake))
    several = replace(BERLIN, queues=("low", "q1", "q5", "q'; DROP TABLE x--"))
    for query, reports in ((BERLIN, REPORTS), (several, named("queue-time"))):
        here, there = (answers(engine, read, reports, query) for engine, read in engines)
        assert here[1] == there[1]
        for one, other in zip(here[0], there[0], strict=True):
            name = one.report.name
            assert one.notes == other.notes and one.more == other.more, name
            rows = [[tuple(row.items()) for row in result.rows] for result in (one, other)]
            assert len(rows[0]) == len(rows[1]) > 0, name
            assert [pair for pair in zip(*rows, strict=True) if not alike(*pair)] == [], name
            kinds = [
                {(k, type(v)) for row in result.rows for k, v in row.items()}
                for result in (one, other)
            ]
            assert kinds[0] == kinds[1], name


@pytest.mark.long
def test_quantiles_come_from_sketches_when_the_range_has_too_many_events(spark, lake, monkeypatch):
    monkeypatch.setattr("jobq.pipeline.report.run.EXACT_ROWS", len(HISTORY) // 2)
    wrong, engine = [], SparkEngine(spark)
    with report_views(engine, cached(spark, lake), BERLIN):
        assert not engine.exact
        for report in map(named, ("queue-time", "run-time", "keys", "anomalies")):
            wrong += differences(report[0], found(engine, report[0], BERLIN), HISTORY, BERLIN)
    # So few values of a group are all in its sketch.
    assert wrong == []


@pytest.mark.long
def test_reports_equal_their_references_when_rollups_answer_for_what_has_expired(spark, expired):
    engine = SparkEngine(spark)
    recent = [row for row in HISTORY if row["finished_at"] >= BORDER]
    wrong = []
    cut = replace(BERLIN, since=BEGIN - timedelta(minutes=40))
    assert "rollup_hourly and job_runs replace them" in check_range(expired, cut)
    with report_views(engine, cached(spark, expired), cut) as (seen, show):
        for report in (
            REPORTS if SOAK else [one for one in REPORTS if one.rollup or one.name == "dead"]
        ):
            query, [note] = show(report)
            figures = found(engine, report, query)
            if report.rollup == "hours":
                assert "begin at 2026-10-19T11:00:00Z, not at 2026-10-19T10:20:00Z" in note
                assert query.since == BEGIN
            elif not report.rollup:
                assert f"the rollups have no {report.lacks}; the figures begin at that time" in note
            else:
                assert "come from job_runs" in note
            if report.name == "backlog":
                figures = {key: row for key, row in figures.items() if key[1] not in TOLD}
                untold = [row for row in HISTORY if row["queue"] not in TOLD]
                wrong += differences(report, figures, untold, query)
            else:
                wrong += differences(report, figures, HISTORY if report.rollup else recent, query)
        assert (seen.first, seen.queues) == (BEGIN, tuple(sorted(QUEUES)))
    with report_views(engine, from_lake(spark, expired), KOLKATA) as (_, show):
        [heatmap] = named("heatmap")
        query, [note] = show(heatmap)
        assert "UTC hours, which differ from the hours of Asia/Kolkata" in note
        wrong += differences(heatmap, found(engine, heatmap, query), recent, KOLKATA)
    assert wrong == []


def test_expired_events_are_left_to_spark(tmp_path):
    lake = Lake.create(str(tmp_path / "lake"))
    ingested(lake, HISTORY)
    upkeep.expire(lake, 0, now=BORDER + timedelta(hours=9), first=lambda _: None)
    with pytest.raises(PipelineError, match="choose --engine spark, or a later --since"):
        with report_views(LocalEngine(), from_lake(None, lake), BERLIN):
            pass
    recent = replace(BERLIN, since=BORDER)
    with report_views(LocalEngine(), from_lake(None, lake), recent) as (seen, _):
        assert seen.events == sum(BORDER <= row["finished_at"] < BERLIN.until for row in HISTORY)
    nowhere = (None, "")
    assert engine_for("auto", lake, nowhere, recent) == "local"
    before = BERLIN.since, BORDER
    for asked in (BERLIN, replace(recent, compared=before)):
        assert engine_for("auto", lake, nowhere, asked) == "spark"


def test_range_that_has_expired_is_answered_without_the_hours_that_it_cuts(spark, expired):
    engine = SparkEngine(spark)
    asked = replace(BERLIN, since=BEGIN + timedelta(minutes=1), until=BORDER - timedelta(minutes=1))
    with report_views(engine, from_lake(spark, expired), asked) as (_, show):
        for name in ("run-time", "slo"):
            [report] = named(name)
            query, [note] = show(report)
            assert differences(report, found(engine, report, query), HISTORY, query) == []
            if name == "run-time":
                assert "end at 2026-10-25T23:00:00Z, not at 2026-10-25T23:59:00Z" in note
        [errors] = named("errors")
        query, [note] = show(errors)
        assert "the range has no figures" in note
        assert found(engine, errors, query) == {}
    with pytest.raises(PipelineError, match="no events"):
        with report_views(engine, from_lake(spark, expired), replace(asked, source="eu")):
            pass


def test_reports_equal_their_references_on_one_event_and_refuse_an_empty_table(engine):
    one = event(key="k", cpu_us=5, rss_kib=7)
    row = dict(zip((column.name for column in EVENT_COLUMNS), one, strict=True))
    made = source(engine, [one])
    with report_views(engine, EventSource(lambda since, until: made), ASKED) as (_, show):
        for report in REPORTS:
            query, notes = show(report)
            hourly = replace(query, least_bucket_s=3600)
            assert differences(report, found(engine, report, hourly), [row], hourly) == []
            assert notes == []
    empty = EventSource(lambda since, until: source(engine, []))
    with pytest.raises(PipelineError, match="no events have been recorded yet"):
        with report_views(engine, empty, ASKED):
            pass
