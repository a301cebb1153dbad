"""Appending: each message gets the next index, once, whole or not at all."""

from __future__ import annotations

import pytest

from jobq.client.numbered_calls import Caller
from jobq.errors import (
    CodecError,
    ConfigError,
    LeaseLostError,
    NotDurableError,
    ScriptError,
    ServerFullError,
)
from jobq.topics import Record, Topic, topic_names
from jobq.topics.messages import MAX_LENGTH, encoded


def test_append_gives_indexes_from_one_on(topic):
    assert topic.append(b"a") == 1
    assert topic.append_many([b"b", Record(b"c", "key"), b"d"]) == [2, 3, 4]


def test_message_comes_back_with_all_it_was_given(topic, at):
    topic.append(b"\x00\xff", key="schlüssel", headers={"trace": "1", "größe": "ü"}, now=at(5))
    [message] = topic.read()
    assert message.index == 1 and message.at == at(5)
    assert (message.content, message.key) == (b"\x00\xff", "schlüssel")
    assert message.headers == {"trace": "1", "größe": "ü"}


@pytest.mark.parametrize("content", [b"", b"x", b"\x1f\r\n", bytes(range(256)), b"x" * MAX_LENGTH])
def test_content_of_any_bytes_survives(topic, content):
    topic.append(content)
    assert topic.get(1).content == content


def test_append_many_takes_more_than_one_round_trip_holds(topic):
    assert topic.append_many(b"%d" % i for i in range(2_500)) == list(range(1, 2_501))
    assert [m.content for m in topic.read()] == [b"%d" % i for i in range(2_500)]


def test_append_many_of_nothing_changes_nothing(topic, redis):
    assert topic.append_many([]) == []
    assert redis.keys("*") == []


@pytest.mark.parametrize(
    ("record", "error", "told"),
    [
        (Record(b"x" * (MAX_LENGTH + 1)), CodecError, "1,048,577"),
        (Record(b"", "k" * (MAX_LENGTH + 1)), CodecError, "over"),
        (Record(None), ConfigError, "key"),
        ("text", ConfigError, "'text' is not a message"),
        (Record("text"), ConfigError, "must be bytes"),  # type: ignore[arg-type]
        (Record(b"", b"key"), ConfigError, "key must be text"),  # type: ignore[arg-type]
        (Record(b"", headers={"n": 1}), CodecError, "'n' is 1"),  # type: ignore[dict-item]
    ],
)
def test_bad_message_is_refused_and_nothing_written(topic, redis, record, error, told):
    with pytest.raises(error, match=told):
        topic.append_many([b"good", record])
    assert redis.keys("*") == []


def test_bad_name_is_refused_when_it_can_not_stand_in_a_key(client):
    for name in ("", "a b", "a{b", "x" * 200):
        with pytest.raises(ConfigError, match="topic"):
            Topic(name, client)


def test_repeated_call_is_answered_and_not_written_again(topic, facts):
    caller, binding = Caller(), topic._binding
    first = binding.call("append", caller, {"now": ""}, [*encoded(b"a"), *encoded(b"b")])
    before = facts()
    caller.number -= 1
    assert binding.call("append", caller, {"now": ""}, [*encoded(b"a"), *encoded(b"b")]) == first
    assert first[:3] == [b"ok", 1, 2]
    assert facts() == before


def test_older_call_is_refused_and_writes_nothing(topic, facts):
    caller, binding = Caller(), topic._binding
    for content in (b"a", b"b"):
        binding.call("append", caller, {"now": ""}, encoded(content))
    before = facts()
    caller.number -= 2
    with pytest.raises(LeaseLostError, match="older"):
        binding.call("append", caller, {"now": ""}, encoded(b"late"))
    assert facts() == before


@pytest.mark.parametrize(
    "words", [[], ["m"], ["x", "1"], ["mk", "1"], ["m", "1", "km", "2", "3"], ["m", "x" * (MAX_LENGTH + 1)]]
)  # fmt: skip
def test_script_refuses_what_no_message_is_and_writes_nothing(topic, facts, words):
    topic.append(b"a")
    before = facts()
    with pytest.raises(ScriptError, match="message"):
        topic._binding.once("append", {"now": ""}, words)
    assert facts() == before


def test_full_server_refuses_the_call_whole(topic, redis, facts):
    topic.append(b"a")
    before = facts()
    redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(ServerFullError):
            topic.append_many([b"b", b"c"])
    finally:
        redis.config_set("maxmemory", 0)
    assert facts() == before


def test_readers_go_on_when_the_server_is_full(topic, redis):
    topic.append_many([b"a", b"b"])
    reader = topic.reader("g")
    reader.group.subscribe()
    redis.config_set("maxmemory", 1)
    try:
        assert len(reader.poll().messages) == 2
        assert reader.commit() == 2
    finally:
        redis.config_set("maxmemory", 0)


def test_clock_that_steps_back_a_little_leaves_times_in_order(topic, at):
    topic.append(b"a", now=at(1_000))
    topic.append(b"b", now=at(0))
    topic.append(b"c", now=at(1_001))
    assert [m.at for m in topic.read()] == [at(1_000), at(1_000), at(1_001)]


def test_clock_that_was_far_ahead_is_not_believed_for_ever(topic, at):
    topic.append(b"a", now=at(3_600_000))
    topic.append(b"b", now=at(0))
    assert [m.at for m in topic.read()] == [at(3_600_000), at(0)]


def test_index_is_never_given_twice_when_the_numbers_of_a_topic_were_lost(topic, redis):
    topic.append_many([b"a", b"b"])
    redis.delete("jobq:{orders}:topic:meta")
    assert topic.append(b"c") == 3


def test_topic_is_listed_by_its_first_append_and_not_after_delete(topic, client, redis):
    topic.append(b"a")
    topic.reader("g").poll()
    Topic("other", client).append(b"a")
    assert topic_names(client) == ["orders", "other"]
    topic.delete()
    assert topic_names(client) == ["other"]
    assert [k for k in redis.keys("jobq:{orders}:*") if redis.ttl(k) == -1] == []
    assert topic.append(b"anew") == 1
    assert topic_names(client) == ["orders", "other"]


def test_topic_is_listed_again_when_another_process_had_deleted_it(topic, client, redis):
    topic.append(b"a")
    redis.delete(*redis.keys("jobq:{orders}:topic:*"))
    redis.srem("jobq:topics", "orders")
    assert topic.append(b"anew") == 1
    assert topic_names(client) == ["orders"]


def test_forty_byte_messages_take_a_tenth_of_a_kibibyte_each(topic, redis):
    topic.append(b"first")
    before = redis.info("memory")["used_memory"]
    topic.append_many([b"%040d" % i for i in range(50_000)])
    assert (redis.info("memory")["used_memory"] - before) / 50_000 <= 1024 / 10


def test_not_durable_append_says_which_indexes_are_there(topic):
    with pytest.raises(NotDurableError, match=r"messages 1 to 2 were appended.*0 of 1 replicas"):
        topic.append_many([b"a", b"b"], durability="replicas=1")
    assert topic.append(b"c", durability="memory") == 3
