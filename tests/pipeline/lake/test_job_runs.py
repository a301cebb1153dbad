"""job_runs and rollup_hourly after random histories equal the sums of all events, however they were refreshed."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from jobq.errors import LakeError
from jobq.events import KINDS
from jobq.pipeline.lake import inspection, read, rollup, upkeep
from jobq.pipeline.lake.commit import BatchRecord, commit_batch, commit_files, state_of
from jobq.pipeline.lake.files import live_files, write_rows
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.tables import EVENTS, JOB_RUNS, ROLLUP, to_lake
from jobq.pipeline.schema import EVENT_COLUMNS, arrow_schema
from tests import tools

tools.library("pyspark")
BEGIN = datetime(2026, 9, 1, 12, tzinfo=UTC)
GAP = timedelta(days=rollup.LOOK_BACK_DAYS)
SOAK = os.environ.get("JOBQ_LAKE") == "soak"
Event = dict[str, Any]
#: Kinds of attempts that may be a message's first. All attempts here have the number 1.
FIRST = ("done", "retry", "dead", "crashed", "snoozed")


class History:
    """Random events of a few messages, in the order of their stream."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.events: list[Event] = []
        self._now, self._lives = BEGIN, defaultdict[str, list[datetime]](list)
        self._numbers = count()

    def more(self, number: int) -> list[Event]:
        """The next events: some late, some of ended messages, some after a long pause."""
        made = [self._next() for _ in range(number)]
        self.events += made
        return made

    def _next(self) -> Event:
        pick = self.random
        pauses = (
            [timedelta(milliseconds=1)] * 40 + [timedelta(minutes=50)] * 6 + [timedelta(days=1)]
        )
        self._now += pick.choice([*pauses, GAP]) if pick.random() < 0.3 else timedelta()
        late = pick.choice([timedelta()] * 9 + [timedelta(days=pick.randrange(20))])
        mid, kind = f"m{pick.randrange(40)}", pick.choice((*KINDS[:8], "done", "done", "rested"))
        at = self._now - late
        own = kind not in ("enqueued", "recovered", "cancelled", "revived") and pick.random() < 0.8
        if own and (pick.random() < 0.5 or not self._lives[mid]):
            self._lives[mid].append(at - timedelta(seconds=pick.randrange(0, 90_000)))
        ran = 1_000 * pick.randrange(1, 90_000) if own else None
        return {
            "queue": pick.choice(("low", "low", "high")), "kind": kind, "mid": mid,
            "job": pick.choice(("app.a", "app.b", None)) if own else None, "attempt": 1,
            "enqueued_at": pick.choice(self._lives[mid][-3:]) if own else None, "finished_at": at,
            "run_us": ran, "cpu_us": ran, "rss_kib": ran and pick.randrange(1_000), "bytes": 10,
            "entry_at": self._now, "entry_seq": next(self._numbers), "version": 1,
        }  # fmt: skip


def ingest(lake: Lake, events: list[Event]) -> None:
    """Commit them as one batch."""
    [batch] = (
        pa.Table.from_pylist(events, arrow_schema(EVENT_COLUMNS)).combine_chunks().to_batches()
    )
    files = write_rows(lake.below("events"), EVENTS, to_lake(batch))
    state = state_of(lake, EVENTS)
    commit_batch(lake, EVENTS, files, state.following({}, len(events), {}))


