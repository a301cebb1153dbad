"""When a child has served its time."""

from __future__ import annotations

from datetime import timedelta

import pytest
from freezegun import freeze_time

from jobq.config import WorkerSettings
from jobq.worker.recycle import MemoryKills, Recycling, resident_bytes


def recycling(**settings):
    return Recycling(WorkerSettings(processes=1, **settings))


def test_child_without_limits_stays():
    made = recycling()
    assert not made.due(10**9)
    assert made.left(64, 10**9) == 64


def test_child_leaves_after_so_many_jobs_and_takes_no_more_than_are_left():
    made = recycling(max_jobs=100)
    assert made.left(64, 70) == 30
    assert not made.due(99)
    assert made.due(100)
    assert made.reason == "after 100 jobs"


def test_child_leaves_by_its_age():
    with freeze_time() as clock:
        made = recycling(max_age_s=100)
        clock.tick(timedelta(seconds=89))
        assert not made.due(0)
        clock.tick(timedelta(seconds=11))
        assert made.due(0)


@pytest.mark.parametrize(("limit", "leaves"), [(1, True), (1_000_000, False)])
def test_child_leaves_over_its_memory(limit, leaves):
    with freeze_time() as clock:
        made = recycling(max_memory_mb=limit)
        clock.tick(timedelta(seconds=1))
        assert made.due(0) is leaves


def test_memory_of_this_process_is_that_of_an_interpreter():
    assert 5 << 20 < resident_bytes() < 4 << 30


def test_kills_that_could_not_be_counted_before_are_not_new_ones(tmp_path):
    events = tmp_path / "memory.events"
    kills = MemoryKills(events)
    events.write_text("oom_kill 5\n")
    assert not kills.more()
    events.unlink()
    assert not kills.more()
    events.write_text("oom_kill 5\n")
    assert not kills.more()
    events.write_text("oom_kill 6\n")
    assert kills.more()
