"""Compacting, vacuuming and expiring change what there is by exactly what they say."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from jobq.errors import ConfigError
from jobq.pipeline import offsets
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import inspection, upkeep
from jobq.pipeline.lake.commit import CommitConflictError, commit_files, state_of
from jobq.pipeline.lake.files import live_files, rows_of_files
from jobq.pipeline.lake.ingest import Ingest
from jobq.pipeline.lake.store import LakeStore
from jobq.pipeline.lake.tables import EVENTS
from jobq.pipeline.lake.upkeep import mark, marks
from jobq.pipeline.offsets import LogOffset
from tests.pipeline.lake.conftest import DAY, mids, rows

DAY_MS = 86_400_000
NOON = datetime.fromtimestamp(DAY / 1000, UTC) + timedelta(hours=12)


def paths(lake) -> list[Path]:
    return sorted((Path(lake.store.uri) / "events").rglob("*.parquet"))


@pytest.fixture
def three_days(lake, valkey_client, write):
    """Days -2, -1 and 0, two files each."""
    work = Ingest(lake, valkey_client, Engine("local"))
    for half in range(2):
        for day in (-2, -1, 0):
            # A stream's ids only grow, so each day has a queue of its own.
            write(f"q{day + 2}", 10, first=half * 100 + (day + 2) * 10 + 1, at=DAY + day * DAY_MS)
        work.events()
    return lake


def test_compacting_leaves_one_sorted_file_a_day_with_the_same_rows(three_days):
    before = mids(three_days)
    done = upkeep.compact(three_days)
    assert [(one.rows, one.files_before, one.files) for one in done] == [(20, 2, 1)] * 3
    assert mids(three_days) == before
    found = [(row["queue"], row["job"], row["finished_at"]) for row in rows(three_days)]
    assert found == sorted(found)
    assert upkeep.compact(three_days) == []


def test_compacting_puts_an_event_without_a_job_beside_the_others_of_its_message(
    lake, ingest, write, valkey_client
):
    """A mid that comes again far away is stored twice."""
    for number in (1, 2, 3, 9):
        record = f"enqueued\x1fm{number}\x1f{DAY + number}"
        valkey_client.command(
            "XADD", "jobq:{low}:events", f"{DAY}-{number}", "1", record + "\x1f" * 10
        )
    write("low", 3)
    ingest.events()
    [one] = upkeep.compact(lake, ["events"])
    found = [(row["mid"], row["kind"], row["job"]) for row in rows(lake)]
    assert found == [
        (f"m{number}", kind, job)
        for number in (1, 2, 3)
        for kind, job in (("enqueued", None), ("done", "app.resize"))
    ] + [("m9", "enqueued", None)]
    assert one.rows == 7


def test_files_from_before_a_column_are_read_and_compacted_with_nulls(
    three_days,
):
    from_before = EVENTS._replace(columns=tuple(c for c in EVENTS.columns if c.name != "key"))
    old, [first, *_] = three_days.below("events"), live_files(three_days.table("events"))
    [found] = rows_of_files(old, [first])
    path = Path(old.uri) / first.path
    pq.write_table(found.select(from_before.schema().names), path)
    [before] = rows_of_files(old, [first], table=EVENTS)

    upkeep.compact(three_days)

    assert before.schema == EVENTS.schema()
    assert {row["key"] for row in rows(three_days)} == {None}
    assert [one.is_compact for one in live_files(three_days.table("events"))] == [True] * 3


class Meanwhile(Engine):
    """Something happens once, while the first units run."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__("local")
        self._action: Callable[[], object] | None = action

    def run_units(self, function: Any, units: Any, rows: int) -> Any:
        action, self._action = self._action, None
        done = list(super().run_units(function, units, rows))
        if action:
            action()
        return iter(done)


def test_rows_stay_single_when_two_compact_the_same_day_at_once(three_days):
    """Replace the lock by nothing, as in a bucket."""
    before = mids(three_days)
    engine = Meanwhile(lambda: upkeep.compact(three_days, ["events"]))
    assert upkeep.compact(three_days, ["events"], engine=engine) == []
    assert mids(three_days) == before
    assert sum(path.name.startswith("compact") for path in paths(three_days)) == 3


def test_group_is_compacted_again_when_its_commit_loses(three_days, monkeypatch):
    before, commits, plain = mids(three_days), [], upkeep.commit_files

    def loses_first(*args, **named):
        commits.append(None)
        if len(commits) == 1:
            raise CommitConflictError("another was first")
        plain(*args, **named)

    monkeypatch.setattr(upkeep, "commit_files", loses_first)
    assert len(upkeep.compact(three_days, ["events"])) == 3
    assert (len(commits), mids(three_days)) == (4, before)
    # Three new ones, and the six that vacuum deletes.
    assert len(paths(three_days)) == 9


