"""Compaction: of each key the newest message stays, at its own index; readers notice nothing but the holes."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime

import pytest

from jobq.topics import Record, Topic


def state(topic):
    """key -> newest content, as anyone would find it who reads the topic from the beginning."""
    found = {}
    for message in topic.read(out_of_range="earliest"):
        if message.key is not None:
            found[message.key] = message.content
    return {key: content for key, content in found.items() if content is not None}


def kept(topic):
    return [m.index for m in topic.read(out_of_range="earliest")]


def test_newest_of_each_key_stays_at_its_index(topic):
    for i, key in enumerate("abacab"):
        topic.append(b"%d" % i, key=key)
    assert topic.compact() == 6
    assert kept(topic) == [4, 5, 6]
    assert topic.get(4).content == b"3"
    assert topic.get(1) is None


def test_messages_without_a_key_stay(topic):
    topic.append_many([b"1", Record(b"2", "k"), b"3", Record(b"4", "k")])
    topic.compact()
    assert kept(topic) == [1, 3, 4]


def test_deletion_removes_its_key_and_later_itself(topic, at):
    topic.set_limits(compact=True, tombstones=60)
    topic.append(b"1", key="a", now=at(0))
    topic.append(None, key="a", now=at(1_000))
    topic.append(b"2", key="b", now=at(2_000))
    topic.compact(now=at(3_000))
    assert kept(topic) == [2, 3]
    topic.append(b"3", key="b", now=at(4_000))
    topic.compact(now=at(61_001))
    assert kept(topic) == [4]


def test_deletion_is_kept_for_a_day_unless_said_otherwise(topic):
    assert topic.set_limits(compact=True).tombstone_ms == 86_400_000


def test_compacting_again_changes_nothing(topic, facts):
    topic.append_many([Record(b"x", key) for key in "abab"])
    topic.compact()
    before = facts()
    topic.compact()
    assert facts() == before


@pytest.mark.parametrize("seed", range(4))
def test_state_is_the_same_before_and_after_at_every_step(topic, seed):
    rng = random.Random(seed)
    model: dict[str, bytes] = {}
    for _ in range(12):
        for _ in range(rng.randrange(60)):
            key, content = rng.choice("abcdefgh"), rng.choice([b"%d" % rng.randrange(100), None])
            topic.append(content, key=key)
            model[key] = content
        expected = {k: v for k, v in model.items() if v is not None}
        begin, under_way = 1, 1
        while under_way:
            assert state(topic) == expected
            under_way, _ = topic._binding.run(
                "compact", {"now": "", "begin": begin, "limit": rng.choice([1, 3, 10])}
            )
            begin = 0
        assert state(topic) == expected
        assert topic.describe().messages == len(kept(topic))
    assert len(kept(topic)) <= 8


def test_appends_while_a_compaction_is_under_way_are_all_there(topic):
    topic.append_many([Record(b"%d" % i, "abc"[i % 3]) for i in range(30)])
    begin, under_way, appended = 1, 1, []
    while under_way:
        under_way, _ = topic._binding.run("compact", {"now": "", "begin": begin, "limit": 2})
        appended.append(topic.append(b"new", key="d"))
        begin = 0
    assert kept(topic) == [28, 29, 30, *appended]


def test_reader_passes_over_the_holes(topic):
    topic.append_many([Record(b"%d" % i, "ab"[i % 2]) for i in range(100)])
    reader = topic.reader("g")
    first = reader.poll(10)
    topic.compact()
    reader.commit(first)
    batch = reader.poll(10)
    assert [m.index for m in batch.messages] == [99, 100]
    assert (batch.first, batch.skipped) == (11, 0)
    assert reader.commit() == 100
    assert topic.group("g").lag().messages == 0


def test_end_that_was_compacted_away_is_no_lag(topic, at):
    topic.set_limits(compact=True, tombstones=0)
    topic.append(None, key="a", now=at(0))
    topic.compact(now=at(1))
    reader = topic.reader("g")
    assert reader.poll().messages == []
    assert topic.group("g").lag().messages == 0


def test_time_is_found_across_the_compacted_part(topic, at):
    for i in range(1, 21):
        topic.append(b"x", key="k" if i % 2 else f"k{i}", now=at(i * 1_000))
    topic.compact()
    for i in range(21, 26):
        topic.append(b"x", key="k", now=at(i * 1_000))
    for ms in range(0, 27_000, 500):
        moment = datetime.fromtimestamp(at(ms) / 1000, UTC)
        expected = next((m.index for m in topic.read() if m.at >= at(ms)), 26)
        assert topic.find(moment) == expected


def test_topic_told_to_compact_does_so_by_itself_with_its_appends(topic):
    topic.set_limits(compact=True)
    for i in range(200):
        topic.append_many([Record(b"%d.%d" % (i, j), str(j % 50)) for j in range(100)])
    facts = topic.describe()
    assert facts.compacted_to > 0
    assert facts.messages < 3_000
    assert state(topic) == {str(j % 50): b"199.%d" % j for j in range(50, 100)}


def test_compaction_gives_memory_back_where_survivors_are_scattered(topic, redis):
    topic.append_many(
        [Record(b"%040d" % i, str(i) if i % 20 == 0 else "same") for i in range(20_000)]
    )
    used = redis.memory_usage("jobq:{orders}:topic:log", samples=0)
    topic.compact()
    left = sum(
        redis.memory_usage(f"jobq:{{orders}}:topic:{key}", samples=0) or 0
        for key in ("log", "base", "clean")
    )
    assert len(kept(topic)) == 1_001
    assert left < used / 8
    assert not redis.exists("jobq:{orders}:topic:clean", "jobq:{orders}:topic:newest")


def test_age_drops_compacted_messages_too(topic, at):
    topic.set_limits(compact=True, max_age=100)
    for i, key in enumerate("abcd"):
        topic.append(b"x", key=key, now=at(i * 50_000))
    topic.compact(now=at(150_000))
    assert topic.trim(now=at(170_000)) == 3
    assert kept(topic) == [3, 4]
    assert topic.describe().messages == 2


def test_retention_during_a_compaction_is_kept_to(topic):
    topic.append_many([Record(b"%d" % i, str(i)) for i in range(40)])
    begin, under_way = 1, 1
    while under_way:
        under_way, _ = topic._binding.run("compact", {"now": "", "begin": begin, "limit": 5})
        begin = 0
        topic.trim(before=min(30, topic.describe().first + 4))
    assert kept(topic) == list(range(topic.describe().first, 41))
    assert topic.describe().messages == len(kept(topic))


def test_detached_reading_misses_nothing_while_compactions_run(topic, server):
    topic.append_many([Record(b"%d" % i, str(i)) for i in range(5_000)])
    stop = threading.Event()

    def churn():
        other = Topic("orders", topic.client)
        while not stop.is_set():
            other.append(b"x", key="churn")
            other.compact()

    churning = threading.Thread(target=churn)
    churning.start()
    try:
        for _ in range(20):
            assert [m.index for m in topic.read(1, 5_000)] == list(range(1, 5_001))
    finally:
        stop.set()
        churning.join()


def test_step_of_a_compaction_looks_at_a_few_megabytes_at_most(topic, redis):
    topic.append_many([Record(bytes(1_000_000), key="k") for _ in range(12)])
    topic._binding.run("compact", {"now": "", "begin": 1, "limit": 500})
    assert 1 < int(redis.hget("jobq:{orders}:topic:meta", "at")) <= 5
    assert topic.compact() == 12
    assert [m.index for m in topic.read(out_of_range="earliest")] == [12]
