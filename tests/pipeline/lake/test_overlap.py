"""Two processes work on a lake concurrently, as in a bucket, which doesn't have locks."""

from __future__ import annotations

from datetime import UTC, datetime
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest
from deltalake.transaction import RemoveAction

from jobq.errors import LakeError
from jobq.pipeline import offsets
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import commit, dead_messages, inspection, upkeep
from jobq.pipeline.lake.ingest import Ingest, one_round
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.pipeline.lake.conftest import DAY, rows

#: Two days after the events.
LATER = datetime.fromtimestamp(DAY / 1000 + 2 * 86_400, UTC)


def bury_one(client: Any) -> None:
    """m1 of queue low is dead."""
    queue = Queue("low", client)
    queue.enqueue(b"x", mid="m1")
    [held] = queue.dequeue(1).messages
    queue.finish([Ending(mid=held.mid, token=held.token, outcome="dead", reason="no")])


def test_rows_expired_while_a_batch_was_read_stay_counted(lake, valkey_client, write):
    class Meanwhile(Engine):
        def run_units(self, function: Any, units: Any, rows: int) -> Any:
            upkeep.expire(lake, 0, now=LATER)
            return super().run_units(function, units, rows)

    write("low", 3)
    Ingest(lake, valkey_client, Engine("local")).events()
    write("low", 4, first=4)
    Ingest(lake, valkey_client, Meanwhile("local")).events()
    assert [one.text for one in inspection.check(lake) if one.level == "fail"] == []


def test_check_is_content_when_upkeep_says_an_earlier_batch_again(
    lake, ingest, valkey_client, write, monkeypatch
):
    plain = commit._write_transaction

    def meanwhile(*args: Any) -> None:
        monkeypatch.setattr(commit, "_write_transaction", plain)
        write("low", 4, first=4)
        assert ingest.events().rows == 4
        plain(*args)

    for first in (1, 2):
        write("low", 1, first=first)
        ingest.events()
    monkeypatch.setattr(commit, "_write_transaction", meanwhile)
    upkeep.compact(lake)
    assert [one.text for one in inspection.check(lake) if one.level == "fail"] == []


def test_expired_rows_are_remembered_when_a_batch_comes_before_their_commit(
    lake, ingest, write, monkeypatch
):
    plain = commit._write_transaction

    def meanwhile(*args: Any) -> None:
        monkeypatch.setattr(commit, "_write_transaction", plain)
        write("low", 4, first=21)
        assert ingest.events().rows == 4
        plain(*args)

    write("low", 20)
    ingest.events()
    monkeypatch.setattr(commit, "_write_transaction", meanwhile)
    [done] = upkeep.expire(lake, 0, now=LATER)
    assert (done.rows, rows(lake)) == (24, [])
    _assert_all_counted(lake, expired=24)


def test_expiry_gives_way_when_batch_after_batch_comes_first(lake, ingest, write, monkeypatch):
    plain, others = commit._write_transaction, []

    def meanwhile(delta: Any, actions: list[Any], *args: Any) -> None:
        if any(isinstance(one, RemoveAction) for one in actions):
            others.append(None)
            write("low", 1, first=1 + len(others))
            ingest.events()
        plain(delta, actions, *args)

    write("low", 1)
    ingest.events()
    monkeypatch.setattr(commit, "_write_transaction", meanwhile)
    with pytest.raises(commit.CommitConflictError, match="nothing was changed, try again"):
        upkeep.expire(lake, 0, now=LATER)
    assert len(rows(lake)) == 1 + len(others)
    _assert_all_counted(lake, expired=0)


def test_expired_rows_are_remembered_when_they_go_before_a_batch_is_committed(
    lake, ingest, write, monkeypatch
):
    plain = commit._write_transaction

    def meanwhile(*args: Any) -> None:
        monkeypatch.setattr(commit, "_write_transaction", plain)
        upkeep.expire(lake, 0, now=LATER)
        plain(*args)

    write("low", 20)
    ingest.events()
    write("low", 4, first=21)
    monkeypatch.setattr(commit, "_write_transaction", meanwhile)
    assert one_round(ingest, lambda one: None, lambda: False).events == 4
    assert len(rows(lake)) == 4
    _assert_all_counted(lake, expired=20)


def _assert_all_counted(lake: Any, expired: int) -> None:
    assert [one.text for one in inspection.check(lake) if one.level == "fail"] == []
    [events] = inspection.stats(lake)
    assert events.expired == expired


def test_dead_are_kept_once_when_two_ingests_overlap(lake, ingest, valkey_client, monkeypatch):
    read = dead_messages.dead_batches
    bury_one(valkey_client)

    def meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(dead_messages, "dead_batches", read)
        assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 1
        return read(*args)

    monkeypatch.setattr(dead_messages, "dead_batches", meanwhile)
    assert one_round(ingest, lambda one: None, lambda: False).dead == 0
    assert [row["mid"] for row in rows(lake, "dead")] == ["m1"]
    assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 0


def test_files_of_the_dead_are_deleted_when_their_commit_is_refused(
    lake, valkey_client, monkeypatch
):
    plain = commit._write_transaction
    bury_one(valkey_client)

    def meanwhile(*args: Any) -> None:
        monkeypatch.setattr(commit, "_write_transaction", plain)
        assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 1
        plain(*args)

    monkeypatch.setattr(commit, "_write_transaction", meanwhile)
    with pytest.raises(commit.CommitConflictError):
        dead_messages.keep_dead(lake, valkey_client, ["low"])
    assert len(_files(lake, "dead")) == len(rows(lake, "dead")) == 1


def test_files_of_the_quarantine_are_deleted_when_their_commit_is_refused(
    lake, ingest, valkey_client, write, monkeypatch
):
    write("low", 1)
    plain, key = commit._write_transaction, offsets.events_key(valkey_client.namespace, "low")
    valkey_client.command("XADD", key, f"{DAY + 2}-0", "1", "no record")

    def meanwhile(*args: Any) -> None:
        monkeypatch.setattr(commit, "_write_transaction", plain)
        assert ingest.events().bad == 1
        plain(*args)

    monkeypatch.setattr(commit, "_write_transaction", meanwhile)
    with pytest.raises(commit.CommitConflictError):
        ingest.events()
    assert len(_files(lake, "quarantine")) == len(rows(lake, "quarantine")) == 1
    assert len(_files(lake, "events")) == len(rows(lake)) == 1


def test_commit_is_told_to_count_when_it_cannot_be_synced(lake, ingest, write, monkeypatch):
    def full(*args: Any) -> None:
        raise OSError(ENOSPC, "No space left on device")

    write("low", 3)
    monkeypatch.setattr(commit, "_settle", full)
    with pytest.raises(LakeError, match="it is committed") as raised:
        ingest.events()
    assert "nothing" not in str(raised.value)
    monkeypatch.undo()
    assert len(rows(lake)) == 3
    assert ingest.events().rows == 0


def _files(lake: Any, name: str) -> list[Path]:
    return list((Path(lake.store.uri) / name).rglob("*.parquet"))
