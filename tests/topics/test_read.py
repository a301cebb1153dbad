"""Reading without a group: by index and by time, whole or told."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jobq.errors import ConfigError
from jobq.topics import OutOfRangeError
from jobq.topics.ranges import pages


def moment(at, ms):
    return datetime.fromtimestamp(at(ms) / 1000, UTC)


@pytest.fixture
def thousands(topic, at):
    """3,000 messages, 10 ms apart, index i at at(10 * i)."""
    for first in range(1, 3_001, 100):
        for i in range(first, first + 100, 10):
            topic.append_many([b"%d" % j for j in range(i, i + 10)], now=at(10 * i))
    return topic


def test_stretch_is_read_whole_in_order(thousands):
    assert [m.index for m in thousands.read(700, 2_900)] == list(range(700, 2_901))
    assert [int(m.content) for m in thousands.read()] == list(range(1, 3_001))


@pytest.mark.parametrize(
    ("start", "end"), [(3_001, None), (5_000, 6_000), (10, 9), ("latest", None)]
)
def test_stretch_with_nothing_in_it_is_empty(thousands, start, end):
    assert list(thousands.read(start, end)) == []


def test_end_is_what_is_there_when_reading_begins(topic):
    topic.append_many([b"1", b"2"])
    reading = topic.read()
    first = next(reading)
    topic.append(b"3")
    assert [m.index for m in (first, *reading)] == [1, 2]


def test_stretch_is_read_by_time(thousands, at):
    found = list(thousands.read(moment(at, 10_010), moment(at, 20_010)))
    assert (found[0].index, found[-1].index) == (1_001, 2_000)


def test_get_finds_one_message_or_none(thousands):
    assert thousands.get(17).content == b"17"
    assert thousands.get(3_001) is thousands.get(0) is thousands.get(-7) is None
    thousands.trim(before=18)
    assert thousands.get(17) is None


def test_dropped_messages_are_told_and_not_passed_over(thousands):
    thousands.trim(before=1_500)
    with pytest.raises(OutOfRangeError, match=r"no longer has 1,?000.*1500") as told:
        list(thousands.read(1_000, 2_000))
    assert (told.value.position, told.value.first) == (1_000, 1_500)
    passed = thousands.read(1_000, 2_000, out_of_range="earliest")
    assert [m.index for m in passed] == list(range(1_500, 2_001))


@pytest.mark.parametrize("start", [0, -5])
def test_index_before_the_first_is_out_of_range(thousands, start):
    with pytest.raises(OutOfRangeError):
        list(thousands.read(start))
    assert next(thousands.read(start, out_of_range="earliest")).index == 1


def test_retention_that_overtakes_a_reader_on_its_way_is_told(thousands):
    reading = thousands.read(1, 3_000)
    seen = [next(reading).index for _ in range(10)]
    thousands.trim(before=2_000)

    def read_on():
        for message in reading:
            seen.append(message.index)

    with pytest.raises(OutOfRangeError):
        read_on()
    assert seen == list(range(1, 65))


def test_long_messages_come_in_short_pages(topic):
    topic.append_many([bytes(900_000)] * 7)
    topic.append_many([bytes(50_000)] * 20)
    topic.append_many([bytes(900_000)] * 7)
    sizes = [
        sum(len(fields[1]) for _, fields in page) for page in pages(topic._binding, 1, 34, True)
    ]
    # Never more than what a page may have and one message beyond it.
    assert sum(sizes) == 13_600_000 and max(sizes) <= 256 * 1024 + 900_000
    assert sum(len(message.content) for message in topic.read()) == 13_600_000


@pytest.mark.parametrize("place", ["soon", None, 1.5])
def test_place_that_is_none_is_refused(topic, place):
    with pytest.raises(ConfigError):
        topic.read(place)


def test_end_that_is_none_is_refused(topic):
    with pytest.raises(ConfigError, match="not an end"):
        topic.read(1, "earliest")


# By time: index i was appended at at(10 * i) in these.


@pytest.fixture
def few(topic, at):
    """1 at 10, 2 and 3 at 20, 4 at 40."""
    topic.append(b"1", now=at(10))
    topic.append_many([b"2", b"3"], now=at(20))
    topic.append(b"4", now=at(40))
    return topic


@pytest.mark.parametrize(
    ("ms", "index"),
    [(0, 1), (10, 1), (11, 2), (20, 2), (21, 4), (40, 4), (41, 5), (9_999, 5)],
    ids=["before the first", "the first's", "just after it", "two at once", "in a gap", "the last's", "after it",
         "long after"],
)  # fmt: skip
def test_find_gives_the_lowest_index_of_that_time_or_later(few, at, ms, index):
    assert few.find(moment(at, ms)) == index
    assert few.find(at(ms) / 1000) == index


def test_find_in_an_empty_topic_is_its_end(topic, at):
    assert topic.find(moment(at, 0)) == 1


def test_find_passes_over_what_is_gone(few, at):
    few.trim(before=3)
    assert few.find(moment(at, 0)) == 3


def test_find_is_right_for_every_time_of_a_long_topic(thousands, at):
    for ms in range(0, 30_100, 997):
        expected = next((m.index for m in thousands.read() if m.at >= at(ms)), 3_001)
        assert thousands.find(moment(at, ms)) == expected
