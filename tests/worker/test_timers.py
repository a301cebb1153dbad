"""The owner of SIGALRM."""

from __future__ import annotations

import signal
import time

import pytest

from jobq.errors import JobAborted, JobTimeout
from jobq.worker.timers import Timers


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


def wait_for(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_look_around_comes_again_and_again_while_a_job_runs(timers):
    timers.in_job = True
    timers.arm()
    wait_for(lambda: len(timers.looks) >= 3)


def test_nothing_happens_between_jobs(timers):
    timers.arm()
    wait_for(lambda: not timers.armed)
    assert timers.looks == []


def test_soft_timeout_is_raised_once_in_the_job(timers):
    timers.in_job = True
    with pytest.raises(JobTimeout, match=r"timeout of 0\.05 s"), timers.soft_timeout(0.05):
        wait_for(lambda: False)
    # Past it the timer goes on with its looks alone.
    seen = len(timers.looks)
    wait_for(lambda: len(timers.looks) > seen)


def test_soft_timeout_that_was_kept_is_forgotten(timers):
    timers.in_job = True
    with timers.soft_timeout(0.2):
        pass
    began = time.monotonic()
    wait_for(lambda: time.monotonic() > began + 0.4)


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
        wait_for(timers.arm)
    assert timers.armed


def test_alarm_is_taken_back_after_a_job_that_handled_it(timers):
    timers.in_job = True
    timers.arm()
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    timers.job_over()
    timers.in_job = True
    timers.arm()
    wait_for(lambda: timers.looks)


def test_timer_that_a_job_stopped_or_blocked_goes_on_with_the_next_one(timers):
    timers.in_job = True
    for meddle in (
        lambda: signal.alarm(0),
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGALRM,)),
    ):
        timers.arm()
        meddle()
        timers.job_over()
        timers.in_job = True
        seen = len(timers.looks)
        wait_for(lambda seen=seen: timers.arm() or len(timers.looks) > seen)
