"""Whose turn it is."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from itertools import pairwise
from types import ModuleType

import pytest

from jobq.config import WorkerSettings
from jobq.errors import ConfigError
from jobq.worker.async_runner import loop_library
from jobq.worker.scheduling import BatchSize, EndingPace, QueueTurns


def taken(turns, count):
    """The queues of so many turns in which each had something."""
    order = []
    for _ in range(count):
        index = turns.next()
        turns.record(index, True)
        order.append(index)
    return order


def test_equal_weights_take_turns():
    assert taken(QueueTurns([1, 1, 1]), 6) == [0, 1, 2, 0, 1, 2]


def test_weights_are_shares_that_are_spread_out():
    order = taken(QueueTurns([6, 1]), 70)
    assert Counter(order) == {0: 60, 1: 10}
    gaps = [index for index, queue in enumerate(order) if queue == 1]
    assert {b - a for a, b in pairwise(gaps)} == {7}


def test_strict_asks_the_first_again_after_every_find():
    turns = QueueTurns([1, 1], strict=True)
    assert turns.next() == 0
    turns.record(0, False)
    assert turns.next() == 1
    turns.record(1, True)
    assert turns.next() == 0


def test_lap_ends_when_every_queue_was_found_empty_and_a_new_one_begins():
    turns = QueueTurns([1, 1])
    for _ in range(2):
        asked = []
        while (index := turns.next()) is not None:
            asked.append(index)
            turns.record(index, False)
        assert sorted(asked) == [0, 1]


def test_empty_queue_is_asked_again_once_another_gave_something():
    turns = QueueTurns([1, 1])
    turns.record(turns.next(), False)
    other = turns.next()
    turns.record(other, True)
    assert 1 - other in [turns.next(), turns.next()]


def test_turn_stays_with_the_only_queue():
    turns = QueueTurns([1])
    turns.record(turns.next(), True)
    assert turns.stays(0)


def test_turn_does_not_stay_with_one_of_two_equal_queues():
    turns = QueueTurns([1, 1])
    first = turns.next()
    turns.record(first, True)
    assert not turns.stays(first)
    assert turns.next() == 1 - first


def test_turn_that_stays_counts_as_taken():
    turns = QueueTurns([3, 1])
    order = []
    index = turns.next()
    for _ in range(40):
        order.append(index)
        turns.record(index, True)
        if not turns.stays(index):
            index = turns.next()
    assert Counter(order) == {0: 30, 1: 10}


def test_strict_stays_with_the_first_queue_only():
    turns = QueueTurns([1, 1], strict=True)
    assert turns.stays(0)
    assert not turns.stays(1)


def test_queue_that_sleeps_has_no_turn_until_it_is_woken():
    turns = QueueTurns([1, 1, 1])
    turns.sleeps(1)
    assert set(taken(turns, 6)) == {0, 2}
    assert list(turns.asleep) == [1]
    turns.wakes(1)
    assert Counter(taken(turns, 6)) == {0: 2, 1: 2, 2: 2}


def test_partitions_share_the_turns_of_their_queue():
    turns = QueueTurns([4, 2, 2, 2], bases=["high", "low", "low", "low"])
    assert Counter(taken(turns, 90)) == {0: 60, 1: 10, 2: 10, 3: 10}
    for index in (1, 3):
        turns.sleeps(index)
    assert Counter(taken(turns, 90)) == {0: 60, 2: 30}
    turns.wakes(3)
    assert Counter(taken(turns, 90)) == {0: 60, 2: 15, 3: 15}


@pytest.mark.parametrize(
    "order", [["high", "high", "low", "high"], ["high", "low", "high", "high"]]
)
def test_strict_asks_partitions_in_rotation_before_a_later_queue(order):
    turns = QueueTurns([1] * 4, strict=True, bases=order)
    high, low = [i for i in range(4) if order[i] == "high"], order.index("low")
    assert taken(turns, 6) == high * 2
    assert not turns.stays(high[-1])
    for index in high[:2]:
        turns.sleeps(index)
    assert taken(turns, 3) == [high[2]] * 3
    assert turns.stays(high[2])
    turns.sleeps(high[2])
    assert taken(turns, 2) == [low, low]
    turns.wakes(high[1])
    assert turns.next() == high[1]


def test_nobody_has_a_turn_when_all_sleep():
    turns = QueueTurns([1, 1])
    turns.sleeps(0)
    turns.sleeps(1)
    assert turns.next() is None
    turns.wakes(1)
    assert turns.next() == 1


def test_strict_asks_a_woken_queue_before_later_ones():
    turns = QueueTurns([1, 1, 1], strict=True)
    turns.sleeps(0)
    assert turns.next() == 1
    turns.wakes(0)
    assert turns.next() == 0


def test_size_grows_fourfold_up_to_the_most_when_jobs_are_quick():
    prefetch = BatchSize(64, 0.05)
    sizes = []
    for _ in range(5):
        sizes.append(prefetch.size)
        prefetch.ran(prefetch.size, prefetch.size * 1e-5)
    assert sizes == [1, 4, 16, 64, 64]


def test_size_is_what_fits_into_the_time_when_jobs_are_slower():
    prefetch = BatchSize(64, 0.05)
    for _ in range(5):
        prefetch.ran(prefetch.size, prefetch.size * 0.01)
    assert prefetch.size == 5


def test_size_falls_to_one_at_once_when_a_job_was_slow():
    prefetch = BatchSize(64, 0.05)
    for _ in range(4):
        prefetch.ran(prefetch.size, 1e-6)
    prefetch.ran(64, 10.0)
    assert prefetch.size == 1


def test_size_is_never_below_one_or_above_the_most():
    prefetch = BatchSize(2, 0.05)
    prefetch.ran(1, 0.0)
    prefetch.ran(2, 0.0)
    assert prefetch.size == 2
    prefetch.ran(1, 1e9)
    assert prefetch.size == 1


def test_messages_are_fetched_ahead_and_endings_gathered_only_while_jobs_end_fast():
    pace = EndingPace(100, 0.1)
    assert not pace.gathers(0.0)
    pace.reports(10, 0.02, 0.0)
    assert pace.nahead == 0
    for turn in range(1, 9):
        assert pace.gathers(0.002 * turn)
        pace.reports(10, 0.02, 0.002 * turn)
    assert 15 <= pace.nahead <= 20
    pace.reports(90, 0.18, 0.020)
    assert 90 <= pace.nahead <= 100
    assert not pace.gathers(0.030)
    pace.reports(0, 0.0, 1.0)
    assert pace.nahead > 0
    pace.reports(1, 0.002, 1.0)
    assert pace.nahead == 0


def test_as_many_are_fetched_ahead_as_end_in_both_of_two_periods_when_reports_are_small():
    pace = EndingPace(100, 0.1)
    for ms in range(0, 200, 5):  # 40 in each period of FAST_S
        pace.reports(4, 0.08, ms / 1000)
    assert 36 <= pace.nahead <= 40
    for ms in range(200, 360, 5):
        pace.reports(1, 0.02, ms / 1000)
    assert 8 <= pace.nahead <= 12


def test_none_are_fetched_ahead_while_jobs_are_slow_on_average():
    pace = EndingPace(100, 0.1)
    for second in range(3):
        for ms in range(60):  # jobs of a second that began together
            pace.reports(3, 3.0, second + ms / 1000)
            assert pace.nahead == 0
    for ms in range(3_000, 3_100, 5):  # short jobs, and one long job among 40
        pace.reports(40, 40 * 0.002 + 1.0, ms / 1000)
    assert pace.nahead > 0
    pace.reports(10, 10.0, 3.1)
    assert pace.nahead == 0


def test_event_loops_are_made_by_uvloop_where_it_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_library() is asyncio
    with pytest.raises(
        ConfigError, match="event_loop='uvloop' needs uvloop, which isn't installed"
    ):
        loop_library("uvloop")
    installed = ModuleType("uvloop")
    monkeypatch.setitem(sys.modules, "uvloop", installed)
    assert loop_library() is loop_library("uvloop") is installed
    assert loop_library("asyncio") is asyncio
    with pytest.raises(ConfigError, match="unknown event_loop 'gevent'; use one of auto, asyncio"):
        WorkerSettings(event_loop="gevent")


def test_batch_size_is_a_multiple_of_the_calls_that_a_job_takes():
    size = BatchSize(64, 0.05, 10)
    assert size.size == 10
    size.ran(10, 0.001)
    assert size.size == 40
    size.ran(40, 0.001)
    assert size.size == 60
    size.ran(60, 5.0)
    assert size.size == 10
    assert BatchSize(64, 0.05, 100).size == 100
