"""The layout of redismq: to the byte as its programs have it, without their race."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis as redis_py

from jobq.errors import ConfigError
from jobq.topics import OutOfRangeError, RedismqTopic
from jobq.topics import redismq as layout


@pytest.fixture
def foo(client):
    return RedismqTopic("foo", client)


def send(redis, topic, content):
    """As redismq's producer does, mended: WATCH before GET."""
    counter = f"{topic}:nextIndex"
    with redis.pipeline() as pipe:
        while True:
            try:
                pipe.watch(counter)
                index = int(pipe.get(counter) or 0) + 1
                pipe.multi()
                pipe.incr(counter)
                pipe.set(f"{topic}:messages:{index}", content)
                pipe.execute()
                return index
            except redis_py.WatchError:
                continue


def poll(redis, topic, group):
    """As redismq's consumer does, once: a message, or None."""
    current = int(redis.get(f"{topic}:nextIndex") or 0)
    position = f"{topic}:{group}:nextIndex"
    with redis.pipeline() as pipe:
        while True:
            try:
                pipe.watch(position)
                cursor = int(pipe.get(position) or 0)
                if current <= cursor:
                    return None
                pipe.multi()
                pipe.incr(position)
                pipe.execute()
                return redis.get(f"{topic}:messages:{cursor + 1}")
            except redis_py.WatchError:
                continue


def plain(redis):
    return {key.decode(): redis.get(key) for key in redis.keys("*") if redis.ttl(key) == -1}


def test_keys_and_values_are_those_of_the_article(foo, redis):
    assert [foo.append(b"m%d" % i) for i in range(1, 5)] == [1, 2, 3, 4]
    reader = foo.reader("bar")
    assert [m.content for m in reader.poll(3).messages] == [b"m1", b"m2", b"m3"]
    assert plain(redis) == {
        "foo:nextIndex": b"4", "foo:bar:nextIndex": b"3",
        **{f"foo:messages:{i}": b"m%d" % i for i in range(1, 5)},
    }  # fmt: skip


def test_message_twelve_of_twelve_is_delivered(foo):
    foo.append_many([b"%d" % i for i in range(1, 13)])
    reader = foo.reader("bar")
    assert len(reader.poll(11).messages) == 11
    assert [m.index for m in reader.poll().messages] == [12]
    assert reader.poll().messages == []


def test_their_programs_and_ours_read_and_write_one_topic(foo, redis):
    ours, theirs = foo.reader("bar"), []
    for i in range(20):
        (foo.append if i % 2 else lambda m: send(redis, "foo", m))(b"%d" % i)
    read = []
    for i in range(20):
        if i % 3:
            theirs.append(poll(redis, "foo", "bar"))
        else:
            read += [m.content for m in ours.poll(1).messages]
    assert sorted(map(int, theirs + read)) == list(range(20))
    assert redis.get("foo:bar:nextIndex") == b"20"


def test_no_message_is_overwritten_when_producers_race(foo, redis, client):
    def work(number):
        if number % 2:
            return [send(redis, "foo", b"%d.%d" % (number, i)) for i in range(50)]
        mine = RedismqTopic("foo", client)
        return [mine.append(b"%d.%d" % (number, i)) for i in range(50)]

    with ThreadPoolExecutor(6) as pool:
        indexes = [index for some in pool.map(work, range(6)) for index in some]
    assert sorted(indexes) == list(range(1, 301))
    assert len({m.content for m in foo.read()}) == 300


def test_append_goes_on_when_others_took_more_indexes_than_its_call_had_keys_for(foo, redis):
    foo.append(b"1")
    for _ in range(layout.SPARE + 10):
        send(redis, "foo", b"theirs")
    assert foo.append_many([b"x"] * 3) == [76, 77, 78]
    redis.delete("foo:nextIndex")
    assert foo.append(b"anew") == 1


def test_append_many_takes_more_than_one_round_trip_holds(foo):
    assert foo.append_many([b"%d" % i for i in range(2_345)]) == list(range(1, 2_346))
    assert [int(m.content) for m in foo.read()] == list(range(2_345))


def test_poll_and_append_stay_at_a_few_megabytes_in_a_call(foo, redis):
    assert foo.append_many([bytes(1_000_000)] * 12) == list(range(1, 13))
    reader, sizes = foo.reader("bar"), []
    while messages := reader.poll(1_000).messages:
        sizes.append(sum(len(m.content) for m in messages))
    assert sum(sizes) == 12_000_000 and max(sizes) <= 5_100_000
    assert sum(len(m.content) for m in foo.read()) == 12_000_000


def test_holes_are_passed_over_in_one_call_wherever_they_are(foo, redis, commands):
    foo.append_many([b"%d" % i for i in range(1, 301)])
    for i in (*range(1, 201), 250, 299, 300):
        redis.delete(f"foo:messages:{i}")
    reader = foo.reader("bar")
    batch = reader.poll(1)
    assert (batch.messages[0].index, batch.skipped) == (201, 200)
    batch = reader.poll(1_000)
    assert [m.index for m in batch.messages] == [*range(202, 250), *range(251, 299)]
    assert reader.lag().messages == 0


def test_long_stretch_of_holes_is_passed_over_a_bounded_part_at_a_time(foo, redis, commands):
    redis.set("foo:nextIndex", 10_000)
    redis.set("foo:messages:9999", b"here")
    reader = foo.reader("bar")
    assert commands(lambda: reader._ask(1)) < layout.STRETCH + 20
    batch = reader.poll(1)
    assert batch.messages[0].index == 9_999
    assert batch.skipped == 9_998 - layout.STRETCH


