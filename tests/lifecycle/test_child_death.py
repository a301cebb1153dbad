"""A child dies: its messages run again immediately, and other children are unaffected."""

from __future__ import annotations

import os
import signal

import pytest

from .conftest import until


def test_job_of_a_killed_child_runs_again_in_another(queue, start, send, ledger):
    worker = start("--processes", "2", "--lease", "1h")
    send("gated", "victim")
    send("gated", "bystander")
    until(lambda: len(ledger.lines("start")) == 2)
    [victim] = ledger.lines("start", "victim")
    [bystander] = ledger.lines("start", "bystander")
    assert victim["pid"] != bystander["pid"]

    os.kill(victim["pid"], signal.SIGKILL)
    again = until(lambda: ledger.lines("start", "victim")[1:])[0]

    killed_at = victim["at"]
    assert again["pid"] not in (victim["pid"], bystander["pid"])
    assert again["attempt"] == 2
    assert queue.status("victim").ncrashes == 1
    ledger.gate("victim").touch()
    ledger.gate("bystander").touch()
    until(lambda: queue.admin.counts().messages == 0)
    assert worker.stop() == 0
    assert len(ledger.lines("start", "bystander")) == 1
    assert [len(ledger.lines("end", name)) for name in ("victim", "bystander")] == [1, 1]
    assert "killed by SIGKILL" in worker.log
    assert killed_at < again["at"]


@pytest.mark.main_thread
def test_lines_that_a_killed_child_had_not_written_are_in_the_log(start, send, ledger):
    for name in ("q0", "q1", "q2"):
        send("quick", name)
    send("gated", "victim")
    worker = start("--processes", "1", "--prefetch-time", "1h", "--crash-limit", "1")
    [victim] = until(lambda: ledger.lines("start", "victim"))
    assert "← quick q2" not in worker.log

    os.kill(victim["pid"], signal.SIGKILL)
    until(lambda: "victim attempt 1 of queue low crashed" in worker.log)
    told = worker.log
    assert [told.count(f"← quick q{number} ") for number in range(3)] == [1, 1, 1]
    assert told.index("← quick q0") < told.index("← quick q2") < told.index("was killed by SIGKILL")
    assert f" {victim['pid']} INFO    ← quick q2 " in told
    assert worker.stop() == 0


def test_job_of_a_killed_child_goes_on_from_its_checkpoint(queue, start, send, ledger):
    send("resumes", "r")
    start("--processes", "1")
    until(lambda: len(ledger.lines("step")) == 4)
    until(lambda: queue.admin.counts().messages == 0)
    assert [line["step"] for line in ledger.lines("step")] == [1, 2, 2, 3]


def test_on_dead_is_called_after_a_failure_and_after_a_crash(queue, start, send, ledger):
    send("dies", "fails")
    start("--processes", "1", "--crash-limit", "1")
    failed = until(lambda: ledger.lines("died", "fails"), "no on_dead after a failure")[0]
    # Only now: if a process dies while reading a message and running another, both are charged.
    send("dies", "killed")
    killed = until(lambda: ledger.lines("died", "killed"), "no on_dead after a crash")[0]
    until(lambda: queue.admin.counts().messages == 0, "something is left")
    assert (failed["job"], failed["crashes"], killed["crashes"]) == ("dies", 0, 1)
    assert "ValueError: bad" in failed["reason"] and "SIGKILL" in killed["reason"]
    assert len(queue.admin.dead()) == 2


def test_messages_waiting_behind_the_running_one_are_given_back_unharmed(
    queue, start, send, ledger
):
    for number in range(40):
        send("quick", f"q{number}")
    send("kills", "poison")
    for number in range(40, 80):
        send("quick", f"q{number}")
    worker = start("--processes", "1", "--crash-limit", "2")
    until(lambda: queue.admin.counts().messages == 0)

    assert len(ledger.lines("start", "poison")) == 2
    [dead] = queue.admin.dead()
    assert (dead.mid, dead.ncrashes) == ("poison", 2)
    assert "SIGKILL" in dead.reason
    ended = [line["name"] for line in ledger.lines("end")]
    assert sorted(set(ended)) == sorted(f"q{number}" for number in range(80))
    assert len(ended) == 80
    assert worker.stop() == 0


def test_failed_attempt_is_not_made_again_when_the_next_job_kills_its_child(
    queue, start, send, ledger
):
    send("again", "failed", 1)
    send("kills", "poison")
    start("--processes", "1", "--crash-limit", "1")
    until(lambda: queue.admin.dead() and queue.admin.counts().messages == 0)

    assert [line["attempt"] for line in ledger.lines("start", "failed")] == [1, 2]


def fed(queue, send, ledger, job):
    """Names of as many jobs as it takes until one ran while the next batch was on its way."""
    names = []

    def met() -> bool:
        if queue.admin.counts().ready < 100:
            more = [f"m{len(names) + number}" for number in range(100)]
            names.extend(more)
            for name in more:
                send(job, name)
        return ledger.gate("fetching").exists()

    until(met)
    return names


