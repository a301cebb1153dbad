"""Places in streams: arithmetic, and the answers of a real server about a stream that is trimmed while it is read."""

from __future__ import annotations

import json

import pytest

from jobq.errors import ConfigError, ScriptError
from jobq.pipeline import offsets
from jobq.pipeline.offsets import LogOffset, LogRange, LogTail
from jobq.topics.calls import TopicCalls
from jobq.topics.topic import Topic

KEY = "jobq:{low}:events"


def tail_of(n, length, first="1-0", last=None):
    """A stream whose `i`th entry had the id `i-0`."""
    return LogTail(KEY, last or f"{n}-0", n, length, first)


def filled(redis, upto, start=1):
    for i in range(start, upto + 1):
        redis.xadd(KEY, {"1": f"v{i}"}, id=f"{i}-0")


def test_tail_of_a_stream_that_is_not_there_has_nothing(client):
    assert offsets.events_tail(client, KEY) == LogTail(KEY, "0-0", 0, 0, "0-0")


def test_missing_key_is_told_from_one_of_another_type(client, redis):
    with pytest.raises(ScriptError) as missing:
        client.command("XINFO", "STREAM", KEY, routed_by=KEY)
    redis.set(KEY, "text")
    with pytest.raises(ScriptError) as wrong:
        client.command("XINFO", "STREAM", KEY, routed_by=KEY)
    assert offsets.is_missing_key(missing.value)
    assert not offsets.is_missing_key(wrong.value)


def test_tail_counts_every_entry_when_some_were_trimmed(client, redis):
    filled(redis, 10)
    redis.xtrim(KEY, maxlen=4, approximate=False)
    now = offsets.events_tail(client, KEY)
    assert now == LogTail(KEY, "10-0", 10, 4, "7-0")
    assert (now.dropped, now.place) == (6, LogOffset("10-0", 10))
    assert now.oldest.n == 6
    assert offsets.parsed_id(now.oldest.id) < (7, 0)


def test_tail_keeps_its_number_when_all_was_trimmed(client, redis):
    filled(redis, 3)
    redis.xtrim(KEY, maxlen=0, approximate=False)
    assert offsets.events_tail(client, KEY) == LogTail(KEY, "3-0", 3, 0, "0-0")
    assert (
        offsets.plan({"low": LogOffset("3-0", 3)}, {"low": offsets.events_tail(client, KEY)}).remade
        == []
    )


def test_key_of_a_queue_is_the_stream_that_events_go_to(client, queue, redis):
    message_id = queue.enqueue(b"v").mid
    held = queue.dequeue().messages[0]
    assert held.mid == message_id
    queue.cancel(message_id)
    assert offsets.events_tail(client, offsets.events_key("jobq", "low")).n == 1


def test_neighbours_of_an_id_are_next_to_it():
    highest = f"6-{offsets.LAST_SEQ}"
    assert (offsets.id_before("7-0"), offsets.id_after(highest)) == (highest, "7-0")
    assert (offsets.id_before("7-2"), offsets.id_after("7-1")) == ("7-1", "7-2")
    assert (offsets.id_before("0-0"), offsets.id_before("7")) == ("0-0", "6")


def test_plan_begins_with_the_oldest_entry_when_a_queue_is_new():
    [one] = offsets.plan({}, {"low": tail_of(100, 40, "61-0")}).ranges
    assert (one.expected, one.upto, one.end) == (40, "100-0", LogOffset("100-0", 100))
    assert offsets.parsed_id("60-0") < offsets.parsed_id(one.after) < offsets.parsed_id("61-0")


def test_plan_has_no_range_when_nothing_is_new():
    planned = offsets.plan({"low": LogOffset("9-0", 9)}, {"low": tail_of(9, 2, "8-0")})
    assert planned.ranges == []
    assert planned.ends == {"low": LogOffset("9-0", 9)}


def test_plan_counts_what_was_dropped_unread():
    planned = offsets.plan({"low": LogOffset("50-0", 50)}, {"low": tail_of(100, 40, "61-0")})
    assert planned.lost == {"low": 10}
    assert planned.ranges[0].expected == 50
    assert offsets.lost(planned.ranges[0], 40) == 10


