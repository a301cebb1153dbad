"""The view `events`: every event of the plan once, whatever comes, goes or is broken."""

from __future__ import annotations

import gc
import logging

import pytest

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.errors import BadRecordError, ConfigError, DataLossError, UnavailableError
from jobq.pipeline.reading import ranges
from jobq.pipeline.reading import streams as reading
from jobq.pipeline.reading.readers import JobqReader
from jobq.pipeline.reading.request import requested
from jobq.queue.types import Ending
from tests.conftest import answering, binary, start

from .conftest import BEGIN, mids

KEY = "jobq:{low}:events"


def test_events_of_all_queues_are_read_once(load, events):
    events("low", 30)
    events("high", 12)
    rows = load(view="events").rows()
    assert len(rows) == 42
    assert {(row["queue"], row["mid"]) for row in rows} == {
        *(("low", f"m{i}") for i in range(30)),
        *(("high", f"m{i}") for i in range(12)),
    }


def test_event_that_a_worker_wrote_has_its_columns(load, valkey_queue):
    valkey_queue.enqueue(b"v", mid="m")
    [held] = valkey_queue.dequeue().messages
    valkey_queue.finish([Ending(mid="m", token=held.token, record="mail.send\x1f1")])
    [row] = load().rows()
    assert (row["queue"], row["kind"], row["mid"], row["job"]) == ("low", "done", "m", "mail.send")
    assert (row["attempt"], row["error"], row["version"]) == (1, None, 1)
    assert row["entry_at"].tzinfo is not None


def test_read_is_of_when_it_was_planned(load, events):
    events("low", 10)
    planned = load()
    events("low", 5, start=10)
    assert mids(planned.rows()) == mids(planned.rows()) == [f"m{i}" for i in range(10)]
    assert len(load().rows()) == 15


def test_columns_are_those_asked_for_in_their_order(load, events):
    events("low", 3)
    [first, *_] = load(columns="mid, kind ,queue").rows()
    assert list(first.items()) == [("mid", "m0"), ("kind", "done"), ("queue", "low")]


def test_span_is_of_when_events_were_written(load, events):
    events("low", 30)
    at = "2025-11-13T02:13:20.0{:02}Z".format
    assert mids(load(since=at(5), until=at(8)).rows()) == ["m5", "m6", "m7"]
    assert mids(load(since="2025-11-13 03:13:20.027+01:00").rows()) == ["m27", "m28", "m29"]
    assert load(until="2025-11-13T00:00").rows() == []


@pytest.mark.parametrize("count", [1, 2, 5, 50])
def test_partitions_cover_every_event_once(load, events, count):
    events("low", 40)
    events("high", 3)
    planned = load(partitions=count)
    assert len(planned.parts) <= count
    rows = planned.rows()
    assert len(rows) == len({(row["queue"], row["mid"]) for row in rows}) == 43


def test_big_queue_is_cut_when_nobody_says_how(load, events, monkeypatch):
    monkeypatch.setattr(ranges, "ROWS_PER_PART", 10)
    events("low", 40)
    planned = load()
    assert len(planned.parts) == 4
    assert len(set(mids(planned.rows()))) == 40


def test_pages_and_batches_are_joined(load, events, monkeypatch):
    monkeypatch.setattr(reading, "PAGE", 7)
    monkeypatch.setattr(reading, "BATCH", 20)
    events("low", 100)
    assert mids(load().rows()) == [f"m{i}" for i in range(100)]


def test_there_is_nothing_when_no_queue_has_events(load):
    assert load().parts == []
    assert list(load().reader.read(type("P", (), {"value": None})())) == []


def test_garbage_collection_is_on_again_after_a_read_that_broke_off(load, events):
    events("low", 5)
    planned = load()
    batches = planned.reader.read(planned.parts[0])
    next(batches)
    assert not gc.isenabled()
    batches.close()
    assert gc.isenabled()


def test_offsets_say_the_last_event_read_and_the_last_to_read(load, events):
    events("low", 20)
    events("high", 4)
    start = f'{{"low": "{BEGIN + 4}-0", "high": "latest"}}'
    end = f'{{"low": {{"id": "{BEGIN + 7}-0", "n": 8}}}}'
    rows = load(startingOffsets=start, endingOffsets=end).rows()
    assert mids(rows) == ["m5", "m6", "m7"]
    assert load(startingOffsets="latest").rows() == []
    assert len(load(startingOffsets="2025-11-13T02:13:20.018Z").rows()) == 2


def test_loss_is_told_with_its_number_when_an_offset_is_older_than_the_stream(
    load, events, valkey_redis, caplog
):
    events("low", 20)
    valkey_redis.xtrim(KEY, maxlen=6, approximate=False)
    start = f'{{"low": {{"id": "{BEGIN + 4}-0", "n": 5}}}}'
    with pytest.raises(DataLossError, match=r"queue 'low': 9 events were trimmed"):
        load(startingOffsets=start)
    with caplog.at_level(logging.WARNING):
        rows = load(startingOffsets=start, failOnDataLoss="false").rows()
    assert mids(rows) == [f"m{i}" for i in range(14, 20)]
    assert "9 events were trimmed" in caplog.text


