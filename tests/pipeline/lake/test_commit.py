"""What commits say of offsets: all of them, or those that changed since the commit before."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobq.errors import LakeError
from jobq.pipeline import offsets
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import commit, inspection, rollup, upkeep
from jobq.pipeline.lake.commit import FullCopy, losses, state_of, states
from jobq.pipeline.lake.files import live_files
from jobq.pipeline.lake.ingest import Ingest
from jobq.pipeline.lake.tables import EVENTS
from tests.pipeline.lake.conftest import DAY, mids

LATER = datetime.fromtimestamp(DAY / 1000 + 2 * 86_400, UTC)


@pytest.fixture
def many(monkeypatch):
    """Tables of three queues count as tables of many."""
    monkeypatch.setattr(commit, "FEW_PLACES", 2)


def records(lake):
    """The metadata of the commits, oldest first."""
    return list(commit._records(lake.table("events"), None))[::-1]


def read_anew(lake):
    """The state as another process reads it."""
    commit._KNOWN.clear()
    return state_of(lake.table("events"), EVENTS.app)


def test_each_commit_has_all_offsets_when_a_lake_has_few_queues(lake, ingest, write):
    for number in range(3):
        write("low", 1, first=number + 1)
        ingest.events()
    assert all(record["places"]["low"] for record in records(lake))


def test_offsets_are_the_same_when_commits_have_changes_only(
    lake, valkey_client, write, many, monkeypatch
):
    monkeypatch.setattr(commit, "COPY_EVERY", 5)
    work, chance, written = Ingest(lake, valkey_client, Engine("local")), random.Random(7), 0
    for step in range(24):
        for queue in chance.sample([f"q{number}" for number in range(3 + step // 4)], 3):
            written += 1
            write(queue, 1, first=written)
        work.events()
        if chance.random() < 0.3:
            upkeep.compact(lake)
        if step == 11:
            upkeep.expire(lake, 0, now=LATER)
            upkeep.vacuum(lake, 0)
        state = state_of(lake.table("events"), EVENTS.app)
        assert read_anew(lake) == state
        tails = work._tails(list(state.places))
        assert {name: one.place for name, one in tails.items()} == state.places

    told = [one for one in records(lake) if one.get("whole")]
    assert 3 < len(told) < 12
    assert list(states(lake.table("events")))[-1].places == state.places
    assert [one.text for one in inspection.check(lake) if one.level == "fail"] == []


def test_losses_are_counted_when_commits_have_changes_only(
    lake, ingest, valkey_client, write, many
):
    for queue, first in (("a", 1), ("b", 101), ("c", 201)):
        write(queue, 10, first=first)
    ingest.events()
    for queue, first in (("a", 11), ("b", 111)):
        write(queue, 10, first=first)
        valkey_client.command("XTRIM", offsets.events_key("jobq", queue), "MAXLEN", 4)
        ingest.events()
    assert dict(read_anew(lake).lost) == {"a": 6, "b": 6}
    assert [(one.queue, one.nevents) for one in losses(lake.table("events"))] == [
        ("a", 6), ("b", 6),
    ]  # fmt: skip
    assert sum(mids(lake).values()) == 38


def test_log_without_a_full_copy_is_told_and_adopted(lake, ingest, valkey_client, write, many):
    for number in range(3):
        write(f"q{number}", 2, first=number * 10 + 1)
    ingest.events()
    write("q0", 1, first=50)
    ingest.events()
    log = Path(lake.store.uri) / "events" / "_delta_log"
    lake.table("events").create_checkpoint()
    for path in sorted(log.glob("*.json"))[:-1]:
        path.unlink()
    with pytest.raises(LakeError, match="--adopt"):
        read_anew(lake)
    commit.adopt(lake, valkey_client)
    assert ingest.events().rows == 0
    write("q1", 1, first=60)
    assert ingest.events().rows == 1
    assert set(mids(lake).values()) == {1}


def test_lake_that_cannot_be_read_is_not_taken_for_one_without_offsets(
    lake, ingest, valkey_client, write
):
    write("low", 2)
    ingest.events()
    events = lake.table("events")
    new = rollup.Unread(0, live_files(events), True)
    assert rollup._first_day(lake, new) == min(one.dt for one in new.files)
    log = Path(lake.store.uri) / "events" / "_delta_log"
    [newest] = sorted(log.glob("*.json"))[-1:]
    newest.write_text("")
    for read in (lambda: commit.adopt(lake, valkey_client), lambda: rollup._first_day(lake, new)):
        with pytest.raises(LakeError):
            read()


def test_ingest_does_not_go_on_from_a_batch_that_a_restored_lake_never_had(
    lake, ingest, write, many
):
    for number in range(3):
        write(f"q{number}", 2, first=number * 10 + 1)
    ingest.events()
    state = state_of(lake.table("events"), EVENTS.app)
    other = state.following({}, 0, {})
    other = replace(other, previous=replace(state, uid="of another history"))
    with pytest.raises(commit.CommitConflictError):
        commit.commit_batch(lake, EVENTS, [], other)


@pytest.mark.parametrize(
    ("version", "at_ms", "due"), [(80, -9, False), (81, -9, True), (70, -2 * 86_400_000, True), (70, 9e9, True)],
)  # fmt: skip
def test_full_copy_is_due_after_some_commits_or_a_day(version, at_ms, due):
    now = time.time_ns() // 1_000_000
    assert FullCopy(61, now + int(at_ms)).is_due(version) is due
