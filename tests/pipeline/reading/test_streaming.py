"""The streaming reader: exact places, batches of a given size, losses with their number. No JVM."""

from __future__ import annotations

import json
import os
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from jobq.errors import DataLossError, UnavailableError
from jobq.pipeline import offsets
from jobq.pipeline.offsets import LogOffset
from jobq.pipeline.reading import ranges
from jobq.topics.topic import Topic

from .conftest import BEGIN, mids

KEY = "jobq:{low}:events"


class Query:
    """Drive a streaming reader like Spark, batch by batch; `restarted()` is after its death."""

    def __init__(self, one: Any, checkpoint: list[str] | None = None) -> None:
        self.one = one
        self.reader = one.streamReader(one.schema())
        self.offsets = checkpoint or []

    def batch(self) -> list[dict[str, Any]]:
        """The rows of the next batch; none when there is nothing new."""
        if not self.offsets:
            self.offsets.append(json.dumps(self.reader.initialOffset()))
        end = self.plan()
        if end is None:
            return []
        if len(self.offsets) > 2:
            self.reader.commit(json.loads(self.offsets[-2]))
        return self.rows(-2, -1)

    def plan(self) -> str | None:
        """Note the next offset, as Spark does before it reads."""
        start = self.offsets[-1]
        end = json.dumps(
            self.reader.latestOffset(json.loads(start), self.reader.getDefaultReadLimit())
        )
        if end == start:
            return None
        self.offsets.append(end)
        return end

    def rows(self, start: int, end: int) -> list[dict[str, Any]]:
        parts = self.reader.partitions(*(json.loads(self.offsets[i]) for i in (start, end)))
        reader, parts = pickle.loads(pickle.dumps((self.reader, parts)))
        return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]

    def restarted(self) -> Query:
        self.reader.stop()
        return Query(self.one, self.offsets)


@pytest.fixture
def query(source):
    made = []

    def make(**options: Any) -> Query:
        made.append(Query(source(**options)))
        return made[-1]

    yield make
    for one in made:
        one.reader.stop()


def test_batches_follow_one_another(query, events):
    one = query()
    events("low", 5)
    assert mids(one.batch()) == [f"m{i}" for i in range(5)]
    assert one.batch() == []
    events("low", 3, start=5)
    assert mids(one.batch()) == ["m5", "m6", "m7"]


def test_batch_is_the_same_when_it_is_read_again(query, events):
    one = query()
    events("low", 5)
    one.batch()
    events("low", 5, start=5)
    one.plan()
    events("low", 5, start=10)
    again = one.restarted()
    assert mids(again.rows(-2, -1)) == [f"m{i}" for i in range(5, 10)]
    assert mids(again.batch()) == [f"m{i}" for i in range(10, 15)]


def test_stream_begins_where_it_is_told(query, events):
    events("low", 10)
    at = "2025-11-13T02:13:20.006Z"
    for start, expected in [
        ("latest", []), ("earliest", list(range(10))), (at, [6, 7, 8, 9]), ("2030-01-01", []),
        (f'{{"low": "{BEGIN + 7}-0"}}', [8, 9]), ('{"low": "latest"}', []),
    ]:  # fmt: skip
        one = query(startingOffsets=start)
        assert mids(one.batch()) == [f"m{i}" for i in expected]
        place = offsets.from_plain(offsets.loaded(one.offsets[0]))["low"]
        assert place.n == 10 - len(expected)


def test_stream_from_a_place_in_between_still_counts_losses(query, events, valkey_redis):
    events("low", 10)
    one = query(startingOffsets=f'{{"low": "{BEGIN + 3}-0"}}')
    one.offsets.append(json.dumps(one.reader.initialOffset()))
    valkey_redis.xtrim(KEY, maxlen=2, approximate=False)
    with pytest.raises(DataLossError, match="4 events"):
        one.batch()


