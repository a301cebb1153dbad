"""Entries get into the lake once each, whatever their streams go through."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from jobq.durations import DAY_MS
from jobq.errors import LakeError, UnavailableError
from jobq.pipeline import offsets
from jobq.pipeline.decode import TimeBounds
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import inspection, partitions, upkeep
from jobq.pipeline.lake.commit import CommitConflictError, state_of
from jobq.pipeline.lake.ingest import Ingest, IngestOptions
from jobq.pipeline.lake.tables import EVENTS, TOPICS
from jobq.queue import directory
from jobq.queue.queue import Queue
from jobq.topics import Record, Topic
from tests.pipeline.lake.conftest import DAY, batches, mids, rows


def once(first: int, last: int) -> Counter[str]:
    """Each of the events that `write` numbers so, once."""
    return Counter(f"m{number}" for number in range(first, last + 1))


def trim(client, queue: str, first: int) -> None:
    """Keep entries starting at that number."""
    client.command("XTRIM", offsets.events_key("jobq", queue), "MINID", f"{DAY + first}-0")


def test_events_of_all_queues_arrive_once_when_ingested_again_and_again(ingest, write, lake):
    write("low", 30)
    write("high", 20, first=31)
    assert ingest.events().rows == 50
    assert ingest.events().rows == 0
    write("low", 5, first=51)
    assert ingest.events()[:2] == ("events", 5)
    assert mids(lake) == once(1, 55)


def test_event_reads_as_it_was_written(ingest, write, lake):
    write("low", 1)
    ingest.events()
    [row] = rows(lake)
    at = datetime.fromtimestamp(DAY / 1000, UTC)
    assert row["finished_at"] == row["entry_at"] == at.replace(microsecond=1000)
    assert row["enqueued_at"].timestamp() * 1000 == DAY - 49
    assert (row["wait_ms"], row["run_us"], row["job"], row["queue"]) == (
        30,
        20_000,
        "app.resize",
        "low",
    )


def test_queue_that_appears_later_is_read_from_its_first_event(ingest, write, lake):
    write("low", 3)
    ingest.events()
    write("late", 2, first=4)
    assert ingest.events().rows == 2
    assert mids(lake) == once(1, 5)


def test_only_named_queues_are_read_when_some_are_named(lake, valkey_client, write):
    write("low", 3)
    write("high", 3, first=4)
    one = Ingest(lake, valkey_client, Engine("local"), IngestOptions(names=["high"]))
    assert one.events().rows == 3
    assert mids(lake) == once(4, 6)
    assert Ingest(lake, valkey_client, Engine("local")).events().rows == 3


@pytest.mark.parametrize(("most", "size"), [(10, 100), (25, 7), (1000, 7), (60, 1)])
def test_batches_hold_about_as_much_as_they_may_and_together_everything(
    lake, valkey_client, write, most, size
):
    write("low", 70)
    write("high", 30, first=71, at=DAY + 500)
    work = Ingest(
        lake,
        valkey_client,
        Engine("local"),
        IngestOptions(max_rows=most, partition_entries=size),
    )
    found = [batch.rows for batch in batches(work)]
    assert sum(found) == 100
    assert max(found) <= max(most, size) * 3
    assert mids(lake) == once(1, 100)


def test_many_queues_share_round_trips_and_a_broken_one_harms_itself_alone(
    lake, valkey_client, write, monkeypatch
):
    calls, plain, broken = [], partitions.read_together, []

    def counted(client: Any, asked: Any) -> Any:
        calls.append(len(asked))
        return plain(client, asked)

    monkeypatch.setattr(partitions, "read_together", counted)
    work = Ingest(
        lake, valkey_client, Engine("local"), problem=lambda what, error: broken.append(what)
    )
    names = [f"q{number:03}" for number in range(350)]
    for number, name in enumerate(names):
        write(name, 2, first=number * 2 + 1)
    valkey_client.command("SET", offsets.events_key("jobq", "wrong"), "text")
    directory.register_queues(valkey_client, ["wrong"])
    assert (work.events().rows, calls, broken) == (700, [300, 50], ["events of queue wrong"])
    assert mids(lake) == once(1, 700)
    assert {row["queue"] for row in rows(lake)} == set(names)
    valkey_client.command("XADD", offsets.events_key("jobq", "q007"), f"{DAY + 800}-0", "1", "x")
    write("q008", 1, first=801)
    assert work.events()[1:4] == (1, 1, 1)
    [kept] = rows(lake, "quarantine")
    assert kept["queue"] == "q007"
    assert [row["queue"] for row in rows(lake) if row["mid"] == "m801"] == ["q008"]
    assert [one.text for one in inspection.check(lake) if one.level == "fail"] == []


def test_uneven_stream_is_read_whole_when_parts_are_cut_by_their_limit(lake, valkey_client, write):
    """A year of silence, then a burst: cut by time, one part holds nearly everything."""
    write("low", 1, at=DAY - 365 * 86_400_000)
    write("low", 300, first=2)
    work = Ingest(
        lake,
        valkey_client,
        Engine("local"),
        IngestOptions(max_rows=50, partition_entries=5),
    )
    assert sum(batch.rows for batch in batches(work)) == 301
    assert mids(lake) == once(1, 301)


def test_loss_by_trimming_is_told_to_the_entry(ingest, write, lake, valkey_client):
    write("low", 10)
    ingest.events()
    write("low", 40, first=11)
    trim(valkey_client, "low", 36)
    batch = ingest.events()
    assert (batch.rows, dict(batch.lost)) == (15, {"low": 25})
    write("low", 2, first=51)
    assert not ingest.events().lost
    state = state_of(lake, EVENTS)
    assert (state.rows, dict(state.lost)) == (27, {"low": 25})


@pytest.mark.parametrize("most", [7, 20, 1000])
def test_loss_is_exact_in_sum_when_entries_are_dropped_between_batches(
    lake, valkey_client, write, most
):
    write("low", 100)
    work = Ingest(
        lake,
        valkey_client,
        Engine("local"),
        IngestOptions(max_rows=most, partition_entries=5),
    )
    read = work.events().rows
    trim(valkey_client, "low", 61)
    found = list(batches(work))
    lost = sum(batch.lost.get("low", 0) for batch in found)
    assert read + sum(batch.rows for batch in found) + lost == 100
    assert lost == max(0, 60 - read)
    assert set(mids(lake).values()) == {1}


def test_rest_is_read_when_all_of_the_first_part_is_dropped_before_it_is_read(
    lake, valkey_client, write
):
    class Late(Engine):
        def run_units(self, function: Any, units: Any, rows: int) -> Any:
            trim(valkey_client, "low", 601)
            return super().run_units(function, units, rows)

    write("low", 1_000)
    work = Ingest(
        lake, valkey_client, Late("local"), IngestOptions(max_rows=200, partition_entries=50)
    )
    done = list(batches(work))
    assert sum(one.rows for one in done) == sum(mids(lake).values()) == 400
    assert sum(one.lost.get("low", 0) for one in done) == 600


def test_overrun_is_told_in_seconds_before_anything_is_lost(ingest, lake, valkey_client):
    """The last look was 100 s ago; 60 events came since, and the stream keeps 100."""
    queue, key = Queue("low", valkey_client), offsets.events_key("jobq", "low")
    directory.register_queues(valkey_client, ["low"])
    queue.admin.events_maxlen(100)
    then = valkey_client.clock_ms() - 100_000

    def add(first: int, last: int) -> None:
        for number in range(first, last + 1):
            value = f"done\x1fm{number}\x1f{then + number}"
            valkey_client.command("XADD", key, f"{then + number}-0", "1", value)

    add(1, 10)
    assert ingest.events().overruns == {}
    assert [one.overruns_in_s for one in inspection.backlog(lake, valkey_client)] == [None]
    add(11, 70)
    [behind] = inspection.backlog(lake, valkey_client)
    assert behind.overruns_in_s == pytest.approx(100 * 40 / 60, rel=0.5)
    assert behind.overruns_in_s < behind.behind_s, "as the alert JobqLakeBehind asks"
    one = ingest.events().overruns["low"]
    assert (one.unread, one.kept, one.is_near) == (60, 100, True)
    assert one.seconds == pytest.approx(one.lag_s * 40 / 60)
    add(71, 110)
    assert ingest.events().overruns == {}
    valkey_client.command("HSET", "jobq:{low}:meta", "maxlen", "many")
    add(111, 200)
    assert ingest.events().overruns == {}


def test_stream_made_anew_is_read_from_its_begin_and_told(ingest, write, lake, valkey_client):
    write("low", 10)
    ingest.events()
    valkey_client.command("DEL", offsets.events_key("jobq", "low"))
    assert list(ingest.events().remade) == ["low"]
    assert not ingest.events().remade
    write("low", 4, first=11)
    batch = ingest.events()
    assert (batch.rows, dict(batch.lost)) == (4, {})
    assert mids(lake) == once(1, 14)


def test_streams_hold_only_what_isnt_committed_when_trimmed(lake, valkey_client, write):
    write("low", 10)
    work = Ingest(
        lake,
        valkey_client,
        Engine("local"),
        IngestOptions(max_rows=6, partition_entries=3, trim=True),
    )
    read = work.events().rows
    assert valkey_client.command("XLEN", offsets.events_key("jobq", "low")) == 10 - read
    assert not any(batch.lost for batch in batches(work))
    assert valkey_client.command("XLEN", offsets.events_key("jobq", "low")) == 0
    write("low", 1, first=11)
    assert not work.events().lost
    assert mids(lake) == once(1, 11)


def test_undecodable_entries_are_kept_with_bytes_and_reason(ingest, write, lake, valkey_client):
    write("low", 3)
    key = offsets.events_key("jobq", "low")
    valkey_client.command("XADD", key, f"{DAY + 4}-0", "1", b"done\x1fm\x1fsoon")
    valkey_client.command("XADD", key, f"{DAY + 5}-0", "9", b"\xff\x00")
    batch = ingest.events()
    assert (batch.rows, batch.bad) == (3, 2)
    first, second = sorted(rows(lake, "quarantine"), key=lambda row: row["entry_id"])
    assert (first["queue"], first["entry_id"], first["content"]) == (
        "low", f"{DAY + 4}-0", b"done\x1fm\x1fsoon",
    )  # fmt: skip
    assert "finished_at" in first["reason"]
    assert (second["version"], second["content"]) == ("9", b"\xff\x00")
    assert ingest.events().bad == 0


YEAR_9999 = 253_402_300_799_000


@pytest.mark.parametrize(
    "value",
    [
        f"done\x1fm\x1f{YEAR_9999}",
        "done\x1fm\x1f1",
        f"done\x1fm\x1f{DAY - 2 * DAY_MS}",
        f"done\x1fm\x1f{{now}}\x1fapp.x\x1f1\x1f{YEAR_9999}",
        "done\x1fm\x1f{later}",
        "done\x1fm\x1f{now}\x1fapp.x\x1f1\x1f{later}",
        f"rested\x1fm\x1f{YEAR_9999}",
    ],
)
def test_event_of_a_time_that_cannot_be_is_quarantined_and_breaks_nothing(
    ingest, write, lake, valkey_client, value
):
    write("low", 30)
    now = round(time.time() * 1000)
    told = value.format(now=now, later=now + DAY_MS + 3_600_000)
    valkey_client.command("XADD", offsets.events_key("jobq", "low"), f"{DAY + 31}-0", "1", told)
    write("low", 5, first=32)
    batch = ingest.events()
    assert (batch.rows, batch.bad) == (35, 1)
    [kept] = rows(lake, "quarantine")
    assert (kept["content"], "is out of range; it must be between" in kept["reason"]) == (
        told.encode(),
        True,
    )
    assert [one.level for one in inspection.check(lake)].count("fail") == 0


def test_event_is_no_less_true_when_its_message_was_delayed_or_its_entry_is_ahead(
    ingest, write, lake, valkey_client
):
    """After a hostile id all ids of a stream run ahead; a message may be older than its queue's history."""
    write("low", 1)
    key = offsets.events_key("jobq", "low")
    old = f"done\x1fold\x1f{DAY + 9}\x1fapp.x\x1f1\x1f{DAY - 400 * DAY_MS}"
    valkey_client.command("XADD", key, f"{DAY + 9}-0", "1", old)
    valkey_client.command("XADD", key, f"{YEAR_9999}-0", "1", f"done\x1fm\x1f{DAY + 10}")
    valkey_client.command("XADD", key, "*", "1", f"done\x1fafter\x1f{DAY + 11}")
    assert (ingest.events().bad, sorted(mids(lake))) == (0, ["after", "m", "m1", "old"])