def test_batch_is_remembered_when_it_comes_while_a_day_is_compacted(
    three_days, valkey_client, write
):
    work = Ingest(three_days, valkey_client, Engine("local"))
    write("q2", 1, first=500)
    upkeep.compact(three_days, ["events"], engine=Meanwhile(work.events))
    assert sum(mids(three_days).values()) == 61
    assert [one.text for one in inspection.check(three_days) if one.level == "fail"] == []


def test_compacting_splits_what_is_over_the_size_of_a_file(three_days):
    [one, *_] = upkeep.compact(three_days, ["events"], target=1_500)
    assert one.files > 1
    assert sum(mids(three_days).values()) == 60


def test_day_larger_than_memory_is_compacted_in_groups_and_an_ingest_gets_in_between(
    lake, valkey_client, write, monkeypatch
):
    work, turns = Ingest(lake, valkey_client, Engine("local")), []
    for number in range(12):
        write("low", 2, first=number * 2 + 1)
        work.events()
    monkeypatch.setattr(upkeep, "GROUP_ROWS", 4)
    most, plain = [], upkeep.rewritten

    def bounded(group):
        most.append(sum(one.rows for one in group.files))
        return plain(group)

    @contextmanager
    def turn():
        yield
        turns.append(None)
        write("low", 1, first=100 + len(turns))
        assert work.events().rows == 1

    monkeypatch.setattr(upkeep, "rewritten", bounded)
    [one] = upkeep.compact(lake, alone=turn)
    assert (one.rows, one.files, most) == (24, 6, [4] * 6)
    assert (sum(mids(lake).values()), set(mids(lake).values())) == (30, {1})
    times = [[row["finished_at"] for row in part.to_pylist()] for part in stored(lake)]
    assert sum(found == sorted(found) for found in times) == len(times)


def test_small_compact_files_are_joined_until_there_is_one(lake, valkey_client, write):
    work = Ingest(lake, valkey_client, Engine("local"))
    for number in range(3):
        write("low", 2, first=number * 2 + 1)
        work.events()
        upkeep.compact(lake)
    assert len(live_files(lake.table("events"))) == 1
    assert upkeep.compact(lake) == []
    assert set(mids(lake).values()) == {1}


def stored(lake):
    """The rows of each file, as they are stored."""
    return rows_of_files(lake.below("events"), live_files(lake.table("events")))


def test_offsets_survive_compacting_and_expiring(three_days, valkey_client, write):
    places = state_of(three_days, EVENTS).places
    upkeep.compact(three_days)
    upkeep.expire(three_days, 0, now=NOON)
    assert state_of(three_days, EVENTS).places == places
    work = Ingest(three_days, valkey_client, Engine("local"))
    assert work.events().rows == 0


def test_ingest_goes_on_when_a_compaction_is_committed_meanwhile(
    three_days, valkey_client, write, monkeypatch
):
    write("q2", 5, first=500)
    work = Ingest(three_days, valkey_client, Engine("local"))
    plain = work._answers

    def meanwhile(*args):
        found = plain(*args)
        assert len(upkeep.compact(three_days)) == 3
        return found

    monkeypatch.setattr(work, "_answers", meanwhile)
    assert work.events().rows == 5
    assert set(mids(three_days).values()) == {1}
    assert sum(mids(three_days).values()) == 65
    assert all(finding.level == "ok" for finding in inspection.check(three_days))


def test_vacuum_deletes_what_was_replaced_and_left_over_and_nothing_else(three_days):
    orphan = Path(three_days.store.uri) / "events" / "dt=2026-11-20" / "part-orphan.zstd.parquet"
    orphan.write_bytes(b"")
    upkeep.compact(three_days)
    assert upkeep.vacuum(three_days, 7 * 86_400)["events"] == 0
    assert upkeep.vacuum(three_days, 60)["events"] == 0
    assert upkeep.vacuum(three_days, 0)["events"] == 7
    assert len(paths(three_days)) == 3
    assert sum(mids(three_days).values()) == 60


def test_vacuum_of_a_bucket_leaves_files_alone_that_may_be_being_written(lake):
    bucket = type(lake)(LakeStore("s3://bucket/lake"))
    with pytest.raises(ConfigError, match="must be at least 1h"):
        upkeep.vacuum(bucket, 60)


