"""The owner of SIGALRM."""

from __future__ import annotations

import signal
import time

import pytest

from jobq.client.clock import boot_ns
from jobq.errors import JobAborted, JobTimeout
from jobq.worker.timers import Timers
from tests.waiting import until


@pytest.fixture
def timers():
    looks = []
    made = Timers(0.01, lambda now: looks.append(now) or 0.01)
    made.looks = looks
    before = signal.getsignal(signal.SIGALRM)
    made.install()
    yield made
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_look_around_comes_again_and_again_while_a_job_runs(timers):
    timers.in_job = True
    timers.arm()
    until(lambda: len(timers.looks) >= 3)


def test_nothing_happens_between_jobs(timers):
    timers.arm()
    until(lambda: not timers.armed)
    assert timers.looks == []


def test_soft_timeout_is_raised_once_in_the_job(timers):
    timers.in_job = True
    with pytest.raises(JobTimeout, match=r"timeout of 0\.05 s"), timers.soft_timeout(0.05):
        until(lambda: False)
    # Past it the timer goes on with its looks alone.
    seen = len(timers.looks)
    until(lambda: len(timers.looks) > seen)


def test_soft_timeout_that_was_kept_is_forgotten(timers):
    timers.in_job = True
    with timers.soft_timeout(0.2):
        pass
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 0.4)


def test_what_look_around_raises_reaches_the_job(timers):
    raised = []

    def abort(now):
        if not raised:
            raised.append(now)
            raise JobAborted("lost")
        return 60.0

    timers._look_around = abort
    timers.in_job = True
    with pytest.raises(JobAborted):
        until(timers.arm)
    assert timers.armed


def test_timer_that_a_job_stopped_goes_on_when_its_time_has_passed(timers):
    timers.in_job = True
    timers.arm()
    signal.alarm(0)
    seen = len(timers.looks)
    until(lambda: timers.arm() or len(timers.looks) > seen)


def test_soft_timeout_is_raised_when_a_job_stopped_the_timer(timers):
    def stop_timer():
        signal.alarm(0)
        until(timers.late)

    timers.in_job = True
    with pytest.raises(JobTimeout, match=r"timeout of 0\.05 s"), timers.soft_timeout(0.05):
        stop_timer()


def test_late_does_nothing_before_its_time(timers):
    timers.in_job = True
    timers._first_s = 3600.0
    timers.arm()
    timers.late()
    assert timers.looks == []


def test_time_of_each_look_is_told(timers):
    told = []
    timers._set_for = told.append
    timers.arm()
    assert len(told) == 1
    assert told[0] <= boot_ns() + 10_000_000


def test_look_that_is_reminded_while_it_looks_is_not_made_twice(timers):
    timers.in_job = True
    timers._look_around = lambda now: timers.looks.append(now) or timers.late() or 60.0
    timers.arm()
    until(lambda: timers.looks)
    assert len(timers.looks) == 1
