"""The memory that a child shares with its supervisor."""

from __future__ import annotations

import os

import pytest

from jobq.client.clock import boot_ns
from jobq.queue.types import Message
from jobq.worker import shared_state as slots
from jobq.worker.shared_state import SharedSlots

LATER = 3_600_000_000_000


def message(mid, token="caller0123456789.1.0"):
    return Message(mid, b"", 1, 0, 1, "life", token, 0)


@pytest.fixture
def memory():
    return SharedSlots()


def test_what_was_published_is_read_back(memory):
    long = "é" * 128
    memory.publish(3, [message("a"), message(long, "t" * 60)], boot_ns() + LATER)
    assert memory.held() == [
        (0, slots.HELD, 3, "a", "caller0123456789.1.0"),
        (1, slots.HELD, 3, long, "t" * 60),
    ]
    assert memory.busy


def test_as_many_as_a_worker_may_take_have_room(memory):
    memory.publish(0, [message(f"m{n}") for n in range(200)], boot_ns() + LATER)
    assert [held.mid for held in memory.held()] == [f"m{n}" for n in range(200)]


def test_publishing_nothing_empties_it(memory):
    memory.publish(0, [message("a")], boot_ns() + LATER)
    memory.publish(0, (), 0)
    assert memory.held() == []
    assert not memory.busy


def test_start_is_refused_past_the_deadline_when_taken_or_when_lost(memory):
    memory.publish(0, [message(mid) for mid in "abcd"], boot_ns() + LATER)
    assert memory.start(0)
    memory.states[1] = slots.TAKEN
    assert not memory.start(1)
    memory.lost[2] = 1
    assert not memory.start(2)
    memory.words[slots.UNTIL + 3] = boot_ns()
    assert not memory.start(3)
    assert [held.state for held in memory.held()] == [slots.RUNNING, slots.HELD, slots.HELD]


def test_job_is_overdue_once_its_hard_timeout_is_over(memory):
    memory.publish(0, [message("a"), message("b")], boot_ns() + LATER)
    memory.start(0, kill_after_s=60)
    memory.start(1)
    now = boot_ns()
    assert memory.overdue(now) == []
    assert memory.overdue(now + 61_000_000_000) == [0]


def test_deadline_is_the_earliest_of_what_runs(memory):
    assert memory.deadline() == slots.NEVER
    soon, later = boot_ns() + LATER, boot_ns() + 2 * LATER
    memory.add(5, 1, message("a"), later)
    memory.add(7, 1, message("b"), soon)
    assert memory.deadline() == slots.NEVER
    memory.start(5)
    assert memory.deadline() == later
    memory.start(7)
    assert memory.deadline() == soon
    assert [(held.slot, held.mid) for held in memory.held()] == [(5, "a"), (7, "b")]


def test_child_and_parent_see_the_same(memory):
    pid = os.fork()
    if pid == 0:
        memory.caller = "caller0123456789"
        memory.publish(1, [message("from-child")], boot_ns() + LATER)
        os._exit(0)
    os.waitpid(pid, 0)
    assert memory.caller == "caller0123456789"
    assert [held.mid for held in memory.held()] == ["from-child"]


def test_death_inside_the_lock_stops_nobody(memory):
    pid = os.fork()
    if pid == 0:
        memory.lock.acquire()
        os._exit(9)
    os.waitpid(pid, 0)
    assert not memory.lock.acquire(block=False)
    memory.reset()
    assert memory.lock.acquire(block=False)
    assert memory.held() == []


def test_what_is_known_to_be_lost_has_no_deadline(memory):
    memory.add(0, 0, message("a"), boot_ns() + LATER)
    memory.start(0)
    memory.lost[0] = 1
    assert memory.deadline() == slots.NEVER


def test_what_was_to_be_given_back_is_told_after_a_death_only(memory):
    memory.publish(0, [message("a"), message("b")], boot_ns() + LATER)
    memory.states[0], memory.states[1] = slots.TAKEN, slots.REPORTING
    assert [held.mid for held in memory.held()] == ["b"]
    assert [held.mid for held in memory.held(taken=True)] == ["a", "b"]


def test_what_is_parked_outlasts_the_next_batches(memory):
    memory.publish(0, [message("a"), message("b"), message("c")], boot_ns() + LATER)
    memory.states[0] = slots.ENDED
    memory.states[1] = slots.FREE
    memory.states[2] = slots.TAKEN
    parked = memory.park()
    memory.publish(1, [message("d")], boot_ns() + LATER)
    assert [(held.mid, held.state) for held in memory.held(taken=True)] == [
        ("d", slots.HELD), ("c", slots.TAKEN), ("a", slots.ENDED),
    ]  # fmt: skip
    assert memory.room == slots.COUNT - 2
    memory.unpark(parked)
    assert [held.mid for held in memory.held(taken=True)] == ["d"]
    assert memory.room == slots.COUNT