def runs_of(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    """The rows of job_runs, computed from all events."""
    found: dict[Any, list[Event]] = defaultdict(list)
    by_mid: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        by_mid[event["queue"], event["mid"]].append(event)
    for key, some in by_mid.items():
        for number, segment in enumerate(_segments(some)):
            lives = {one["enqueued_at"] for one in segment} - {None}
            for one in segment:
                before = [life for life in lives if life <= one["finished_at"]]
                life = one["enqueued_at"] or max(before, default=None)
                found[key[0], key[1], life, None if life else number].append(one)
    return sorted((_run(*key[:3], some) for key, some in found.items()), key=repr)


def _segments(events: list[Event]) -> list[list[Event]]:
    segments: list[list[Event]] = []
    last: Event | None = None
    for one in events:
        if last is None or last["kind"] in rollup.ENDS or one["entry_at"] > last["entry_at"] + GAP:
            segments.append([])
        segments[-1].append(one)
        last = one
    return segments


def _run(queue: Any, mid: Any, life: datetime | None, events: list[Event]) -> tuple[Any, ...]:
    kinds = [one["kind"] for one in events]
    started = [
        one["finished_at"] - timedelta(microseconds=one["run_us"])
        for one in events
        if one["run_us"]
    ]
    first, starts = life or min(one["finished_at"] for one in events), min(started, default=None)
    jobs = {one["job"] for one in events} - {None}
    return (
        queue, mid, life, first, starts, max(one["finished_at"] for one in events),
        next((kind for kind in reversed(kinds) if kind in KINDS), None),
        sum(kind in ("done", "retry", "dead", "crashed", "recovered") for kind in kinds),
        kinds.count("retry"), kinds.count("crashed") + kinds.count("recovered"), kinds.count("done"),
        max(0, _ms(starts) - _ms(life)) if starts and life else None,
        sum(one["run_us"] or 0 for one in events), sum(one["cpu_us"] or 0 for one in events),
        max((one["rss_kib"] for one in events if one["rss_kib"] is not None), default=None),
        len(events), kinds.count("snoozed"),
        min((one["finished_at"] for one in events if one["run_us"] and one["kind"] in FIRST), default=None),
        first.date(), bool(jobs),
    )  # fmt: skip


def _ms(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def runs_in(spark, lake) -> list[tuple[Any, ...]]:
    """The rows of job_runs that the lake has."""
    names = [c.name for c in JOB_RUNS.columns if c.name != "job"]
    rows = read(spark, lake, "job_runs").toArrow().to_pylist()
    return sorted(
        ((*tuple(row[name] for name in (*names, "dt")), row["job"] is not None) for row in rows),
        key=repr,
    )


def hours_of(events: Iterable[Event]) -> dict[Any, tuple[int, ...]]:
    """The rows of rollup_hourly, computed from all events."""
    found: dict[Any, list[Event]] = defaultdict(list)
    for one in events:
        hour = one["finished_at"].replace(minute=0, second=0, microsecond=0)
        found[hour, one["queue"], one["job"]].append(one)
    return {
        key: (len(some), sum(one["kind"] == "done" for one in some), sum(one["run_us"] or 0 for one in some),
              sum(one["run_us"] is not None for one in some))
        for key, some in found.items()
    }  # fmt: skip


def hours_in(spark, lake) -> dict[Any, tuple[int, ...]]:
    """The rows of rollup_hourly that the lake has, with the number of runs in the sketch."""
    n = "coalesce(kll_sketch_get_n_bigint(run_us_sketch), 0L) AS n"
    rows = read(spark, lake, "rollup_hourly").selectExpr("*", n).toArrow().to_pylist()
    made = {
        (row["hour"], row["queue"], row["job"]): tuple(row[name] for name in ("nevents", "done", "run_us", "n"))
        for row in rows
    }  # fmt: skip
    assert len(made) == len(rows), "an hour of a job has one row"
    return made


def equal(spark, lake, history: History) -> None:
    """Check that both tables equal the sums of all events, including expired events."""
    assert runs_in(spark, lake) == runs_of(history.events)
    assert hours_in(spark, lake) == hours_of(history.events)
    assert not rollup.stale(lake)
    assert not rollup.stale(lake, JOB_RUNS)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12 if SOAK else 1))
def test_refreshes_after_any_history_equal_a_computation_from_all_events(
    spark, lake, seed, monkeypatch
):
    history, views = History(seed), spark.catalog.listTables()
    monkeypatch.setattr(rollup, "MAX_FILES", 1)
    ingest(lake, history.more(80))
    rollup.refresh(lake, spark)
    equal(spark, lake, history)
    _left_by_a_jobq_that_computed_days(lake)
    assert sum(rollup.stale(lake).values()) == 80
    ingest(lake, history.more(60))
    rollup.refresh(lake, spark)
    equal(spark, lake, history)
    for _ in range(6 if SOAK else 1):
        ingest(lake, history.more(history.random.randrange(1, 160)))
        new = {one.path for one in live_files(lake.table("events"))}
        upkeep.compact(lake, ["events"])
        _refresh_killed_before_its_commit(spark, lake, monkeypatch)
        assert _read_by_a_refresh(spark, lake, monkeypatch) <= new
        equal(spark, lake, history)
        upkeep.expire(lake, 0, now=history.events[-1]["finished_at"])
    assert spark.catalog.listTables() == views
    kept = os.listdir(os.path.join(lake.below("job_runs").uri, rollup.OPEN_FOLDER))
    facts = state_of(lake, JOB_RUNS).facts
    assert {f"{rollup.OPEN_FOLDER}/{name}" for name in kept} == {*facts["events"], *facts["base"]}
    assert [one.text for one in inspection.check(lake) if one.level == "fail"] == []


def _left_by_a_jobq_that_computed_days(lake: Lake) -> None:
    for table in (ROLLUP, JOB_RUNS):
        delta = lake.table(table.name)
        assert delta is not None
        batch = state_of(lake, table).batch + 1
        commit_files(lake, table.name, delta, [], BatchRecord(batch=batch, facts={"days": {}}))


def _refresh_killed_before_its_commit(spark, lake, monkeypatch) -> None:
    def stopped(lake, name, *args):
        if name == JOB_RUNS.name:
            raise LakeError("killed")
        commit_files(lake, name, *args)

    with monkeypatch.context() as patch:
        patch.setattr(rollup, "commit_files", stopped)
        with pytest.raises(LakeError, match="killed"):
            rollup.refresh(lake, spark)


def _read_by_a_refresh(spark, lake, monkeypatch) -> set[str]:
    """The paths of the event files that a refresh reads: new ones, though a compaction replaced them."""
    found: set[str] = set()
    of_files = rollup.of_files

    def noted(spark, lake, table, files):
        found.update(one.path for one in files if table is EVENTS)
        return of_files(spark, lake, table, files)

    with monkeypatch.context() as patch:
        patch.setattr(rollup, "of_files", noted)
        rollup.refresh(lake, spark)
    return found