@pytest.mark.parametrize("options", [{}, {"partitions": 3}], ids=["whole", "cut"])
def test_loss_between_planning_and_reading_is_told_with_its_number(
    load, events, valkey_redis, caplog, options
):
    events("low", 40)
    strict, lenient = load(**options), load(failOnDataLoss="FALSE", **options)
    valkey_redis.xtrim(KEY, maxlen=33, approximate=False)
    with pytest.raises(DataLossError, match="7 events were trimmed before they were read"):
        strict.rows()
    assert sorted(mids(lenient.rows())) == sorted(f"m{i}" for i in range(7, 40))
    assert "7 events were trimmed" in caplog.text


def test_loss_while_reading_is_told(load, events, valkey_redis, monkeypatch):
    """The stream is trimmed after the first page of each of three pieces."""
    monkeypatch.setattr(reading, "PAGE", 4)
    monkeypatch.setattr(reading, "BATCH", 4)
    events("low", 60)
    planned = load(partitions=3)
    batches = planned.reader.read(planned.parts[0])
    first = next(batches).to_pylist()[0]["mid"]
    valkey_redis.xtrim(KEY, maxlen=1, approximate=False)
    with pytest.raises(DataLossError, match="59 events"):
        list(batches)
    assert first in ("m0", "m20", "m40")


def test_nothing_is_lost_when_only_what_was_not_asked_for_was_trimmed(load, events, valkey_redis):
    events("low", 40)
    planned = load(since="2025-11-13T02:13:20.020Z", partitions=2)
    valkey_redis.xtrim(KEY, maxlen=25, approximate=False)
    assert len(planned.rows()) == 20


def test_all_that_was_asked_for_is_lost_when_the_stream_was_deleted(load, events, valkey_redis):
    events("low", 8)
    planned = load()
    valkey_redis.delete(KEY)
    with pytest.raises(DataLossError, match="8 events"):
        planned.rows()


@pytest.fixture
def broken(events, valkey_redis):
    """Two good events, and between them one of a version that nobody knows."""
    events("low", 1)
    valkey_redis.xadd(KEY, {"9": "what"}, id=f"{BEGIN + 1}-5")
    events("low", 1, start=2)


def test_broken_record_ends_the_read_unless_told_otherwise(load, broken):
    with pytest.raises(
        BadRecordError, match=rf"queue 'low': entry {BEGIN + 1}-5 .*version.*PERMISSIVE"
    ):
        load().rows()


def test_broken_record_is_dropped_and_logged_when_asked(load, broken, caplog):
    assert mids(load(mode="dropmalformed").rows()) == ["m0", "m2"]
    assert f"{BEGIN + 1}-5" in caplog.text


def test_broken_record_is_a_row_of_its_own_when_asked(load, broken):
    rows = load(mode="PERMISSIVE").rows()
    [bad] = [row for row in rows if row["_corrupt_record"] is not None]
    assert len(rows) == 3
    assert (bad["_corrupt_record"], bad["queue"], bad["entry_seq"]) == (b"9\0what", "low", 5)
    assert round(bad["entry_at"].timestamp() * 1000) == BEGIN + 1
    assert bad["mid"] is None


def test_broken_record_without_its_column_is_a_row_of_its_place(load, broken):
    rows = load(mode="PERMISSIVE", columns="mid,entry_seq").rows()
    assert {(row["mid"], row["entry_seq"]) for row in rows} == {("m0", 0), ("m2", 0), (None, 5)}


def test_queue_is_refused_with_the_nearest_name_when_there_is_none(load, events):
    events("emails", 1)
    with pytest.raises(ConfigError, match="queue 'email' is unknown; did you mean 'emails'"):
        load(queues="email")


def test_queue_is_read_when_only_its_name_was_forgotten(load, events, valkey_redis):
    events("low", 3)
    valkey_redis.srem("jobq:queues", "low")
    assert len(load(queues="low").rows()) == 3
    assert load(queues="*").rows() == []


def test_read_ends_with_a_clear_error_when_the_server_goes_away(short_folder, monkeypatch):
    monkeypatch.setenv("JOBQ_PATIENCE", "0.1")
    program = binary()
    assert program is not None
    folder = short_folder / "leaving"
    folder.mkdir()
    socket = f"{folder}/s"
    process = start(program, folder, "--port", "0", "--unixsocket", socket)
    answering(process, folder, unix_socket_path=socket)
    client = connect(settings=ServerSettings(url=f"unix://{socket}"))
    client.command("SADD", "jobq:queues", "low")
    for i in range(3):
        client.command("XADD", KEY, f"{BEGIN + i}-0", "1", f"done\x1fm{i}\x1f{BEGIN + i}")
    request = requested({"url": client.url})
    reader = JobqReader(request)
    [part] = reader.partitions()
    monkeypatch.setattr(reading, "PAGE", 1)
    monkeypatch.setattr(reading, "BATCH", 1)
    batches = reader.read(part)
    assert next(batches).num_rows == 2
    process.kill()
    process.wait()
    with pytest.raises(UnavailableError, match="no answer from unix://"):
        list(batches)
    client.close()