def test_plan_loses_nothing_when_only_read_entries_were_dropped():
    planned = offsets.plan({"low": LogOffset("70-0", 70)}, {"low": tail_of(100, 30, "71-0")})
    assert (planned.lost, planned.remade, planned.ranges[0].expected) == ({}, [], 30)


@pytest.mark.parametrize(
    "now",
    [LogTail(KEY, "0-0", 0, 0, "0-0"), tail_of(3, 3, "80-0", "83-0"), tail_of(60, 60, "80-0", "140-0"),
     tail_of(60, 20, "80-0", "140-0")],
    ids=["deleted", "shorter", "longer", "trimmed"],
)  # fmt: skip
def test_plan_begins_anew_when_the_stream_was_made_anew(now):
    planned = offsets.plan({"low": LogOffset("50-0", 50)}, {"low": now})
    assert planned.remade == ["low"]
    assert planned.places["low"] == now.oldest
    assert [one.expected for one in planned.ranges] == [now.length] * bool(now.length)


def test_plan_keeps_its_place_when_a_failover_lost_entries_that_were_read():
    planned = offsets.plan({"low": LogOffset("50-0", 50)}, {"low": tail_of(48, 48, "1-0", "60-0")})
    [one] = planned.ranges
    assert (planned.remade, planned.lost) == ([], {})
    assert (one.after, one.upto, one.end) == ("50-0", "60-0", LogOffset("60-0", 48))


def test_plan_begins_anew_when_a_topic_has_fewer_messages_than_were_read():
    now = LogTail("log", "3", 3, 3, "1")
    planned = offsets.plan({"t": LogOffset("5", 5)}, {"t": now})
    assert (planned.remade, planned.places) == (["t"], {"t": LogOffset("0", 0)})


def test_plan_shares_rows_so_that_a_short_queue_gets_all_it_has():
    tails = {"a": tail_of(100, 100), "b": tail_of(5, 5), "c": tail_of(100, 100)}
    ranges = offsets.plan({}, tails, max_rows=45).ranges
    assert [(one.queue, one.limit) for one in ranges] == [("a", 20), ("b", 0), ("c", 20)]


def test_plan_gives_every_queue_a_row_when_there_are_more_queues_than_rows():
    tails = {name: tail_of(9, 9) for name in "abc"}
    assert [one.limit for one in offsets.plan({}, tails, max_rows=1).ranges] == [1, 1, 1]


def test_parts_cover_the_range_once():
    for count in (1, 2, 3, 7, 50):
        cut = offsets.parts("100-3", "110-9", count)
        assert offsets.parsed_id(cut[0][0]) == (100, 2)
        assert cut[-1][1] == "110-9"
        assert [high for _, high in cut[:-1]] == [low for low, _ in cut[1:]]
        assert len(cut) <= count


def test_parts_are_one_when_all_entries_have_one_time():
    assert offsets.parts("100-3", "100-9", 8) == [("100-2", "100-9")]


def test_places_survive_text():
    places = {"b": LogOffset("5-1", 7), "a": LogOffset()}
    text = json.dumps(offsets.to_plain(places))
    assert text == '{"a": {"id": "0-0", "n": 0}, "b": {"id": "5-1", "n": 7}}'
    assert offsets.from_plain(offsets.loaded(text)) == places


@pytest.mark.parametrize("text", ["[]", "{", '{"a": "5-1"}', '{"a": {"id": "x", "n": 1}}', "5"])
def test_places_are_refused_when_the_text_is_none_of_ours(text):
    with pytest.raises(ConfigError, match="offsets"):
        offsets.from_plain(offsets.loaded(text))


def test_counted_finds_the_place_after_so_many_entries(client, redis):
    filled(redis, 30)
    assert offsets.counted_offset(client, KEY, LogOffset(), limit=7) == LogOffset("7-0", 7)
    assert offsets.counted_offset(client, KEY, LogOffset("7-0", 7), "20-0", 100) == LogOffset(
        "20-0", 20
    )
    assert offsets.counted_offset(client, KEY, LogOffset("30-0", 30)) == LogOffset("30-0", 30)


