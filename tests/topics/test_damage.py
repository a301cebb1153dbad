"""The key `meta` alone is lost: no index is given twice, and what is there stays readable."""

from __future__ import annotations

import pytest

from jobq.topics import Record


def lose_meta(topic, redis):
    assert redis.delete("jobq:{orders}:topic:meta") == 1


def indexes(topic):
    return [message.index for message in topic.read(out_of_range="earliest")]


def test_append_goes_on_after_the_last_index_when_meta_is_lost(topic, redis):
    topic.append_many([b"1", b"2"])
    lose_meta(topic, redis)
    assert topic.append(b"3") == 3
    assert indexes(topic) == [1, 2, 3]


def test_append_goes_on_when_meta_is_lost_after_a_compaction(topic, redis):
    topic.append_many([Record(b"%d" % i, key) for i, key in enumerate("abacab")])
    topic.compact()
    lose_meta(topic, redis)
    assert indexes(topic) == [4, 5, 6]
    assert topic.append(b"new") == 7
    assert indexes(topic) == [4, 5, 6, 7]
    assert topic.get(4).content == b"3"
    assert topic.describe().last == 7


def test_append_goes_on_when_meta_is_lost_with_all_messages_dropped(topic, redis):
    topic.append_many([b"1", b"2", b"3"])
    topic.trim(before=4)
    lose_meta(topic, redis)
    assert topic.append(b"4") == 4
    assert indexes(topic) == [4]
    assert topic.describe().first == 4


@pytest.mark.parametrize("steps", range(1, 9))
def test_no_message_without_a_key_is_missed_when_meta_is_lost_amid_a_compaction(
    topic, redis, steps
):
    topic.append_many([b"1", Record(b"2", "k"), b"3", Record(b"4", "k"), b"5"])
    topic.compact()
    topic.append_many([b"6", Record(b"7", "k"), b"8"])
    for step in range(steps):
        topic._binding.run("compact", {"now": "", "begin": int(step == 0), "limit": 1})
    lose_meta(topic, redis)
    assert topic.append(b"9") == 9
    assert set(indexes(topic)) >= {1, 3, 5, 6, 7, 8, 9}
    topic.compact()
    assert indexes(topic) == [1, 3, 5, 6, 7, 8, 9]


def test_groups_go_on_where_they_were_when_meta_is_lost(topic, redis):
    topic.append_many([Record(b"%d" % i, key) for i, key in enumerate("abcabc")])
    with topic.reader("g", commit="auto") as reader:
        assert reader.poll(5).last == 5
    topic.compact()
    lose_meta(topic, redis)
    with topic.reader("g", commit="auto") as reader:
        assert [m.index for m in reader.poll().messages] == [6]
    assert topic.group("g").lag().skipped == 0


def test_limit_in_bytes_holds_again_when_meta_was_lost(topic, redis):
    topic.append_many([b"x" * 1000] * 500)
    lose_meta(topic, redis)
    assert topic.describe().nbytes == 0
    topic.set_limits(max_bytes=100_000)
    topic.append_many([b"y" * 1000] * 500)
    topic.trim()
    found = topic.describe()
    assert 0 < found.nbytes <= 165_536
    assert found.messages < 250
