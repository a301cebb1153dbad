"""What a topic keeps: by age, count and bytes; and what must not be dropped."""

from __future__ import annotations

import pytest

from jobq.errors import ConfigError
from jobq.topics import Record, Retention


def indexes(topic):
    return [m.index for m in topic.read()]


def test_nothing_is_dropped_without_limits(topic, at):
    topic.append(b"old", now=at(0))
    topic.append(b"new", now=at(10**12))
    assert topic.trim(now=at(10**12)) == 1
    assert indexes(topic) == [1, 2]


def test_count_keeps_the_newest_with_every_append(topic):
    topic.set_limits(max_count=3)
    for i in range(10):
        topic.append(b"%d" % i)
        assert len(indexes(topic)) == min(3, i + 1)
    assert indexes(topic) == [8, 9, 10]
    assert topic.describe().messages == 3


def test_age_keeps_what_is_young(topic, at):
    topic.set_limits(max_age=60)
    for i in range(10):
        topic.append(b"%d" % i, now=at(10_000 * i))
    # The ninth second's append looked: 90 - 60 = 30 s, the fourth message.
    assert indexes(topic) == [4, 5, 6, 7, 8, 9, 10]
    assert topic.trim(now=at(100_001)) == 6
    assert topic.trim(now=at(10**9)) == 11
    assert indexes(topic) == []


def test_topic_goes_on_at_its_index_when_all_was_dropped(topic, at):
    topic.set_limits(max_age=1)
    topic.append_many([b"a", b"b"], now=at(0))
    topic.trim(now=at(5_000))
    assert topic.append(b"c", now=at(6_000)) == 3
    assert indexes(topic) == [3]


def test_age_is_looked_at_once_a_second_not_with_every_append(topic, at, commands):
    topic.append_many([b"x"] * 1_000, now=at(0))
    topic.set_limits(max_age=3_600)
    topic.append(b"x", now=at(10))
    assert commands(lambda: topic.append(b"x", now=at(20))) < 12


def test_bytes_keep_about_as_much_as_is_said(topic):
    topic.set_limits(max_bytes=100_000)
    for _ in range(50):
        topic.append_many([bytes(1_000)] * 20)
    kept = sum(len(m.content) for m in topic.read())
    assert 100_000 * 14 / 16 <= kept <= 100_000
    assert abs(topic.describe().nbytes - kept) <= 100_000 / 8


def test_bytes_count_keys_and_headers(topic):
    topic.set_limits(max_bytes=10_000)
    topic.append_many([Record(b"", "k" * 500, {"h": "v" * 500})] * 100)
    assert len(indexes(topic)) in (8, 9)


def test_message_longer_than_all_that_may_be_kept_is_kept(topic):
    topic.set_limits(max_bytes=1_000)
    topic.append(b"small")
    topic.append(bytes(50_000))
    assert indexes(topic)[-1] == 2
    topic.append(b"next")
    assert indexes(topic)[-1] == 3


def test_limits_set_late_apply_to_what_is_there(topic):
    topic.append_many([bytes(10_000)] * 100)
    topic.set_limits(max_bytes=300_000)
    topic.trim()
    assert sum(len(m.content) for m in topic.read()) <= 300_000
    topic.set_limits(max_bytes=0, max_count=2)
    assert topic.trim() == 99


def test_trim_drops_what_is_below_an_index(topic):
    topic.append_many([b"x"] * 25_000)
    assert topic.trim(before=24_999) == 24_999
    assert indexes(topic) == [24_999, 25_000]
    assert topic.trim(before=10**9) == 25_001
    assert topic.trim(before=5) == 25_001


def test_one_append_drops_ten_thousand_at_most(topic):
    topic.append_many([b"x"] * 25_000)
    topic.set_limits(max_count=1)
    topic.append(b"x")
    assert topic.describe().first == 10_001
    topic.append(b"x")
    topic.append(b"x")
    assert topic.describe().messages == 1


def test_dropping_gives_memory_back(topic, redis):
    topic.append(b"x")
    before = redis.memory_usage("jobq:{orders}:topic:log")
    topic.append_many([b"%040d" % i for i in range(20_000)])
    topic.trim(before=20_000)
    assert redis.memory_usage("jobq:{orders}:topic:log") < before + 10_000


def test_limits_are_told_and_changed_one_by_one(topic):
    assert topic.set_limits(max_age=60, max_count=5) == Retention(60_000, 5)
    assert topic.set_limits(max_bytes=7) == Retention(60_000, 5, 7)
    assert topic.set_limits(max_age=0) == Retention(0, 5, 7)


@pytest.mark.parametrize(
    "bad", [{"max_age": -1}, {"max_count": -1}, {"max_bytes": 2**60}, {"max_age": "soon"}]
)
def test_limit_that_is_none_is_refused(topic, bad):
    with pytest.raises(ConfigError):
        topic.set_limits(**bad)


@pytest.mark.parametrize("first", [{"max_count": 5}, {"max_bytes": 5}])
def test_compaction_goes_with_age_only(topic, first):
    topic.set_limits(**first)
    with pytest.raises(ConfigError, match="only max_age"):
        topic.set_limits(compact=True)
    assert not topic.limits().compact