def test_batches_have_as_many_rows_as_asked_for(query, events):
    events("low", 25)
    one = query(maxRowsPerTrigger=10)
    assert one.reader.getDefaultReadLimit() == ReadMaxRows(10)
    assert [len(one.batch()) for _ in range(4)] == [10, 10, 5, 0]


def test_batches_share_rows_between_queues(query, events):
    events("low", 25)
    events("high", 4)
    one = query(maxRowsPerTrigger=10)
    sizes = []
    for _ in range(4):
        rows = one.batch()
        sizes.append(tuple(sum(row["queue"] == name for row in rows) for name in ("low", "high")))
    assert sizes == [(6, 4), (10, 0), (9, 0), (0, 0)]


def test_available_now_ends_where_it_began(query, events):
    events("low", 25)
    one = query(maxRowsPerTrigger=20)
    one.reader.prepareForTriggerAvailableNow()
    first = one.batch()
    events("low", 50, start=25)
    events("new", 5)
    assert (len(first), len(one.batch()), len(one.batch())) == (20, 5, 0)
    again = one.restarted()
    again.reader.prepareForTriggerAvailableNow()
    assert sum(len(again.batch()) for _ in range(5)) == 55


def test_everything_is_read_when_the_engine_sets_no_limit(query, events):
    events("low", 25)
    reader = query(maxRowsPerTrigger=10).reader
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end["low"]["n"] == 25


def test_queue_that_appears_later_is_read_from_its_beginning(query, events):
    events("low", 2)
    one = query(startingOffsets="latest")
    assert one.batch() == []
    events("new", 3)
    assert [(row["queue"], row["mid"]) for row in one.batch()] == [
        ("new", f"m{i}") for i in range(3)
    ]


def test_queue_that_is_not_there_yet_may_be_named(query, events):
    one = query(queues="later")
    assert one.batch() == []
    events("low", 1)
    events("later", 2)
    assert {row["queue"] for row in one.batch()} == {"later"}


def test_loss_is_told_with_its_number(query, events, valkey_redis, caplog):
    ones = [query(), query(failOnDataLoss="false")]
    events("low", 10)
    for one in ones:
        one.batch()
    events("low", 100, start=10)
    valkey_redis.xtrim(KEY, maxlen=70, approximate=False)
    with pytest.raises(
        DataLossError, match=r"queue 'low': 30 events were trimmed before they were read"
    ):
        ones[0].batch()
    assert len(ones[1].batch()) == 70
    assert caplog.text.count("30 events") == 1


def test_loss_in_small_batches_is_counted_once(query, events, valkey_redis, caplog):
    one = query(failOnDataLoss="false", maxRowsPerTrigger=25)
    events("low", 10)
    one.batch()
    events("low", 100, start=10)
    valkey_redis.xtrim(KEY, maxlen=70, approximate=False)
    assert [len(one.batch()) for _ in range(4)] == [25, 25, 20, 0]
    assert caplog.text.count("were trimmed") == 1
    assert "30 events" in caplog.text


def test_loss_after_planning_is_told_with_its_number(query, events, valkey_redis):
    one = query()
    events("low", 20)
    one.offsets.append(json.dumps(one.reader.initialOffset()))
    one.plan()
    parts = one.reader.partitions(*map(json.loads, one.offsets))
    valkey_redis.xtrim(KEY, maxlen=15, approximate=False)
    with pytest.raises(DataLossError, match="5 events"):
        [list(one.reader.read(part)) for part in parts]


def test_all_that_was_dropped_is_passed_over_when_told_to_go_on(
    query, events, valkey_redis, caplog
):
    one = query(failOnDataLoss="false", maxRowsPerTrigger=5)
    events("low", 10)
    assert len(one.batch()) == 5
    valkey_redis.xtrim(KEY, maxlen=0, approximate=False)
    assert one.batch() == []
    assert "5 events" in caplog.text
    events("low", 2, start=10)
    assert mids(one.batch()) == ["m10", "m11"]