def test_expiring_drops_whole_days_before_the_time(three_days):
    [done] = upkeep.expire(three_days, 86_400, now=NOON)
    assert (done.rows, done.days, done.before) == (20, 1, "2026-11-20")
    assert {one.dt for one in live_files(three_days.table("events"))} == {
        "2026-11-20",
        "2026-11-21",
    }
    assert state_of(three_days, EVENTS).expired == 20
    assert all(finding.level == "ok" for finding in inspection.check(three_days))


def test_expiring_drops_nothing_when_the_time_is_before_all_days(three_days):
    [done] = upkeep.expire(three_days, 1e12, now=NOON)
    assert (done.rows, done.before) == (0, "1970-01-01")


def test_check_is_content_when_a_failover_lost_events_that_were_read_already(
    lake, ingest, valkey_client, write
):
    key = offsets.events_key(valkey_client.namespace, "low")
    write("low", 12)
    copied = valkey_client.command("DUMP", key)
    write("low", 8, first=13)
    ingest.events()
    valkey_client.command("RESTORE", key, 0, copied, "REPLACE")
    write("low", 3, first=21)
    assert ingest.events().rows == 3
    assert [one.text for one in inspection.check(lake) if one.level == "fail"] == []


def test_check_tells_offsets_that_go_back(lake, ingest, write):
    write("low", 12)
    ingest.events()
    delta = lake.made("events")
    state = state_of(lake, EVENTS)
    back = state.following({"low": LogOffset(f"{DAY + 5}-0", 12)}, 0, {})
    commit_files(lake, "events", delta, [], back)
    found = [one.text for one in inspection.check(lake) if one.level == "fail"]
    assert len(found) == 1
    assert "batch 2: low goes back from" in found[0]


def test_check_tells_a_missing_file_a_short_one_and_a_double_row(three_days):
    first, second, *_ = paths(three_days)
    first.unlink()
    second.write_bytes(paths(three_days)[-1].read_bytes()[:-50])
    bad = [finding.text for finding in inspection.check(three_days) if finding.level == "fail"]
    assert len(bad) == 2
    assert all("can't be read" in text for text in bad)


@pytest.mark.parametrize(("most", "at_once"), [(3, 10**6), (10**6, 10**6), (10**6, 3)])
def test_check_tells_rows_that_are_there_twice(three_days, monkeypatch, most, at_once):
    from jobq.pipeline.lake.commit import commit_files
    from jobq.pipeline.lake.files import DataFileWriter, rows_of_files

    store = three_days.below("events")
    writer = DataFileWriter(store, EVENTS)
    for found in rows_of_files(store, live_files(three_days.table("events"))[:1]):
        writer.add(found)
    delta = three_days.table("events")
    commit_files(three_days, "events", delta, [file.action() for file in writer.finish()])
    monkeypatch.setattr(inspection, "SEARCH_ROWS", most)
    monkeypatch.setattr(inspection, "GROUPED_ROWS", at_once)
    bad = [finding.text for finding in inspection.check(three_days) if finding.level == "fail"]
    files = live_files(delta, "2026-11-19", "2026-11-19")
    assert (len(list(inspection._searches(store, EVENTS, files))) > 3) is (most == 3)
    assert bad == [
        "2026-11-19: 10 duplicate rows",
        "70 rows, but 60 were committed and 0 expired",
    ]


def test_check_tells_what_was_lost_as_a_note(three_days, valkey_client, write):
    write("q2", 30, first=600)
    valkey_client.command("XTRIM", "jobq:{q2}:events", "MINID", f"{DAY + 620}-0")
    Ingest(three_days, valkey_client, Engine("local")).events()
    notes = [f.text for f in inspection.check(three_days) if f.level == "note"]
    assert notes == ["q2: 20 entries were dropped before they were read"]


def test_stats_tell_rows_bytes_days_and_backlog(three_days, valkey_client, write):
    [one] = inspection.stats(three_days)
    assert (one.table, one.rows, one.files, one.batch) == ("events", 60, 6, 2)
    assert (one.first_day, one.last_day) == ("2026-11-19", "2026-11-21")
    assert one.bytes == sum(path.stat().st_size for path in paths(three_days))
    write("q2", 7, first=700)
    write("new", 3, first=800)
    behind = {one.queue: one.backlog for one in inspection.backlog(three_days, valkey_client)}
    assert behind == {"q0": 0, "q1": 0, "q2": 7, "new": 3}


def test_marks_are_kept_in_the_order_of_their_times(lake):
    mark(lake, "v2", NOON)
    mark(lake, "v1", NOON - timedelta(days=1))
    assert marks(lake) == [("v1", NOON - timedelta(days=1)), ("v2", NOON)]
    with pytest.raises(ConfigError, match="printable"):
        mark(lake, "\n")
