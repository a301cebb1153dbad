"""The view `topic`: messages by index, holes of compaction apart from dropped messages."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jobq.errors import ConfigError, DataLossError
from jobq.topics.messages import Record
from jobq.topics.topic import Topic

NOW = 1_763_000_000_000


@pytest.fixture
def topic(valkey_client):
    return Topic("orders", valkey_client)


def indexes(rows):
    return [row["index"] for row in rows]


def test_messages_have_all_that_was_appended(load, topic):
    topic.append(b"\x00plain", now=NOW)
    topic.append(b"{}", key="k", headers={"a": "b", "c": ""}, now=NOW + 1)
    topic.append(None, key="k", now=NOW + 2)
    first, second, third = load(view="topic", topics="orders").rows()
    assert first == {
        "topic": "orders", "index": 1, "at": datetime.fromtimestamp(NOW / 1000, UTC),
        "key": None, "content": b"\x00plain", "headers": None,
    }  # fmt: skip
    assert (second["key"], second["headers"]) == ("k", [("a", "b"), ("c", "")])
    assert (third["key"], third["content"]) == ("k", None)


def test_all_topics_are_read_when_none_is_named(load, topic, valkey_client):
    topic.append(b"a")
    Topic("other", valkey_client).append(b"b")
    assert {row["topic"] for row in load(view="topic").rows()} == {"orders", "other"}


@pytest.mark.parametrize("count", [1, 3, 200])
def test_partitions_cover_every_message_once(load, topic, count):
    topic.append_many([b"%d" % i for i in range(100)])
    rows = load(view="topic", partitions=count).rows()
    assert sorted(indexes(rows)) == list(range(1, 101))


def test_read_is_of_when_it_was_planned(load, topic):
    topic.append_many([b"a", b"b"])
    planned = load(view="topic")
    topic.append(b"c")
    assert indexes(planned.rows()) == indexes(planned.rows()) == [1, 2]


def test_span_and_offsets_choose_messages(load, topic):
    for i in range(10):
        topic.append(b"v", now=NOW + i)
    at = datetime.fromtimestamp((NOW + 4) / 1000, UTC).isoformat()
    assert indexes(load(view="topic", since=at).rows()) == [5, 6, 7, 8, 9, 10]
    assert indexes(load(view="topic", until=at).rows()) == [1, 2, 3, 4]
    start = '{"orders": 7}'
    end = '{"orders": {"id": "9", "n": 9}}'
    assert indexes(load(view="topic", startingOffsets=start, endingOffsets=end).rows()) == [8, 9]


@pytest.mark.parametrize("given", ['"5-0"', '{"id": "5-0", "n": 5}', '"5-"'])
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offset_of_an_event_is_refused_for_a_topic(load, topic, option, given):
    topic.append_many([b"v"] * 9)
    with pytest.raises(
        ConfigError, match=r"offset '5-0?' of topic 'orders' is not an index; write a"
    ):
        load(view="topic", **{option: f'{{"orders": {given}}}'})


def test_loss_is_told_with_its_number(load, topic, caplog):
    topic.append_many([b"v"] * 20)
    strict, lenient = load(view="topic"), load(view="topic", failOnDataLoss=False)
    topic.trim(before=8)
    with pytest.raises(DataLossError, match="topic 'orders': 7 messages were dropped by retention"):
        strict.rows()
    assert indexes(lenient.rows()) == list(range(8, 21))
    assert "7 messages were dropped" in caplog.text
    with pytest.raises(DataLossError, match="4 messages"):
        load(view="topic", startingOffsets='{"orders": 3}')


def test_holes_of_compaction_are_no_losses(load, topic):
    topic.append_many([Record(b"v", key=str(i % 3)) for i in range(30)])
    topic.set_limits(compact=True)
    topic.compact()
    topic.append(b"w", key="9")
    assert indexes(load(view="topic").rows()) == [28, 29, 30, 31]


def test_topic_is_refused_with_the_nearest_name_when_there_is_none(load, topic):
    topic.append(b"v")
    with pytest.raises(ConfigError, match="topic 'order' is unknown; did you mean 'orders'"):
        load(view="topic", topics="order")