def test_stream_made_anew_is_told_and_read_from_its_beginning(query, events, valkey_redis, caplog):
    ones = [query(), query(failOnDataLoss="false")]
    events("low", 10)
    for one in ones:
        one.batch()
    valkey_redis.delete(KEY)
    events("low", 4, start=20)
    with pytest.raises(DataLossError, match="deleted or recreated"):
        ones[0].batch()
    assert mids(ones[1].batch()) == [f"m{i}" for i in range(20, 24)]
    events("low", 1, start=24)
    assert mids(ones[1].batch()) == ["m24"]
    assert caplog.text.count("deleted or recreated") == 1


def test_pieces_of_a_batch_have_equal_numbers_of_events(query, events, valkey_redis):
    one = query(partitions=4)
    events("low", 1)
    one.batch()
    events("low", 42, start=100)
    one.plan()
    parts = one.reader.partitions(*map(json.loads, one.offsets[-2:]))
    assert sorted(piece.rows for part in parts for piece in part.value) == [9, 11, 11, 11]
    assert sorted(mids(one.rows(-2, -1))) == sorted(f"m{i}" for i in range(100, 142))
    valkey_redis.xtrim(KEY, maxlen=40, approximate=False)
    with pytest.raises(DataLossError, match="2 events"):
        [list(one.reader.read(part)) for part in parts]


def test_read_events_are_trimmed_when_asked(query, events, valkey_redis):
    one = query(trimOnCommit="true")
    for start in (0, 10, 20):
        events("low", 10, start=start)
        assert len(one.batch()) == 10
    # The last batch isn't known to be done before the next is planned.
    assert valkey_redis.xlen(KEY) == 10
    again = one.restarted()
    events("low", 5, start=30)
    assert len(again.batch()) == 5
    assert valkey_redis.xlen(KEY) == 5


def test_nothing_is_trimmed_unless_asked(query, events, valkey_redis):
    one = query()
    for start in (0, 10, 20):
        events("low", 10, start=start)
        one.batch()
    assert valkey_redis.xlen(KEY) == 30


def test_progress_tells_what_there_is(query, events):
    one = query()
    events("low", 7)
    assert one.reader.reportLatestOffset() == {"low": {"id": f"{BEGIN + 6}-0", "n": 7}}


def test_reader_travels_without_its_connection(query, events):
    one = query()
    events("low", 1)
    one.batch()
    assert pickle.loads(pickle.dumps(one.reader))._client is None


@pytest.fixture
def topic(valkey_client):
    return Topic("orders", valkey_client)


def test_topic_is_streamed_by_index(query, topic, caplog):
    one = query(view="topic", maxRowsPerTrigger=4, failOnDataLoss="false")
    topic.append_many([b"%d" % i for i in range(10)])
    assert [row["index"] for row in one.batch()] == [1, 2, 3, 4]
    topic.trim(before=7)
    assert [row["index"] for row in one.batch()] == [7, 8, 9, 10]
    assert "2 messages" in caplog.text
    assert offsets.from_plain(offsets.loaded(one.offsets[-1])) == {"orders": LogOffset("10", 10)}


def test_topic_begins_at_a_time(query, topic):
    for i in range(5):
        topic.append(b"v", now=BEGIN + i)
    one = query(view="topic", startingOffsets="2025-11-13T02:13:20.003Z")
    assert [row["index"] for row in one.batch()] == [4, 5]


def test_topic_made_anew_is_read_from_its_beginning_when_told_to_go_on(query, topic, caplog):
    ones = [query(view="topic"), query(view="topic", failOnDataLoss="false")]
    topic.append_many([b"v"] * 5)
    for one in ones:
        assert len(one.batch()) == 5
    topic.delete()
    topic.append_many([b"w"] * 2)
    with pytest.raises(DataLossError, match="deleted or recreated"):
        ones[0].batch()
    assert [row["content"] for row in ones[1].batch()] == [b"w", b"w"]
    assert "deleted or recreated" in caplog.text


def at(ms: int) -> str:
    return f"2025-11-13T02:13:20.{ms:03}Z"


