"""Where a group begins, how it is moved, and how far behind it is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jobq.errors import ConfigError, LeaseLostError
from jobq.topics import OutOfRangeError


@pytest.fixture
def ten(topic, at):
    """Ten messages, a second apart: the first at at(1_000)."""
    for i in range(1, 11):
        topic.append(b"%d" % i, now=at(i * 1_000))
    return topic


def moment(at, ms):
    return datetime.fromtimestamp(at(ms) / 1000, UTC)


@pytest.mark.parametrize(
    ("start", "first"),
    [("earliest", 1), ("latest", None), (4, 4), (11, None), (4_000, 4), (4_001, 5), (0, 1), (60_000, None)],
)  # fmt: skip
def test_group_begins_where_it_is_told(ten, at, start, first):
    place = moment(at, start) if isinstance(start, int) and start not in (4, 11) else start
    reader = ten.reader("g", start=place)
    batch = reader.poll(1)
    assert [m.index for m in batch.messages] == ([first] if first else [])
    ten.append(b"next")
    assert reader.poll(20).messages[-1].index == 11


def test_group_that_is_there_stays_where_it_is(ten):
    ten.reader("g").poll(3)
    assert not ten.group("g").subscribe("latest")
    assert ten.reader("g", start="latest").poll(1).first == 4


@pytest.mark.parametrize("start", [0, 12, -1])
def test_place_outside_the_topic_is_refused(ten, facts, start):
    ten.group("there").subscribe()
    before = facts()
    with pytest.raises(OutOfRangeError, match="1 to 10") as refused:
        ten.group("g").subscribe(start)
    assert (refused.value.position, refused.value.first, refused.value.last) == (start, 1, 10)
    with pytest.raises(OutOfRangeError):
        ten.group("there").seek(start)
    assert facts() == before


def test_place_in_an_empty_topic_is_refused_without_a_range(topic):
    with pytest.raises(
        OutOfRangeError, match=r"which is empty; use 1 for new messages, 'earliest'"
    ):
        topic.group("g").subscribe(5)


@pytest.mark.parametrize("start", ["begin", "", None, True, 1.5, datetime(2026, 1, 1)])
def test_place_that_is_none_is_refused(ten, start):
    with pytest.raises(ConfigError):
        ten.group("g").subscribe(start)


def test_seek_moves_the_group_and_fences_its_readers(ten, contents):
    reader = ten.reader("g")
    batch = reader.poll(3)
    group = ten.group("g")
    assert group.seek(8) == 8
    with pytest.raises(LeaseLostError, match="moved"):
        reader.commit(batch)
    assert contents(reader.poll()) == [b"8", b"9", b"10"]
    assert group.seek("earliest") == 1
    assert group.seek("latest") == 11
    assert contents(reader.poll()) == []


def test_seek_by_time_finds_the_first_message_from_then_on(ten, at):
    group = ten.group("g")
    group.subscribe()
    assert group.seek(moment(at, 3_500)) == 4
    assert group.seek(moment(at, 99_000)) == 11


def test_subscribing_again_replays_the_topic(ten):
    reader = ten.reader("g", commit="read")
    assert len(reader.poll().messages) == 10
    assert ten.group("g").unsubscribe()
    assert len(reader.poll().messages) == 10
    assert ten.groups() == ["g"]


def test_unsubscribing_leaves_nothing_of_the_group(ten, redis, at):
    ten.reader("g").poll(3)
    ten.group("g").unsubscribe()
    assert redis.keys("*:g") == []
    assert ten.groups() == []
    assert not ten.group("g").unsubscribe()


def test_other_groups_and_detached_reads_move_nothing(ten):
    ten.reader("g").poll(3)
    before = ten.group("g").lag(now=0)
    ten.reader("other").poll(10)
    ten.group("other").seek("earliest")
    assert len(list(ten.read(2, 9))) == 8
    assert ten.group("g").lag(now=0) == before


@pytest.mark.parametrize(
    ("policy", "following", "skipped"), [("earliest", 8, 5), ("latest", None, 8)]
)
def test_group_overtaken_by_retention_goes_on_by_its_rule(ten, policy, following, skipped):
    reader = ten.reader("g", commit="read", out_of_range=policy)
    reader.poll(2)
    ten.trim(before=8)
    batch = reader.poll(1)
    assert [m.index for m in batch.messages] == ([following] if following else [])
    assert ten.group("g").lag().skipped == skipped
    if following:
        assert batch.skipped == skipped


def test_group_overtaken_by_retention_says_so_when_its_rule_is_error(ten, facts):
    reader = ten.reader("g", commit="auto", out_of_range="error")
    reader.poll(2)
    ten.trim(before=8)
    with pytest.raises(OutOfRangeError, match=r"at 3.*8 to 10") as told:
        reader.poll()
    assert (told.value.position, told.value.first, told.value.last) == (3, 8, 10)
    assert ten.group("g").lag().settled == 2
    before = facts()
    with pytest.raises(OutOfRangeError):
        reader.poll()
    assert facts() == before
    ten.group("g").set_out_of_range("earliest")
    assert reader.poll(1).first == 8


@pytest.mark.parametrize(("policy", "given"), [("earliest", [1]), ("latest", []), ("error", None)])
def test_group_ahead_of_a_topic_that_began_anew_goes_on_by_its_rule(ten, redis, policy, given):
    reader = ten.reader("g", commit="read", out_of_range=policy)
    reader.poll()
    redis.delete("jobq:{orders}:topic:log", "jobq:{orders}:topic:meta")
    ten.append(b"anew")
    if given is None:
        with pytest.raises(OutOfRangeError):
            reader.poll()
    else:
        assert [m.index for m in reader.poll().messages] == given


def test_messages_held_when_retention_drops_them_are_not_waited_for(ten, at):
    ten.reader("g", lease=1).poll(3, now=at(20_000))
    ten.trim(before=6)
    batch = ten.reader("g").poll(1, now=at(21_000))
    assert batch.first == 6
    assert ten.group("g").lag(now=at(21_000)).held == 1


def test_lag_counts_messages_and_time(ten, at):
    ten.reader("g").poll(3, now=at(20_000))
    lag = ten.group("g").lag(now=at(20_000))
    assert (lag.settled, lag.handed_out, lag.messages, lag.last) == (0, 3, 10, 10)
    assert lag.age_ms == 19_000
    assert (lag.held, lag.expired, lag.paused) == (1, 0, False)
    later = ten.group("g").lag(now=at(60_000))
    assert later.expired == 1


def test_lag_is_nothing_at_the_end(ten, at):
    ten.reader("g", commit="read").poll()
    lag = ten.group("g").lag(now=at(99_000))
    assert (lag.messages, lag.age_ms) == (0, 0)


def test_exact_lag_counts_what_compaction_left(topic):
    for i in range(10):
        topic.append(b"x", key="ab"[i % 2])
    group = topic.group("g")
    group.subscribe(4)
    assert group.lag().messages == group.lag(exact=True).messages == 7
    topic.compact()
    assert (group.lag().messages, group.lag(exact=True).messages) == (7, 2)


def test_peek_shows_what_comes_next_and_moves_nothing(ten):
    ten.reader("g").poll(3)
    group = ten.group("g")
    before = group.lag(now=0)
    assert [m.index for m in group.peek(2)] == [4, 5]
    assert len(group.peek(100)) == 7
    assert group.lag(now=0) == before