def test_counted_goes_on_over_more_than_one_step(client, redis, monkeypatch):
    monkeypatch.setattr(offsets, "STEP", 4)
    filled(redis, 30)
    assert offsets.counted_offset(client, KEY, LogOffset(), "29-0") == LogOffset("29-0", 29)
    assert offsets.counted_offset(client, KEY, LogOffset(), limit=8) == LogOffset("8-0", 8)


def test_counted_includes_dropped_entries_in_the_number(client, redis):
    filled(redis, 30)
    redis.xtrim(KEY, maxlen=10, approximate=False)
    assert offsets.counted_offset(client, KEY, LogOffset("5-0", 5), limit=3) == LogOffset(
        "23-0", 23
    )


def test_reached_is_the_end_when_a_range_without_limit_was_read(client):
    asked = LogRange("low", KEY, "5-0", "30-0", 25, 0, LogOffset("5-0", 5))
    assert offsets.offset_reached(client, asked, 25, "30-0") == (LogOffset("30-0", 30), 0)
    assert offsets.offset_reached(client, asked, 20, "30-0") == (LogOffset("30-0", 30), 5)


@pytest.mark.parametrize(
    ("kept", "read", "last", "place", "lost"),
    [(30, 10, 15, LogOffset("15-0", 15), 0), (20, 5, 15, LogOffset("15-0", 15), 5),
     (20, 10, 15, LogOffset("15-0", 15), 0), (5, 10, 15, LogOffset("25-0", 25), 10),
     (0, 10, 15, LogOffset("30-0", 30), 15)],
    ids=["whole", "before", "after-it-was-read", "beyond", "all"],
)  # fmt: skip
def test_reached_is_exact_when_entries_are_trimmed_meanwhile(
    client, redis, kept, read, last, place, lost
):
    """Read from 5 on with a limit; `read` entries up to `last` came, and now only `kept` are left."""
    filled(redis, 30)
    redis.xtrim(KEY, maxlen=kept, approximate=False)
    asked = LogRange("low", KEY, "5-0", "30-0", 25, read, LogOffset("5-0", 5))
    found, missing = offsets.offset_reached(client, asked, read, f"{last}-0")
    assert (found.n, missing) == (place.n, lost)
    behind = redis.xrange(KEY, f"({found.id}", count=1)
    assert [entry_id for entry_id, _ in behind] == [f"{place.n + 1}-0".encode()] * (place.n < 30)


def test_tail_of_a_topic_counts_indexes(client):
    topic = Topic("orders", client)
    assert offsets.topic_tail(client, "orders").n == 0
    topic.append_many([b"a", b"b", b"c", b"d"])
    topic.trim(before=3)
    now = offsets.topic_tail(client, "orders")
    assert (now.id, now.n, now.length, now.first_id) == ("4", 4, 2, "3")
    assert now.oldest == LogOffset("2", 2)


def test_tails_of_topics_come_in_order_with_the_error_of_one_that_is_none(client, redis):
    Topic("c", client).append_many([b"1", b"2"])
    redis.set(TopicCalls("b", client).log_key, "text")
    first, second, third = offsets.topic_tails(client, ["a", "b", "c"])
    assert isinstance(second, ScriptError) and "WRONGTYPE" in str(second)
    assert (first.n, third.n) == (0, 2)
    with pytest.raises(ScriptError):
        offsets.topic_tail(client, "b")


def test_streams_are_trimmed_together_and_each_tells_its_own_error(client, redis):
    filled(redis, 5)
    other, wrong = KEY.replace("low", "high"), KEY.replace("low", "wrong")
    redis.xadd(other, {"1": "v"}, id="3-0")
    redis.set(wrong, "text")
    ends = {KEY: LogOffset("3-0", 3), wrong: LogOffset("1-0", 1), other: LogOffset("2-0", 0)}
    first, second, third = offsets.trim(client, ends)
    assert first is third is None
    assert isinstance(second, ScriptError)
    assert [redis.xlen(key) for key in (KEY, other)] == [2, 1]
