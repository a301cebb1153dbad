"""The kit: modes, time, drains, and what it restores."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from datetime import UTC, datetime, timedelta

import pytest
from freezegun import freeze_time

from jobq.client.clock import wall
from jobq.client.runtime import runtime
from jobq.errors import (
    ConfigError,
    Dead,
    HoldKey,
    JobNotFoundError,
    JobTimeout,
    ResultTimeoutError,
    Retry,
    Snooze,
)
from jobq.jobs.context import current
from jobq.jobs.deaths import DeadCall
from jobq.jobs.middleware import everywhere
from jobq.jobs.receipt_calls import result_waits
from jobq.jobs.registry import job
from jobq.limits.rate_limit import RateLimit
from jobq.queue import presence
from jobq.queue.queue import Queue
from jobq.schedules.declared import schedule
from jobq.testing import DrainResult, Kit, kit
from jobq.testing.plain import shared_server


@pytest.fixture
def ran():
    """What jobs did, in order."""
    return []


def noting(registry, ran, **options):
    """A job that notes its argument and the time."""

    @job(name="note", registry=registry, **options)
    def note(what):
        ran.append((what, round(wall.s())))

    return note


def test_call_waits_until_it_is_drained(jobq, registry, ran):
    note = noting(registry, ran)
    note.enqueue("a")
    assert ran == []
    assert jobq.drain() == DrainResult(done=1)
    assert [what for what, _ in ran] == ["a"]
    assert jobq.all_enqueued() == []


def test_drain_jumps_to_delayed_calls_only_if_asked(jobq, registry, ran):
    note = noting(registry, ran)
    began = wall.s()
    note.options(delay="1h").enqueue("late")
    note.enqueue("now")
    assert jobq.drain() == DrainResult(done=1, left=1)
    assert jobq.drain(delayed=True) == DrainResult(done=1)
    assert [what for what, _ in ran] == ["now", "late"]
    assert 3599 <= ran[1][1] - began <= 4200


def test_retries_run_after_their_backoffs_in_virtual_time(jobq, registry, ran):
    @job(registry=registry, retries=2, retry=lambda failures, error: 100 * failures)
    def fail_twice():
        ran.append(round(wall.s()))
        if len(ran) < 3:
            raise ValueError("not yet")

    with freeze_time("2031-05-06 07:08:09"):
        fail_twice.options(delay="1h").enqueue()
        assert jobq.drain(delayed=True, raises=False) == DrainResult(done=1, failed=2)
        noon = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC).timestamp()
        assert [at - noon for at in ran] == [3600, 3700, 3900]
        assert jobq.clock.now() == datetime(2031, 5, 6, 8, 13, 9, tzinfo=UTC)


def test_error_of_a_job_is_raised_once_its_outcome_is_stored(jobq, registry):
    @job(registry=registry, retries=0)
    def fail():
        raise ValueError("broken")

    fail.enqueue()
    with pytest.raises(ValueError, match="broken"):
        jobq.drain()
    [died] = jobq.assert_dead(fail, reason="ValueError: broken")
    assert died.attempts == 1


def test_outcomes_that_jobs_choose_raise_nothing_but_dead(jobq, registry, ran):
    @job(registry=registry)
    def choose(*outcomes):
        ran.append(len(ran))
        chosen = outcomes[len(ran) - 1] if len(ran) <= len(outcomes) else "done"
        if chosen == "snooze":
            raise Snooze("1m")
        if chosen == "retry":
            raise Retry("1m")
        if chosen == "hold":
            raise HoldKey("1m")
        if chosen == "dead":
            raise Dead("enough")

    choose.options(key="k").enqueue("snooze", "retry", "hold")
    assert jobq.drain() == DrainResult(done=1, failed=1)
    assert len(ran) == 4
    ran.clear()
    choose.enqueue("dead")
    with pytest.raises(Dead, match="enough"):
        jobq.drain()


def test_retries_wait_if_asked(jobq, registry, ran):
    @job(registry=registry)
    def again():
        ran.append(1)
        raise Retry("1m")

    again.enqueue()
    assert jobq.drain(retries=False) == DrainResult(failed=1, left=1)
    jobq.clock.move("2m")
    assert jobq.drain(retries=False) == DrainResult(failed=1, left=1)
    assert len(ran) == 2


def test_calls_without_end_stop_at_the_limit(jobq, registry):
    @job(name="again", registry=registry)
    def again():
        again.enqueue()

    again.enqueue()
    with pytest.raises(ConfigError, match="20 attempts ran"):
        jobq.drain(limit=20)


def test_keys_and_limits_and_expiry_go_by_the_clock(jobq, registry, ran):
    note = noting(registry, ran, limits=[RateLimit("two", "2/m")])
    Queue("default", jobq.client).rules(key_rate="1/m")
    for what in "abc":
        note.options(key="k").enqueue(what)
    note.options(expires_in="1m").enqueue("never")
    jobq.clock.move("5m")
    began = wall.s()
    assert jobq.drain() == DrainResult(done=3, expired=1)
    assert sorted(what for what, _ in ran) == ["a", "b", "c"]
    assert wall.s() - began >= 115


def test_schedule_ticks_as_the_clock_moves(jobq, registry, ran):
    @schedule("0 * * * *", tz="UTC")
    @job(name="hourly", registry=registry)
    def hourly():
        ran.append(current().tick)

    with freeze_time("2031-05-06 07:08:09"):
        jobq.tick()
        jobq.refute_enqueued(hourly)
        for _ in range(3):
            jobq.clock.move("1h")
            jobq.tick()
            jobq.drain()
    assert [tick.hour for tick in ran] == [8, 9, 10]


def test_on_dead_is_called(jobq, registry, ran):
    def on_dead(died: DeadCall) -> None:
        ran.append(died.job)

    @job(name="dies", registry=registry, on_dead=on_dead)
    def dies():
        raise Dead("over")

    dies.enqueue()
    assert jobq.drain(raises=False) == DrainResult(done=1, dead=1)
    assert ran == ["dies"]


def test_inline_runs_at_once_and_raises_at_the_enqueue(jobq, registry, ran):
    @job(name="inner", registry=registry)
    async def inner(what):
        await asyncio.sleep(0)
        ran.append(what)

    @job(name="outer", registry=registry, result_ttl=60)
    def outer(what):
        inner.enqueue(what)
        assert ran == [what]
        inner.options(delay=60).enqueue("later")
        return what

    @job(name="fail", registry=registry)
    def fail():
        raise ValueError("broken")

    before = everywhere.layers
    with jobq.mode("inline"):
        assert outer.enqueue("a").result(timeout=60) == "a"
        with pytest.raises(ValueError, match="broken"):
            fail.enqueue()
    assert everywhere.layers == before
    assert jobq.drain(delayed=True, raises=False, queues="default").done == 1
    assert ran == ["a", "later"]


def test_inline_calls_may_nest_only_so_deep(jobq, registry):
    @job(name="deeper", registry=registry)
    def deeper():
        deeper.enqueue()

    with jobq.mode("inline"), pytest.raises(ConfigError, match="25 deep"):
        deeper.enqueue()


def test_event_loop_drains_and_enqueues_inline(jobq, registry, ran):
    @job(name="loop", registry=registry)
    async def on_loop(what):
        ran.append((what, asyncio.get_running_loop()))

    @job(name="thread", registry=registry)
    def in_thread(what):
        ran.append((what, asyncio.run(asyncio.sleep(0, "own loop"))))

    async def program():
        await on_loop.aenqueue("a")
        in_thread.enqueue("b")
        assert await jobq.adrain() == DrainResult(done=2)
        assert ran == [("a", asyncio.get_running_loop()), ("b", "own loop")]
        with jobq.mode("inline"):
            await on_loop.aenqueue("c")
            on_loop.enqueue("d")
        assert [what for what, _ in ran] == ["a", "b", "c", "d"]

    asyncio.run(program())


def test_wait_for_a_result_ends_and_says_drain_when_nothing_runs_the_call(
    jobq, registry, ran, monkeypatch
):
    receipt = noting(registry, ran, result_ttl="1h").enqueue("a")
    nothing = r"and no worker runs; in a test, calls run in jobq\.drain"
    with pytest.raises(ResultTimeoutError, match=nothing):
        receipt.result(timeout=0.01)
    monkeypatch.setattr("jobq.jobs.receipt_calls.CHECK_EVERY_S", 0.01)
    with pytest.raises(ResultTimeoutError, match=nothing):
        receipt.result()
    presence.put_worker(jobq.client, "of another process", {"seen_at": 1, "queues": ["default"]})
    with pytest.raises(ResultTimeoutError, match=r"within 0\.02 s; in a test"):
        receipt.result(timeout=0.02)
    drained = threading.Timer(0.05, jobq.drain)
    drained.start()
    assert receipt.result() is None
    drained.join()


def test_wait_for_a_result_advises_why_when_the_test_is_over(server):
    before = result_waits.on_wait, result_waits.advice
    with Kit(server.url):
        assert result_waits.on_wait is not None
    assert (result_waits.on_wait, result_waits.advice) == before and "jobq why" in before[1]


def test_worker_is_a_process_that_knows_the_jobs_of_the_test(jobq, registry, tmp_path):
    @job(name="write", registry=registry)
    def write(name):
        (tmp_path / name).write_text(str(os.getpid()))

    with jobq.worker() as worker:
        write.enqueue("a")
        worker.wait(timeout=120)
        with pytest.raises(ConfigError, match="uses the server's clock"):
            jobq.clock.move(60)
    assert (tmp_path / "a").read_text() != str(os.getpid())
    with pytest.raises(ZeroDivisionError), jobq.worker() as worker:
        _ = 1 / 0
    assert not worker.is_alive
    with jobq.mode("worker"):
        write.enqueue("b")
        with pytest.raises(ConfigError, match="a worker is already running"), jobq.worker():
            pass
    jobq.clock.move(60)
    with pytest.raises(ConfigError, match="use drain"), jobq.worker():
        pass


def test_functions_of_worker_started_run_in_each_process_before_its_jobs(jobq, registry, tmp_path):
    opened = []

    @registry.worker_started
    def connect():
        opened.append(f"connected in {os.getpid()}")

    registry.worker_started(lambda: opened.append("ready"))

    @job(name="look", registry=registry)
    def look(name):
        (tmp_path / name).write_text("; ".join(opened) + f"; ran in {os.getpid()}")

    with jobq.worker() as worker:
        look.enqueue_many([("a",), ("b",)])
        worker.wait(timeout=120)
    texts = {(tmp_path / name).read_text() for name in ("a", "b")}
    assert len(texts) == 1
    assert re.fullmatch(r"connected in (\d+); ready; ran in \1", texts.pop())
    assert (connect(), len(opened)) == (None, 1)


def test_worker_started_takes_plain_functions_only(registry):
    async def connect():
        pass

    for given in (connect, 5):
        with pytest.raises(ConfigError, match="use a function that is not async"):
            registry.worker_started(given)


def test_timeout_is_real_and_leaves_the_timer_of_others(jobq, registry):
    import signal

    @job(name="slow", registry=registry, timeout=0.05)
    def slow():
        while True:
            pass

    rang = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        slow.enqueue()
        with pytest.raises(JobTimeout):
            jobq.drain()
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_unknown_job_is_an_error(jobq, registry, ran):
    noting(registry, ran)
    Queue("default", jobq.client).enqueue(b'{"job":"elsewhere"}')
    with pytest.raises(JobNotFoundError, match="isn't registered here"):
        jobq.drain()


def test_results_are_over_when_asked(jobq, registry):
    @job(registry=registry, result_ttl=60)
    def answer():
        return 42

    receipt = answer.enqueue()
    jobq.drain()
    assert receipt.result(timeout=60) == 42
    assert jobq.clock.expire_results() == 1
    with pytest.raises(Exception, match="ended without a stored result"):
        receipt.result(timeout=60)


def test_clock_goes_forward_only(jobq):
    before = jobq.clock.now()
    jobq.clock.move(timedelta(days=2))
    assert timedelta(days=2) <= jobq.clock.now() - before < timedelta(days=2, minutes=5)
    for at, why in ((before, "can't go back"), (datetime(2040, 1, 1), "no time zone")):
        with pytest.raises(ConfigError, match=why):
            jobq.clock.move_to(at)
    with pytest.raises(ConfigError, match="can't go back"):
        jobq.clock.move(-1)


def test_kit_restores_everything_and_reports_what_is_left(registry, ran, monkeypatch):
    monkeypatch.setenv("JOBQ_URL", "redis://elsewhere:1")
    client, layers = runtime.default, everywhere.layers
    note = noting(registry, ran)
    made = Kit(shared_server.url, mode="inline", strict=True, registry=registry)
    note.enqueue("run")
    assert os.environ["JOBQ_URL"] == made.url
    made.clock.move("1h")
    note.options(delay=5).enqueue("left")
    with pytest.raises(AssertionError, match=r"1 call didn't run .*\n  note\('left'\) in default"):
        made.close()
    assert (runtime.default, everywhere.layers, wall.ahead_ms) == (client, layers, 0)
    assert os.environ["JOBQ_URL"] == "redis://elsewhere:1"
    with pytest.raises(ConfigError, match="mode 'outline' is unknown"):
        kit(mode="outline").__enter__()
    assert runtime.default is client