def test_stream_has_the_events_of_its_time_range_alone(query, events, valkey_redis, caplog):
    events("low", 10)
    events("high", 2)
    one = query(since=at(3), until=at(14), maxRowsPerTrigger=5, failOnDataLoss="false")
    assert mids(one.batch()) == [f"m{i}" for i in range(3, 8)]
    events("low", 10, start=10)
    # A queue that appears later, with events before, in and after the range.
    events("new", 20)
    found = []
    for _ in range(5):
        found += one.batch()
        one = one.restarted()
    assert sorted(mids(found)) == sorted(
        [f"m{i}" for i in range(3, 14)] + ["m8", "m9"] + [f"m{i}" for i in range(10, 14)]
    )
    assert len({(row["queue"], row["mid"]) for row in found}) == len(found) == 17
    # Whatever comes or goes afterwards isn't of the range.
    valkey_redis.delete(KEY)
    events("low", 5, start=30)
    assert one.batch() == []
    assert "trimmed" not in caplog.text and "recreated" not in caplog.text


def test_loss_before_the_end_of_the_time_range_is_told(query, events, valkey_redis):
    one = query(until=at(8), maxRowsPerTrigger=2)
    events("low", 4)
    assert len(one.batch()) == 2
    events("low", 16, start=4)
    valkey_redis.xtrim(KEY, maxlen=15, approximate=False)
    with pytest.raises(DataLossError, match="3 events"):
        one.batch()


def test_topic_is_streamed_within_a_time_range(query, topic):
    for i in range(9):
        topic.append(b"v", now=BEGIN + i)
    one = query(view="topic", since=at(2), until=at(6), maxRowsPerTrigger=3)
    assert [[row["index"] for row in one.batch()] for _ in range(3)] == [[3, 4, 5], [6], []]


def test_big_range_of_a_batch_is_split_when_nobody_says_how(
    query, events, monkeypatch, valkey_redis
):
    monkeypatch.setattr(ranges, "ROWS_PER_PART", 10)
    one = query()
    events("low", 40)
    events("high", 3)
    one.batch()
    events("low", 40, start=40)
    one.plan()
    parts = one.reader.partitions(*map(json.loads, one.offsets[-2:]))
    assert sorted(piece.rows for part in parts for piece in part.value) == [10] * 4
    assert sorted(mids(one.rows(-2, -1))) == sorted(f"m{i}" for i in range(40, 80))
    valkey_redis.xtrim(KEY, maxlen=25, approximate=False)
    with pytest.raises(DataLossError, match="trimmed before they were read"):
        [list(one.reader.read(part)) for part in parts]


def test_many_queues_are_looked_at_in_few_round_trips(query, events, monkeypatch):
    for number in range(40):
        events(f"queue{number}", 2)
    one = query()
    assert len(one.batch()) == 80
    events("queue7", 1, start=2)
    asked = []
    command = type(one.reader._client).command

    def counted(client, *given, **named):
        asked.append(given[0])
        return command(client, *given, **named)

    monkeypatch.setattr(type(one.reader._client), "command", counted)
    assert mids(one.batch()) == ["m2"]
    assert len(asked) < 12


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("initialOffset", ()), ("prepareForTriggerAvailableNow", ()), ("latestOffset", ({}, ReadAllAvailable())),
        ("reportLatestOffset", ()), ("partitions", ({}, {})), ("commit", ({"low": {"id": "1-0", "n": 1}},)),
    ],
)  # fmt: skip
def test_error_of_a_stream_has_no_traceback_in_front_in_a_process_of_spark(
    query, monkeypatch, method, given
):
    main = SimpleNamespace(__spec__=SimpleNamespace(name="pyspark.sql.streaming.a_runner"))
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    reader = query(trimOnCommit="true").reader

    def away():
        raise UnavailableError("the server is away")

    monkeypatch.setattr(reader, "_connected", away)
    with pytest.raises(UnavailableError):
        getattr(reader, method)(*given)
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"
