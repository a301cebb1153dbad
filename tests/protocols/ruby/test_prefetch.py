"""How much jobq holds of a Ruby queue: about a second's work, whatever the jobs take."""

from __future__ import annotations

import pytest

from jobq.protocols.ruby.prefetch import FIRST, PrefetchWindow


class Worker:
    """Runs so many jobs per second, of as many as are ready; the intake looks again after growing pauses."""

    def __init__(self, per_second: float, most: int = 1_000) -> None:
        self.window = PrefetchWindow(most)
        self.per_second = per_second
        self.now = self.ready = self.ran = self.idle_s = 0.0
        self.pause_s = 0.01
        self.largest = 0

    def look(self) -> None:
        room = self.window.room(int(self.ready), self.now)
        if room:
            self.window.took(int(self.ready), room, room, self.now)
            self.ready += room
            self.largest = max(self.largest, int(self.ready))
            self.pause_s = 0.01
            seconds = 0.001
        else:
            seconds = self.pause_s
            self.pause_s = min(0.25, 2 * self.pause_s)
        done = min(self.ready, self.per_second * seconds)
        self.idle_s += seconds - done / self.per_second
        self.ready, self.ran, self.now = self.ready - done, self.ran + done, self.now + seconds

    def go(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.look()


@pytest.mark.parametrize("per_second", [0.1, 1, 10, 100, 1_000, 10_000])
def test_about_a_second_of_work_is_held_and_no_worker_waits_for_it(per_second):
    worker = Worker(per_second)
    worker.go(20)
    worker.largest, worker.idle_s = 0, 0.0
    worker.go(60)
    assert worker.largest <= max(FIRST, 1.5 * per_second)
    assert worker.idle_s < 0.6


def test_window_shrinks_when_jobs_become_slow():
    worker = Worker(5_000)
    worker.go(10)
    assert worker.window.size == 1_000
    worker.per_second = 2
    worker.go(3_000)
    assert worker.window.size == FIRST


def test_window_is_never_larger_than_the_setting():
    worker = Worker(100_000, most=3)
    worker.go(5)
    assert worker.largest == 3


def test_take_that_found_too_few_jobs_changes_nothing():
    window = PrefetchWindow(1_000)
    window.took(0, 10, 4, 0.0)
    window.room(0, 0.001)
    assert window.size == FIRST
