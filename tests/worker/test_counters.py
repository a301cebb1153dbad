"""Counters: exact across deaths of children, bounded whatever messages say."""

from __future__ import annotations

import os

from jobq.events import attempt_record
from jobq.queue.types import Ending
from jobq.worker.counters import MAX_JOBS, MAX_QUEUES, OTHER, Counters, Labels, counted

TWO = Labels.of(["high", "low"], ["mail", "resize"])


def ending(job, token="t", outcome="done", attempt=1, ago=20, run_us=3_000, cpu_us=1_000):
    record = attempt_record(job, attempt, ago, run_us, cpu_us, 0, "w")
    return Ending(mid="m", token=token, outcome=outcome, record=record)


def run(page, queue, one, reply="ok", slot=0):
    page.ended(queue, slot, one)
    page.reported(queue, [one], [reply])


def test_each_accepted_ending_is_counted_once_with_its_times():
    page = Counters(TWO)
    run(page, 1, ending("mail"))
    run(page, 1, ending("mail", outcome="retry", attempt=2))
    run(page, 0, ending("resize", outcome="crashed"), "dead")
    run(page, 0, ending("resize", outcome="snooze", run_us=0))
    run(page, 0, ending("resize"), "stale")
    run(page, 0, ending("nobody\x00", outcome="unknown", run_us=0))
    page.aborted(0, "mail")
    found = counted([page])
    assert found.attempts == {
        ("low", "mail", "done"): 1, ("low", "mail", "retry"): 1, ("high", "resize", "dead"): 1,
        ("high", "resize", "snoozed"): 1, ("high", OTHER, "snoozed"): 1, ("high", "mail", "aborted"): 1,
    }  # fmt: skip
    assert found.plain == {"completions_rejected": 1, "leases_lost": 0, "server_errors": 0}
    assert (found.runs["mail"].buckets[:2], found.runs["mail"].sum) == ((2, 0), 0.006)
    # The wait of a first attempt: 20 ms from enqueue to end, of which it ran 3.
    assert (found.waits["low"].buckets[:3], found.waits["low"].sum) == ((0, 0, 1), 0.017)
    assert found.cpu_s == {"mail": 0.002, "resize": 0.001}


def test_what_a_dead_child_reported_and_did_not_count_is_counted_by_its_mark():
    page, supervisors = Counters(TWO), Counters(TWO)
    pid = os.fork()
    if pid == 0:
        run(page, 1, ending("mail"), slot=3)
        page.ended(1, 5, ending("resize", outcome="dead"))
        os._exit(0)
    os.waitpid(pid, 0)
    assert counted([page]).attempts == {("low", "mail", "done"): 1}
    [(slot, mark)] = page.take_marks().items()
    assert slot == 5 and page.take_marks() == {}
    supervisors.marked(mark)
    # The next child in this place finds the series of the last one.
    run(page, 1, ending("mail"), slot=3)
    assert counted([page, supervisors]).attempts == {
        ("low", "mail", "done"): 2,
        ("low", "resize", "dead"): 1,
    }


def test_labels_are_bounded():
    queues = [f"q{number}" for number in range(MAX_QUEUES + 5)]
    jobs = [f"job{number:05}" for number in range(10_000)]
    page = Counters(Labels.of(queues, jobs))
    for number in range(10_000):
        run(page, number % len(queues), ending(jobs[number % 300]))
        run(page, len(queues) - 1, ending(f"forged{number}"))
    found = counted([page])
    assert sum(found.attempts.values()) == 20_000
    assert len(found.attempts) <= 4096
    assert len(found.runs) == MAX_JOBS + 1 and len(found.waits) <= MAX_QUEUES + 1
    assert {queue for queue, _, _ in found.attempts} <= {*queues[:MAX_QUEUES], OTHER}


def test_batch_of_scattered_slots_loses_and_keeps_exactly_its_marks():
    page = Counters(TWO)
    done = [ending("mail", token=f"t{slot}") for slot in (3, 9, 5)]
    for slot, one in zip((3, 9, 5), done, strict=True):
        page.ended(1, slot, one)
    page.ended(1, 4, ending("resize", token="kept"))
    page.reported(1, done, ["ok"] * 3)
    assert list(page.take_marks()) == [4]
    assert counted([page]).attempts["low", "mail", "done"] == 3