def test_call_brings_few_keys_until_it_meets_holes(foo, redis, monkeypatch):
    foo.append_many([b"%d" % i for i in range(1, 201)])
    redis.delete(*(f"foo:messages:{i}" for i in range(3, 190)))
    reader, brought = foo.reader("bar"), []
    call = foo.call

    def counted(script, nkeys, *rest):
        brought.append(nkeys)
        return call(script, nkeys, *rest)

    monkeypatch.setattr(foo, "call", counted)
    batches = [reader.poll(1) for _ in range(4)]
    assert [batch.messages[0].index for batch in batches] == [1, 2, 190, 191]
    assert [batch.skipped for batch in batches] == [0, 0, 187, 0]
    few, many = layout.NEAR, layout.STRETCH
    assert brought == [many, few, few, many, many]


def test_messages_expire_when_they_are_told_to(client, redis):
    topic = RedismqTopic("foo", client, ttl=60)
    topic.append(b"x")
    assert 30_000 < redis.pttl("foo:messages:1") <= 60_000
    assert redis.pttl("foo:nextIndex") == -1


def test_unsubscribing_and_reading_again_replays_the_live_messages(foo, redis):
    foo.append_many([b"1", b"2", b"3"])
    reader = foo.reader("bar")
    reader.poll()
    redis.delete("foo:messages:1")
    reader.unsubscribe()
    assert not redis.exists("foo:bar:nextIndex")
    assert [m.content for m in reader.poll().messages] == [b"2", b"3"]


def test_groups_read_independently_and_share_among_themselves(foo):
    foo.append_many([b"%d" % i for i in range(10)])
    one, other, third = foo.reader("a"), foo.reader("a"), foo.reader("b")
    shared = [m.index for r in (one, other, one, other) for m in r.poll(3).messages]
    assert shared == list(range(1, 11))
    assert len(third.poll().messages) == 10


def test_seek_moves_the_group(foo):
    foo.append_many([b"%d" % i for i in range(1, 6)])
    reader = foo.reader("bar")
    assert reader.seek("latest") == 6
    assert reader.poll().messages == []
    assert reader.seek(4) == 4
    assert [m.index for m in reader.poll().messages] == [4, 5]
    assert reader.seek("earliest") == 1
    assert reader.poll(1).first == 1
    for place in (0, 7):
        with pytest.raises(OutOfRangeError):
            reader.seek(place)
    with pytest.raises(ConfigError):
        reader.seek("begin")


@pytest.mark.parametrize(("rule", "given"), [("earliest", [1]), ("latest", []), ("error", None)])
def test_group_ahead_of_a_counter_that_was_lost_goes_on_by_its_rule(foo, redis, rule, given):
    foo.append_many([b"x"] * 5)
    reader = foo.reader("bar", out_of_range=rule)
    reader.poll()
    redis.set("foo:nextIndex", 1)
    if given is None:
        with pytest.raises(OutOfRangeError, match="1 to 1"):
            reader.poll()
    else:
        assert [m.index for m in reader.poll().messages] == given
        assert redis.get("foo:bar:nextIndex") == b"1"


@pytest.mark.parametrize("rule", ["earliest", "latest"])
def test_call_with_other_keys_than_the_next_ones_writes_nothing(foo, redis, rule):
    foo.append_many([b"x"] * 5)
    redis.mset({"foo:nextIndex": 1, "foo:bar:nextIndex": 5})
    before = {key: redis.dump(key) for key in redis.keys("*")}
    poll = foo.scripts("foo:bar:nextIndex")["redismq_poll"]
    word, *_ = foo.call(poll, 9, {"base": 3, "count": 9, "out_of_range": rule})
    assert word == b"moved"
    assert {key: redis.dump(key) for key in redis.keys("*")} == before


def test_repeated_calls_are_answered_and_not_made_again(foo, client, redis):
    append = foo.scripts("")["redismq_append"]
    foo.call(append, 9, {"base": 0, "ttl_ms": ""}, [b"a", b"b"])
    caller = foo.callers.take()
    caller.number -= 1
    foo.callers.give_back(caller)
    again = foo.call(append, 9, {"base": 0, "ttl_ms": ""}, [b"a", b"b"])
    assert again == [b"ok", 1, 2]
    assert redis.get("foo:nextIndex") == b"2"
    reader = foo.reader("bar")
    first = reader.poll(1)
    caller = foo.callers.take()
    caller.number -= 1
    foo.callers.give_back(caller)
    reader._position = 0
    assert reader.poll(1) == first
    assert redis.get("foo:bar:nextIndex") == b"1"


def test_waiting_poll_sees_what_another_program_sends(foo, redis, server):
    reader, got = foo.reader("bar"), []
    waiting = threading.Thread(target=lambda: got.extend(reader.poll(block=60).messages))
    waiting.start()
    send(redis, "foo", b"now")
    waiting.join(120)
    assert [m.content for m in got] == [b"now"]


def test_deleted_topic_begins_anew(foo, redis):
    foo.append_many([b"x"] * 1_500)
    foo.delete()
    assert plain(redis) == {}
    assert foo.append(b"x") == 1


@pytest.mark.parametrize("name", ["a:b", "", "a b"])
def test_name_whose_keys_would_be_anothers_is_refused(client, foo, name):
    with pytest.raises(ConfigError):
        RedismqTopic(name, client)
    with pytest.raises(ConfigError):
        foo.reader(name)


def test_group_messages_is_refused(foo):
    with pytest.raises(ConfigError, match="keys of the topic's messages"):
        foo.reader("messages")


@pytest.mark.parametrize("call", [
    lambda foo: foo.reader("g", out_of_range="x"), lambda foo: foo.reader("g").poll(0),
    lambda foo: RedismqTopic("foo", foo.client, ttl=0), lambda foo: foo.append("text"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(foo, call):
    with pytest.raises(ConfigError):
        call(foo)