def test_late_event_reaches_an_old_day_when_the_lake_has_such(ingest, write, lake, valkey_client):
    write("old", 1, at=DAY - 60 * DAY_MS)
    ingest.events()
    write("low", 1)
    late = f"done\x1flate\x1f{DAY - 50 * DAY_MS}"
    valkey_client.command("XADD", offsets.events_key("jobq", "low"), f"{DAY + 9}-0", "1", late)
    assert ingest.events().bad == 0


def test_lake_that_has_an_event_of_the_year_9999_is_checked_compacted_and_counted(
    lake, valkey_client, write
):
    """An earlier release took such events."""

    class Earlier(Ingest):
        def _bounds(self, tails: object) -> TimeBounds:
            return TimeBounds(0, YEAR_9999)

    write("low", 3)
    value = f"done\x1fm\x1f{YEAR_9999}"
    valkey_client.command("XADD", offsets.events_key("jobq", "low"), f"{DAY + 31}-0", "1", value)
    Earlier(lake, valkey_client, Engine("local")).events()
    upkeep.compact(lake)
    assert [one.text for one in inspection.check(lake) if one.level == "fail"] == []
    [stats] = inspection.stats(lake)
    assert (stats.rows, stats.last_day) == (4, "9999-12-31")


def test_quarantine_has_an_entry_once_when_its_batch_is_made_again(
    ingest, write, lake, valkey_client, monkeypatch
):
    """The process dies between the quarantine's commit and the batch's."""
    write("low", 3)
    key = offsets.events_key("jobq", "low")
    valkey_client.command("XADD", key, f"{DAY + 4}-0", "1", b"nonsense")

    def dies(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("jobq.pipeline.lake.ingest.commit_batch", dies)
        with pytest.raises(KeyboardInterrupt):
            ingest.events()
    assert rows(lake) == []
    valkey_client.command("XADD", key, f"{DAY + 5}-0", "1", b"more nonsense")
    assert (ingest.events().rows, len(rows(lake, "quarantine"))) == (3, 2)


def test_quarantine_has_an_entry_once_when_one_of_an_unknown_version_comes_behind_others(
    ingest, write, lake, valkey_client, monkeypatch
):
    write("low", 3)
    key = offsets.events_key("jobq", "low")
    for place, version in ((4, "1"), (5, "77")):
        valkey_client.command("XADD", key, f"{DAY + place}-0", version, b"nonsense")

    def dies(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("jobq.pipeline.lake.ingest.commit_batch", dies)
        with pytest.raises(KeyboardInterrupt):
            ingest.events()
    ingest.events()
    assert len(rows(lake, "quarantine")) == 2


def test_batches_of_topics_hold_no_more_than_they_may(lake, valkey_client):
    for name in ("orders", "prices"):
        Topic(name, valkey_client).append_many([Record(b"%d" % n) for n in range(100)])
    work, counts = (
        Ingest(lake, valkey_client, Engine("local"), IngestOptions(max_rows=60)),
        [],
    )
    while not counts or counts[-1].more:
        counts.append(work.topics())
    assert max(one.rows for one in counts) <= 60
    found = Counter((row["topic"], row["index"]) for row in rows(lake, "topics"))
    assert found == Counter((name, n) for name in ("orders", "prices") for n in range(1, 101))


def test_number_two_ingests_changes_nothing_when_they_overlap(
    lake, valkey_client, write, monkeypatch
):
    write("low", 20)
    slow, fast = (Ingest(lake, valkey_client, Engine("local")) for _ in range(2))
    started = slow._commit

    def overtaken(*args):
        assert fast.events().rows == 20
        return started(*args)

    monkeypatch.setattr(slow, "_commit", overtaken)
    with pytest.raises(CommitConflictError, match="another ingest"):
        slow.events()
    monkeypatch.undo()
    assert slow.events().rows == 0
    assert mids(lake) == once(1, 20)


def test_delta_refuses_a_batch_when_both_saw_the_same_version(
    lake, valkey_client, write, monkeypatch
):
    """Both have read the state, and write their commits at the same moment."""
    from jobq.pipeline.lake import commit as module

    write("low", 20)
    slow, fast = (Ingest(lake, valkey_client, Engine("local")) for _ in range(2))
    plain, inner = module.commit_files, []

    def overtaken(*args):
        if not inner:
            inner.append(True)
            assert fast.events().rows == 20
        return plain(*args)

    monkeypatch.setattr(module, "commit_files", overtaken)
    with pytest.raises(CommitConflictError, match="another ingest"):
        slow.events()
    assert slow.events().rows == 0
    assert mids(lake) == once(1, 20)


def test_nothing_is_committed_when_the_server_goes_away_in_the_middle(
    lake, valkey_client, write, monkeypatch
):
    write("low", 40)
    work = Ingest(lake, valkey_client, Engine("local"), IngestOptions(partition_entries=10))
    settings = valkey_client.settings
    from dataclasses import replace

    calls = []

    def away(given):
        calls.append(given)
        gone = replace(given, url="unix:///nowhere/at/all", patience_s=0.1)
        return plain(given if len(calls) == 1 else gone)

    plain = partitions.Client
    monkeypatch.setattr(partitions, "Client", away)
    with pytest.raises(UnavailableError, match="no connection to"):
        work.events()
    assert len(calls) > 1
    monkeypatch.undo()
    assert valkey_client.settings == settings
    assert not list((__import__("pathlib").Path(lake.store.uri) / "events").rglob("*.parquet"))
    assert work.events().rows == 40


def test_topics_are_archived_with_keys_and_headers(ingest, lake, valkey_client):
    topic = Topic("orders", valkey_client)
    topic.append_many([b"one", Record(b"two", "k", {"trace": "x"})], now=DAY)
    topic.append(None, key="k", now=DAY)
    assert ingest.topics().rows == 3
    assert ingest.topics().rows == 0
    found = [
        (row["index"], row["content"], row["key"], row["headers"]) for row in rows(lake, "topics")
    ]
    assert found == [
        (1, b"one", None, None),
        (2, b"two", "k", [("trace", "x")]),
        (3, None, "k", None),
    ]
    topic.append(b"four")
    assert ingest.topics().rows == 1


def test_topic_tells_what_retention_dropped_and_not_what_compaction_did(ingest, valkey_client):
    topic = Topic("orders", valkey_client)
    topic.append_many([Record(b"%d" % n, "same") for n in range(10)])
    topic.compact()
    batch = ingest.topics()
    assert (batch.rows, dict(batch.lost)) == (1, {})
    topic.append_many([b"x"] * 10)
    topic.trim(before=16)
    batch = ingest.topics()
    assert (batch.rows, dict(batch.lost)) == (5, {"orders": 5})


def test_topic_tells_what_retention_dropped_between_two_pages_of_a_read(
    ingest, valkey_client, lake, monkeypatch
):
    topic, batch = Topic("orders", valkey_client), partitions.topic_batch
    topic.append_many([b"x"] * 200)

    def meanwhile(*args: Any) -> Any:
        topic.trim(before=150)
        return batch(*args)

    monkeypatch.setattr(partitions, "topic_batch", meanwhile)
    found = ingest.topics()
    assert found.rows + found.lost["orders"] == 200
    assert 0 < found.lost["orders"] < 149
    assert [row["index"] for row in rows(lake, "topics")][-51:] == list(range(150, 201))
    assert (ingest.topics().rows, state_of(lake, TOPICS).lost) == (
        0, dict(found.lost),
    )  # fmt: skip


def test_topic_begun_anew_is_read_from_its_first_message(ingest, valkey_client, lake):
    topic = Topic("orders", valkey_client)
    topic.append_many([b"x"] * 3)
    ingest.topics()
    topic.delete()
    topic.append(b"y")
    batch = ingest.topics()
    assert (batch.rows, list(batch.remade)) == (1, ["orders"])
    assert [row["content"] for row in rows(lake, "topics")].count(b"y") == 1


def test_offsets_are_told_lost_and_adopted_from_the_rows(ingest, write, lake, valkey_client):
    from jobq.pipeline.lake.commit import adopt

    write("low", 9)
    Topic("orders", valkey_client).append_many([b"x"] * 3)
    ingest.events(), ingest.topics()
    for name in ("events", "topics"):
        # As if others had written a log of their own: the number of the batch is there, its offsets aren't.
        lake.table(name).create_write_transaction(
            [], "append", lake.table(name).schema(), ["dt"],
            commit_properties=__import__("deltalake").CommitProperties(
                app_transactions=[__import__("deltalake").Transaction(f"jobq-{name}", 7)]
            ),
        )  # fmt: skip
    with pytest.raises(LakeError, match="--adopt"):
        ingest.events()
    write("low", 2, first=10)
    adopt(lake, valkey_client)
    assert (ingest.events().rows, ingest.topics().rows) == (2, 0)
    assert mids(lake) == once(1, 11)
