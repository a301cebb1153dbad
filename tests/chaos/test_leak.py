"""Many jobs through one child leave it no larger; replaced children don't lose messages."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from statistics import linear_regression

import pytest

from tests.lifecycle.conftest import start, until

from .jobs_that_weigh import resident

__all__ = ["start"]

#: 100,000 in the long form.
COUNT = 100_000 if "JOBQ_CHAOS_JOBS" in os.environ else 8_000
MODULE = "tests.chaos.jobs_that_weigh"
#: A kilobyte per job would be a leak; memory that the allocator first reserves is not a leak.
LEAK, WARM = 1024, 0.5

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="not run: needs /proc"),
    pytest.mark.timeout(900),
]


@pytest.fixture
def filled(queue, tmp_path):
    """The file that as many jobs write to as wait in the queue."""
    file = tmp_path / "weights"
    file.touch()
    calls = (json.dumps({"job": "weigh", "args": [str(file), n]}).encode() for n in range(COUNT))
    queue.enqueue_many(calls)
    return file


def drained(queue):
    """Whether nothing is left to do."""
    return not queue.admin.counts().messages


def lines(file):
    return [[int(word) for word in line.split()] for line in file.read_text().splitlines()]


def test_child_and_supervisor_take_no_more_memory_however_many_jobs_run(queue, filled, start):
    worker = start("--processes", "1", module=MODULE)
    until(lambda: filled.stat().st_size)
    before = resident(worker.pid)
    wait_for(lambda: drained(queue))
    after = resident(worker.pid)
    ran = lines(filled)
    assert len({pid for _, pid, _ in ran}) == 1
    weights = [(place, size) for place, (_, _, size) in enumerate(ran) if size]
    warm = [(place, size) for place, size in weights if place > WARM * COUNT]
    slope = linear_regression(*zip(*warm, strict=True)).slope
    assert slope < LEAK, f"{slope:.0f} bytes a job"
    assert after - before < LEAK * COUNT
    assert worker.stop() == 0


def test_children_that_are_replaced_lose_and_repeat_nothing(queue, filled, start):
    most = COUNT // 20
    worker = start("--processes", "2", "--max-jobs", str(most), module=MODULE)
    wait_for(lambda: drained(queue))
    ran = lines(filled)
    assert sorted(number for number, _, _ in ran) == list(range(COUNT))
    per_child = Counter(pid for _, pid, _ in ran)
    assert max(per_child.values()) <= most
    assert len(per_child) >= 20
    assert worker.stop() == 0
    assert queue.admin.fsck() == []


def wait_for(holds):
    """The time limit for a hundred thousand jobs."""
    for _ in range(20):
        try:
            return until(holds)
        except AssertionError:
            continue
    return until(holds)
