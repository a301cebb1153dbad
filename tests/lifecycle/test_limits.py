"""Timeouts, recycling, cancelling, taking back."""

from __future__ import annotations

import signal

import pytest

from .conftest import until


def test_soft_timeout_is_raised_in_the_job_and_its_child_lives_on(queue, start, send, ledger):
    worker = start("--processes", "1")
    send("overlong", "a")
    send("quick", "b")
    until(lambda: queue.admin.dead() and ledger.lines("end"))
    assert "timeout of 1.5 s" in queue.admin.dead()[0].reason
    assert worker.stop() == 0
    assert worker.log.count(" started") == 1


def test_hard_timeout_kills_the_child_and_counts_as_a_crash(queue, start, send, ledger):
    worker = start("--processes", "1", "--crash-limit", "2")
    send("stubborn", "a")
    send("quick", "b")
    until(lambda: queue.admin.dead() and ledger.lines("end"))
    # The time runs from before the job writes that it started.
    attempts = [line["attempt"] for line in ledger.lines("start")]
    assert attempts == sorted({1, 2}.intersection(attempts))
    assert len(ledger.lines("ignored")) <= 2
    [dead] = queue.admin.dead()
    assert dead.ncrashes == 2
    assert "hard timeout" in dead.reason
    assert worker.stop() == 0
    assert worker.log.count("a job exceeded its hard timeout") == 2


@pytest.mark.parametrize("shares", [[10, 10, 5], [10]])
def test_child_is_replaced_after_so_many_jobs(queue, start, send, ledger, shares):
    for number in range(sum(shares)):
        send("quick", f"q{number}")
    assert start("--processes", "1", "--max-jobs", "10", "--burst").wait() == 0
    pids = [line["pid"] for line in ledger.lines("end")]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == shares


def test_child_is_replaced_at_its_age(queue, start, send, ledger):
    worker = start("--processes", "1", "--max-age", "1s")
    until(lambda: "by its age" in worker.log or send_one(send))
    assert worker.stop() == 0


def send_one(send):
    """Ages are looked at between jobs."""
    send("quick", f"q{next(NUMBERS)}")


NUMBERS = iter(range(1_000_000))


def test_child_is_replaced_over_its_memory(queue, start, send, ledger):
    worker = start("--processes", "1", "--max-memory", "150")
    send("grows", "a", 200)
    until(lambda: ledger.lines("end"))
    until(lambda: "MB of memory" in worker.log or send_one(send))
    assert worker.stop() == 0
    assert queue.admin.dead() == []


def test_cancelled_job_is_stopped_at_the_next_renewal(queue, start, send, ledger):
    worker = start("--processes", "1", "--lease", "3s")
    send("gated", "a")
    until(lambda: ledger.lines("start"))
    assert queue.cancel("a") == ["cancelled"]
    until(lambda: ledger.lines("aborted"))
    send("quick", "b")
    [after] = until(lambda: ledger.lines("end", "b"))
    assert after["pid"] == ledger.lines("start")[0]["pid"]
    assert worker.stop() == 0
    # Its mid is taken until its lock would have ended.
    until(lambda: queue.admin.collect() and queue.admin.counts().messages == 0)


def test_messages_behind_a_slow_job_are_taken_back(queue, start, send, ledger):
    for number in range(300):
        send("quick", f"a{number}")
    send("gated", "slow")
    for number in range(100):
        send("quick", f"b{number}")
    worker = start("--processes", "2")
    until(lambda: len(ledger.lines("end")) == 400)
    assert ledger.lines("end", "slow") == []
    until(lambda: queue.admin.counts().locked == 1)
    assert queue.status("slow").word == "locked"
    assert queue.status("slow").ncrashes == 0
    assert {line["attempt"] for line in ledger.lines("end")} == {1}
    ledger.gate("slow").touch()
    assert worker.stop() == 0


