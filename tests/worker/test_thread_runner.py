"""A call that runs in a thread: interrupted at most once for each reason, and never after its end."""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading

import pytest

import jobq
from jobq.errors import JobAborted, JobTimeout
from jobq.jobs.context import Call
from jobq.queue.types import Ending, Message
from jobq.worker.thread_runner import JobThreads, ThreadRun


def a_run(timeout=None, slot=0):
    made = jobq.job(name="j", timeout=timeout, registry=jobq.Registry())(lambda: None)
    message = Message(
        mid="m",
        token="t",
        content=b"",
        attempt=1,
        ncrashes=0,
        fence=1,
        generation="g",
        lock_expires_at=0,
    )
    return ThreadRun(0, slot, Call(made, message, "low", [], {}, {}, 0))


def in_thread(run, run_call, begun=None):
    """Run it in a thread, which then takes many steps more. Return the errors that escaped."""
    escaped = []

    def work():
        try:
            run.run_job(run_call)
            for _ in range(1_000):
                pass
        except BaseException as error:
            escaped.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, escaped


def until_interrupted(*_):
    while True:
        pass


ENDED = Ending(mid="m", token="t")


def test_stopped_job_is_told_why_and_can_tell_others():
    run, begun, told = a_run(), threading.Event(), []

    def job(run):
        try:
            begun.set()
            until_interrupted()
        except JobAborted as aborted:
            told.append((str(aborted), run.is_stopped(), pickle.loads(pickle.dumps(aborted)).args))
            raise

    thread, escaped = in_thread(run, job)
    begun.wait()
    run.stop("hurry")
    run.stop("lost")
    thread.join()
    why = "the worker must exit now"
    assert told == [(why, True, (why,))]
    assert (escaped, run.ending, run.why) == ([], None, "hurry")
    assert type(run.error).__name__ == "JobAborted"


def test_run_that_is_stopped_before_its_begin_does_not_begin():
    run = a_run()
    run.stop("hurry")
    thread, escaped = in_thread(run, lambda *_: pytest.fail("it began"))
    thread.join()
    assert (escaped, run.ending, run.error) == ([], None, None)


def test_timeout_is_raised_once_and_only_within_its_limits():
    run, passed, go = a_run(timeout=60), [], threading.Event()

    def job(*_):
        passed.append("before")
        go.wait()
        try:
            with run.limited(1e-9):
                until_interrupted()
        except JobTimeout as error:
            passed.append(str(error))
        while run.time_out() is not None:  # pragma: no cover
            pass
        return ENDED

    thread, escaped = in_thread(run, job)
    # Before its limits it isn't interrupted, whatever the clock says.
    assert run.time_out() == 60
    go.set()
    while run.time_out() is not None:
        pass
    thread.join()
    assert (escaped, run.ending, run.error) == ([], ENDED, None)
    assert passed == ["before", "ran past its timeout of 1e-09 s"]
    assert run.time_out() is None


class InterruptedLock:
    """A lock whose given calls of `acquire` succeed and then raise, as an interruption may from Python 3.14 on."""

    def __init__(self, calls):
        self._lock, self._calls, self._ncalls = threading.RLock(), calls, 0
        self.release = self._lock.release

    def acquire(self, timeout=-1):
        acquired = self._lock.acquire(timeout=timeout)
        self._ncalls += 1
        if self._ncalls in self._calls:
            raise JobTimeout("ran past its timeout of 1 s")
        return acquired

    __enter__ = acquire

    def __exit__(self, *_):
        self._lock.release()


@pytest.mark.parametrize("calls", [(1,), (2,), (1, 2)], ids=str)
def test_run_leaves_its_lock_free_when_interrupted_as_it_acquires_it(calls):
    run = a_run(timeout=1)

    def job(*_):
        run._lock = InterruptedLock(calls)
        with run.limited(60):
            pass
        return ENDED

    thread, escaped = in_thread(run, job)
    thread.join()
    assert run._lock.acquire(timeout=0)
    assert (escaped, type(run.error)) == ([], JobTimeout)


def test_thread_goes_on_to_what_follows_while_the_loop_stands_still():
    waiting, ran, over = [a_run(slot=1), a_run(slot=2)], threading.Event(), []
    threads = None

    def run_call(run):
        if run.slot == 2:
            ran.set()
        return ENDED

    def following():
        if not waiting:
            return None
        threads.note(waiting[0])
        return waiting.pop(0)

    async def main():
        nonlocal threads
        threads = JobThreads(run_call, over.append, lambda: 1.0, following)
        first = a_run()
        threads.note(first)
        threads.start(first)
        assert ran.wait(30)
        while len(over) < 3:
            await asyncio.sleep(0)
        return threads.nbusy

    assert asyncio.run(main()) == 0
    assert [(run.slot, run.ending) for run in over] == [(0, ENDED), (1, ENDED), (2, ENDED)]


@pytest.fixture
def hasty_switches():
    """Threads alternate as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# Python drops an exception that arrives while a weak reference is cleared.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("how", ["stop", "time out", "both"])
def test_nothing_is_raised_after_the_end_however_close_the_interruption_comes(hasty_switches, how):
    seen = set()
    for number in range(400):
        run, begun = a_run(timeout=1), threading.Event()

        def job(*_, run=run, begun=begun, number=number):
            begun.set()
            with run.limited(1e-9):
                for _ in range(number % 40):
                    pass
            return ENDED

        thread, escaped = in_thread(run, job)
        begun.wait()
        if how != "stop":
            run.time_out()
        if how != "time out":
            run.stop("lost")
        thread.join()
        assert escaped == []
        assert run.ending is ENDED or isinstance(run.error, JobTimeout | JobAborted)
        if how == "time out":
            assert not isinstance(run.error, JobAborted)
        seen.add(run.ending is ENDED)
    assert seen, how
