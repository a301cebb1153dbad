"""How many messages a child takes at once."""

from __future__ import annotations

from jobq.worker.prefetch import Prefetch


def test_size_grows_fourfold_up_to_the_most_when_jobs_are_quick():
    prefetch = Prefetch(64, 50)
    sizes = []
    for _ in range(5):
        sizes.append(prefetch.size)
        prefetch.ran(prefetch.size, prefetch.size * 1e-5)
    assert sizes == [1, 4, 16, 64, 64]


def test_size_is_what_fits_into_the_time_when_jobs_are_slower():
    prefetch = Prefetch(64, 50)
    for _ in range(5):
        prefetch.ran(prefetch.size, prefetch.size * 0.01)
    assert prefetch.size == 5


def test_size_falls_to_one_at_once_when_a_job_was_slow():
    prefetch = Prefetch(64, 50)
    for _ in range(4):
        prefetch.ran(prefetch.size, 1e-6)
    prefetch.ran(64, 10.0)
    assert prefetch.size == 1


def test_size_is_never_below_one_or_above_the_most():
    prefetch = Prefetch(2, 50)
    prefetch.ran(1, 0.0)
    prefetch.ran(2, 0.0)
    assert prefetch.size == 2
    prefetch.ran(1, 1e9)
    assert prefetch.size == 1