def test_what_ended_before_a_slow_job_is_reported_while_it_runs(queue, start, send, ledger):
    for number in range(305):
        send("quick", f"a{number}")
    send("gated", "slow")
    worker = start("--processes", "1")
    until(lambda: ledger.lines("start", "slow"))
    until(lambda: queue.admin.counts().locked == 1)
    assert queue.status("slow").word == "locked"
    ledger.gate("slow").touch()
    assert worker.stop() == 0
    ended = [line["name"] for line in ledger.lines("end")]
    assert len(ended) == len(set(ended)) == 306


def test_failure_before_a_slow_job_is_reported_while_that_runs(queue, start, send, ledger):
    send("again", "failed", 1)
    send("gated", "slow")
    worker = start("--processes", "1")
    until(lambda: ledger.lines("start", "slow"))
    until(lambda: queue.status("failed").word == "queued")
    assert queue.status("slow").word == "locked"
    ledger.gate("slow").touch()
    until(lambda: ledger.lines("end", "failed"))
    assert worker.stop() == 0


#: Both ways to run several jobs concurrently, and their jobs.
AT_ONCE = pytest.mark.parametrize(
    ("option", "job"), [("--concurrency", "agated"), ("--threads", "gated")]
)


@pytest.mark.loop
@AT_ONCE
def test_jobs_run_at_once_up_to_the_number_given(queue, start, send, ledger, option, job):
    for name in "abcdef":
        send(job, name)
    others = () if option == "--concurrency" else ("--concurrency", "2")
    worker = start("--processes", "1", option, "4", *others)
    until(lambda: len(ledger.lines("start")) == 4)
    # Fetched jobs that did not start are returned.
    until(lambda: queue.admin.counts().ready == 2)
    for name in "abcdef":
        ledger.gate(name).touch()
    until(lambda: queue.admin.counts().messages == 0)
    assert len(ledger.lines("end")) == 6
    assert worker.stop() == 0


@pytest.mark.loop
@pytest.mark.one_server
@pytest.mark.parametrize("job", ["agated", "gated"])
def test_hardly_any_message_is_handed_out_twice_when_slow_jobs_end_together(
    queue, start, send, ledger, job
):
    names = [str(number) for number in range(40)]
    for name in names:
        send(job, name)
    # Jobs are slow from 2 ms on. These look for their gate every 5 ms.
    worker = start(
        "--processes", "1", "--threads", "8", "--concurrency", "8", "--prefetch-time", "1ms"
    )
    for nstarted in (8, 16, 24, 32, 40):
        until(lambda nstarted=nstarted: len(ledger.lines("start")) == nstarted)
        # A message that waits for a slow job is given back, and handed out again later.
        until(lambda: queue.admin.counts().locked == 8)
        for name in ledger.names("start"):
            ledger.gate(name).touch()
    until(lambda: queue.admin.counts().messages == 0)
    # The supervisor may take messages back that were fetched and don't run yet, but hardly in each round.
    assert queue.admin.sample().fence <= 48
    assert worker.stop() == 0


def test_job_enqueues_on_the_server_of_its_worker(queue, start, send, ledger):
    worker = start("--processes", "1")
    send("enqueues", "a")
    until(lambda: ledger.lines("end", "a-child"))
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


def test_job_may_use_a_pool_of_processes_of_its_own(queue, start, send, ledger):
    worker = start("--processes", "1")
    send("forks", "a")
    [line] = until(lambda: ledger.lines("end"))
    assert line["found"] == [1, 2]
    assert worker.stop() == 0


def test_forked_process_is_ended_by_a_signal_that_comes_right_after_the_fork(
    queue, start, send, ledger
):
    worker = start("--processes", "1")
    send("forks_in_vain", "a")
    [line] = until(lambda: ledger.lines("end"))
    assert line["signal"] == -signal.SIGTERM
    send("quick", "b")  # the signal was none of the child's
    assert until(lambda: ledger.lines("end", "b"))[0]["pid"] == line["pid"]
    assert worker.stop() == 0


