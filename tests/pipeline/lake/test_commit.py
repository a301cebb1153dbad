"""Offsets in commits: each batch has a file of them, which is kept while another program may read it."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobq.errors import LakeError
from jobq.pipeline import offsets
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import commit, inspection, rollup, upkeep
from jobq.pipeline.lake.commit import (
    KEPT,
    CommitConflictError,
    Loss,
    OffsetsUntoldError,
    losses,
    record_of,
    state_of,
)
from jobq.pipeline.lake.files import live_files
from jobq.pipeline.lake.ingest import Ingest
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.store import LakeStore
from jobq.pipeline.lake.tables import EVENTS
from tests.pipeline.lake.conftest import DAY, mids

LATER = datetime.fromtimestamp(DAY / 1000 + 2 * 86_400, UTC)


def stored(lake: Lake) -> list[str]:
    """The files of offsets, in the order of their batches."""
    folder = Path(lake.below("events").uri)
    return sorted(str(path.relative_to(folder)) for path in folder.glob("_offsets/*"))


def faults(lake: Lake) -> list[str]:
    return [one.text for one in inspection.check(lake) if one.level == "fail"]


def test_offsets_are_those_of_the_streams_whatever_upkeep_commits_between(
    lake, valkey_client, write
):
    work, chance, written = Ingest(lake, valkey_client, Engine("local")), random.Random(7), 0
    for step in range(KEPT + 4):
        for queue in chance.sample([f"q{number}" for number in range(3 + step // 4)], 3):
            written += 1
            write(queue, 1, first=written)
        work.events()
        if chance.random() < 0.3:
            upkeep.compact(lake)
        if step == 11:
            upkeep.expire(lake, 0, now=LATER)
            upkeep.vacuum(lake, 0)
        state = state_of(lake, EVENTS)
        tails = work._tails(list(state.places))
        assert {name: one.place for name, one in tails.items()} == state.places
        assert stored(lake) == sorted(state.offsets)
    assert state.batch == KEPT + 4 and len(state.offsets) == KEPT
    assert faults(lake) == []


def test_file_of_offsets_is_deleted_when_its_commit_is_refused(lake, ingest, write):
    write("low", 1)
    ingest.events()
    state = state_of(lake, EVENTS)
    version = lake.made("events")
    write("low", 1, first=2)
    ingest.events()
    before = stored(lake)
    with pytest.raises(CommitConflictError):
        commit.commit_files(lake, "events", version, [], state.following({}, 0, {}))
    assert stored(lake) == before


def test_vacuum_deletes_files_of_offsets_that_no_batch_names(lake, ingest, write):
    write("low", 1)
    ingest.events()
    orphan = Path(lake.below("events").uri, "_offsets", "2-dead.json")
    orphan.write_text("{}")
    assert upkeep.vacuum(lake, 3600)["events"] == 0 and orphan.exists()
    assert upkeep.vacuum(lake, 0)["events"] == 1
    assert stored(lake) == list(state_of(lake, EVENTS).offsets)


def test_losses_are_counted_with_the_time_in_which_they_came(
    lake, ingest, valkey_client, write, monkeypatch
):
    for queue, first in (("a", 1), ("b", 101), ("c", 201)):
        write(queue, 10, first=first)
    ingest.events()
    for queue, first in (("a", 11), ("b", 111)):
        write(queue, 10, first=first)
        valkey_client.command("XTRIM", offsets.events_key("jobq", queue), "MAXLEN", 4)
        ingest.events()
    assert state_of(lake, EVENTS).lost == {"a": 6, "b": 6}
    assert losses(lake) == [Loss("a", 6, DAY + 10, DAY + 20), Loss("b", 6, DAY + 110, DAY + 120)]
    assert sum(mids(lake).values()) == 38
    # The log no longer has the commit of the first loss, and the totals do.
    plain = commit.batches
    monkeypatch.setattr(commit, "batches", lambda delta: plain(delta)[2:])
    assert losses(lake) == [Loss("b", 6, DAY + 110, DAY + 120), Loss("a", 6, 0, DAY + 20)]


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text('{"places": {"lo')])
def test_offsets_without_their_file_are_told_and_adopted(
    lake, ingest, valkey_client, write, damage
):
    write("q0", 2)
    ingest.events()
    write("q1", 1, first=50)
    ingest.events()
    record = record_of(lake.table("events"), EVENTS.app)
    damage(Path(lake.below("events").uri, record.offsets[0]))
    with pytest.raises(
        OffsetsUntoldError, match=f"{record.offsets[0]} is missing or damaged.*--adopt"
    ):
        ingest.events()
    commit.adopt(lake, valkey_client)
    assert ingest.events().rows == 0
    write("q1", 1, first=60)
    assert ingest.events().rows == 1
    assert set(mids(lake).values()) == {1}


def test_file_of_offsets_that_cannot_be_read_is_not_taken_for_none(
    lake, ingest, valkey_client, write
):
    write("low", 2)
    ingest.events()
    newest = state_of(lake, EVENTS).offsets[0]
    path = Path(lake.below("events").uri, newest)
    path.rename(path.with_suffix(".away"))
    path.mkdir()
    for read in (ingest.events, lambda: commit.adopt(lake, valkey_client)):
        with pytest.raises(LakeError) as raised:
            read()
        assert not isinstance(raised.value, OffsetsUntoldError)


def test_log_without_the_last_batch_is_told_and_adopted(lake, ingest, valkey_client, write):
    write("low", 3)
    ingest.events()
    delta = lake.table("events")
    delta.alter.set_table_properties({"delta.appendOnly": "false"})
    delta.create_checkpoint()
    log = Path(lake.below("events").uri) / "_delta_log"
    for path in sorted(log.glob("*.json"))[:-1]:
        path.unlink()
    with pytest.raises(OffsetsUntoldError, match="--adopt"):
        state_of(lake, EVENTS)
    commit.adopt(lake, valkey_client)
    assert ingest.events().rows == 0
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


def test_ingest_does_not_go_on_from_a_batch_that_a_restored_lake_never_had(lake, ingest, write):
    write("low", 2)
    ingest.events()
    other = replace(state_of(lake, EVENTS), offsets=("_offsets/of another history.json",))
    with pytest.raises(CommitConflictError):
        commit.commit_batch(lake, EVENTS, [], other.following({}, 0, {}))


def test_file_and_new_folders_are_synced_before_a_commit_names_the_file(tmp_path, monkeypatch):
    synced, opened, real = [], {}, commit.os.open

    def opening(path, *flags):
        handle = real(path, *flags)
        opened[handle] = str(Path(path))
        return handle

    monkeypatch.setattr("jobq.pipeline.lake.store.os.open", opening)
    monkeypatch.setattr(
        "jobq.pipeline.lake.store.os.fsync", lambda handle: synced.append(opened[handle])
    )
    commit.write_file(LakeStore(str(tmp_path)), "new/file", b"x")
    assert synced == [str(tmp_path / "new" / "file"), str(tmp_path / "new"), str(tmp_path)]