@pytest.mark.one_server
@pytest.mark.parametrize("job", ["dies_fetching", "adies_fetching"])
def test_nothing_is_lost_with_a_child_whose_next_batch_is_on_its_way(
    queue, start, send, ledger, job
):
    loop = "yes" if job == "adies_fetching" else "no"
    worker = start("--processes", "1", "--lease", "1h", env={"LIFECYCLE_LOOP": loop})
    names = fed(queue, send, ledger, job)
    until(lambda: queue.admin.counts().messages == 0)

    assert sorted(line["name"] for line in ledger.lines("end")) == sorted(names)
    assert queue.admin.dead() == []
    assert worker.stop() == 0


@pytest.mark.one_server
def test_batch_that_is_on_its_way_to_a_child_that_hangs_is_run_by_another(
    queue, start, send, ledger
):
    worker = start("--processes", "2", "--lease", "1h", env={"LIFECYCLE_LOOP": "no"})
    names = fed(queue, send, ledger, "hangs_fetching")
    until(lambda: len(ledger.lines("end")) == len(names) - 1)
    assert len(ledger.lines("start", "hangs")) == 1
    ledger.gate("hangs").touch()
    until(lambda: queue.admin.counts().messages == 0)

    ended = [line["name"] for line in ledger.lines("end")]
    assert sorted(ended) == sorted([*names, "hangs"])
    send("quick", "next")
    until(lambda: ledger.lines("end", "next"))
    assert worker.stop() == 0
    assert "was rejected" not in worker.log


@pytest.mark.parametrize("limit", [1, 3])
def test_poison_is_dead_after_exactly_so_many_crashes_while_others_flow(
    queue, start, send, ledger, limit
):
    worker = start("--processes", "2", "--crash-limit", str(limit))
    for number in range(30):
        send("quick", f"q{number}")
        if number == 15:
            send("kills", "poison")
    until(lambda: queue.admin.dead() and queue.admin.counts().messages == 0)

    assert len(ledger.lines("start", "poison")) == limit
    assert queue.admin.dead()[0].ncrashes == limit
    assert len(ledger.lines("end")) == 30
    assert worker.stop() == 0
    said = [line for line in worker.log.splitlines() if "crashed:" in line]
    assert [line.rpartition("; ")[2] for line in said] == ["it runs again"] * (limit - 1) + [
        "it was dead-lettered after too many crashes"
    ]
    for attempt, line in enumerate(said, 1):
        assert f"kills poison attempt {attempt} of queue low crashed: child " in line


@pytest.mark.loop
@pytest.mark.parametrize(
    ("option", "job", "deadly", "limit", "crashes"),
    [
        ("--concurrency", "agated", "akills", 3, 3),
        ("--threads", "gated", "kills", 3, 3),
        # Not even then is a message dead for a crash that another may have caused.
        ("--threads", "gated", "kills", 1, 2),
    ],
)
def test_only_the_poison_dies_when_jobs_run_concurrently(
    queue, start, send, ledger, option, job, deadly, limit, crashes
):
    worker = start("--processes", "1", option, "5", "--crash-limit", str(limit))
    for name in ("a", "b", "c"):
        send(job, name)
    until(lambda: len(ledger.lines("start")) == 3)
    send(deadly, "poison")
    # Its crash takes all four along; afterwards each of them runs alone.
    first = ledger.lines("start")[0]["pid"]
    until(lambda: ledger.lines("start", "poison") and first not in worker.children())
    for name in ("a", "b", "c"):
        ledger.gate(name).touch()
    until(lambda: queue.admin.counts().messages == 0)

    assert [(dead.mid, dead.ncrashes) for dead in queue.admin.dead()] == [("poison", crashes)]
    assert len(ledger.lines("start", "poison")) == crashes
    assert all(ledger.lines("end", name) for name in ("a", "b", "c"))


def test_child_that_is_told_to_leave_ends_its_job_and_is_replaced(queue, start, send, ledger):
    worker = start("--processes", "1")
    send("gated", "a")
    [first] = until(lambda: ledger.lines("start"))
    os.kill(first["pid"], signal.SIGTERM)
    ledger.gate("a").touch()
    until(lambda: queue.admin.counts().messages == 0)
    send("quick", "b")
    [second] = until(lambda: ledger.lines("end", "b"))

    assert second["pid"] != first["pid"]
    assert len(ledger.lines("start", "a")) == 1
    assert worker.stop() == 0


def test_child_shares_no_socket_with_its_supervisor(start, send, ledger):
    worker = start("--processes", "1")
    until(lambda: " started" in worker.log)
    [first] = worker.children()
    os.kill(first, signal.SIGKILL)
    until(lambda: worker.children() not in ([], [first]))
    send("sockets", "s")
    [line] = until(lambda: ledger.lines("end"))
    assert line["own"]
    assert line["supervisor"]
    assert not set(line["own"]) & set(line["supervisor"])