@pytest.mark.loop
def test_hard_timeout_of_a_thread_gives_its_neighbours_back_without_a_crash(
    queue, start, send, ledger
):
    worker = start("--processes", "1", "--threads", "5", "--crash-limit", "1")
    for name in "abc":
        send("gated", name)
    send("stubborn", "stubborn")
    until(queue.admin.dead)
    [dead] = queue.admin.dead()
    assert (dead.mid, dead.ncrashes) == ("stubborn", 1)
    assert len(ledger.lines("ignored")) <= 1
    for name in "abc":
        assert queue.status(name).ncrashes == 0
        ledger.gate(name).touch()
    until(lambda: queue.admin.counts().messages == 0)
    assert len(ledger.lines("end")) == 3
    assert worker.stop() == 0


@pytest.mark.loop
@pytest.mark.parametrize("more", [(), ("--max-jobs", "50")])
def test_sync_jobs_that_end_fast_share_round_trips_beside_an_event_loop(
    queue, start, send, ledger, redis, more
):
    for number in range(200):
        send("quick", f"q{number}")
    redis.config_resetstat()
    assert start("--processes", "1", "--burst", *more).wait() == 0
    ncalls = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    lines = ledger.lines("end")
    assert sorted(line["name"] for line in lines) == sorted(f"q{number}" for number in range(200))
    assert len({line["pid"] for line in lines}) == (4 if more else 1)
    # With a call for each end there were more than 200.
    assert ncalls < 130


@pytest.mark.loop
def test_sync_jobs_hold_no_event_loop_up_and_wait_for_a_thread(queue, start, send, ledger):
    worker = start("--processes", "1", "--concurrency", "5")
    for name in "ab":
        send("gated", name)
    # One of them runs. The other job waits for the thread, and is returned after it.
    [first] = until(lambda: ledger.lines("start"))
    other = "b" if first["name"] == "a" else "a"
    until(lambda: queue.status(other).word == "queued")
    ledger.gate(first["name"]).touch()
    until(lambda: ledger.lines("start", other))
    send("agated", "async")
    until(lambda: ledger.lines("start", "async"))
    assert not ledger.lines("end", other)
    ledger.gate("async").touch()
    until(lambda: ledger.lines("end", "async"))
    ledger.gate(other).touch()
    until(lambda: queue.admin.counts().messages == 0)
    assert [line["attempt"] for line in ledger.lines("start") if "attempt" in line] == [1, 1]
    assert worker.stop() == 0


@pytest.mark.loop
@AT_ONCE
def test_cancelled_job_that_goes_on_takes_no_others_with_it(
    queue, start, send, ledger, option, job
):
    worker = start("--processes", "1", option, "5", "--lease", "5s")
    send("refuses_cancel" if job == "agated" else "refuses_abort", "stubborn")
    for name in "abc":
        send(job, name)
    until(lambda: len(ledger.lines("start")) == 4)
    queue.cancel("stubborn")
    until(lambda: ledger.lines("ignored"))
    # Renewed again and again, the others' locks outlive what the stubborn one lost.
    first = queue.status("a").lock_expires_at
    until(lambda: queue.status("a").lock_expires_at > first + 6_000)
    for name in ("a", "b", "c", "stubborn"):
        ledger.gate(name).touch()
    until(lambda: queue.admin.counts().locked == 0)
    assert sorted(line["name"] for line in ledger.lines("start")) == ["a", "b", "c", "stubborn"]
    assert worker.stop() == 0
    assert worker.log.count(" started") == 1


@pytest.mark.loop
def test_job_that_raises_generator_exit_is_a_failure(queue, start, send, ledger):
    worker = start("--processes", "1")
    send("closes", "a")
    until(queue.admin.dead)
    assert "GeneratorExit" in queue.admin.dead()[0].reason
    assert len(ledger.lines("start")) == 1
    assert worker.stop() == 0
