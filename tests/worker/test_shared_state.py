"""The memory that a child shares with its supervisor."""

from __future__ import annotations

import os

import pytest

from jobq.client.clock import boot_ns
from jobq.queue.types import Message
from jobq.worker.shared_state import COUNT, NEVER, SharedSlots, SlotState

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
        (0, SlotState.HELD, 3, "a", "caller0123456789.1.0", False),
        (1, SlotState.HELD, 3, long, "t" * 60, False),
    ]
    assert memory.is_busy


def test_run_in_a_thread_is_known_as_such_until_the_slot_s_next_start(memory):
    memory.publish(0, [message("a")], boot_ns() + LATER)
    assert memory.start(0, in_thread=True)
    assert memory.held()[0].in_thread
    memory.free([0])
    memory.publish(0, [message("b")], boot_ns() + LATER)
    assert memory.start(0)
    assert not memory.held()[0].in_thread


def test_start_in_a_thread_leaves_noted_what_the_main_thread_reads(memory):
    memory.publish(0, [message("a"), message("b")], boot_ns() + LATER)
    memory.reading(1)
    assert memory.start(0, in_thread=True)
    assert memory.suspect == 2
    assert memory.start(1)
    assert memory.suspect == 0


def test_runs_that_are_over_are_counted_until_they_are_freed(memory):
    slots = memory.publish(0, [message(mid) for mid in "abcd"], boot_ns() + LATER)
    for slot in slots[:3]:
        assert memory.start(slot)
    memory.ended(0, plain=True)
    memory.ended(1, plain=False)
    assert memory.count_ended(slots) == 2
    memory.free([0])
    assert memory.count_ended(slots) == 1


def test_as_many_as_a_worker_may_take_have_room(memory):
    memory.publish(0, [message(f"m{n}") for n in range(200)], boot_ns() + LATER)
    assert [held.mid for held in memory.held()] == [f"m{n}" for n in range(200)]


def test_what_was_freed_is_held_no_more(memory):
    memory.free(memory.publish(0, [message("a")], boot_ns() + LATER))
    assert memory.held() == []
    assert not memory.is_busy


def test_start_is_refused_past_the_deadline_when_taken_or_when_lost(memory):
    memory.publish(0, [message("a")], boot_ns() + LATER)
    assert memory.start(0)
    memory.publish(0, [message("b")], boot_ns() + LATER)
    assert [held.mid for held in memory.take_back()] == ["b"]
    assert not memory.start(1)
    memory.publish(0, [message("c", "c.1.0"), message("d", "d.1.0")], boot_ns() + LATER)
    [_, c, d] = memory.held()
    memory.confirm([], [c], 0)
    assert memory.is_lost(2)
    assert not memory.start(2)
    memory.confirm([d], [], boot_ns())
    assert not memory.start(3)
    assert [held.state for held in memory.held()] == [
        SlotState.RUNNING, SlotState.HELD, SlotState.HELD,
    ]  # fmt: skip


def test_what_a_dequeue_hands_out_is_the_childs_or_the_supervisors(memory):
    memory.caller = "c"
    assert memory.claim_fetch() is None
    memory.fetching(3, boot_ns() + LATER)
    assert memory.claim_fetch() is None
    assert memory.fetched()
    memory.fetching(3, boot_ns())
    memory.publish(3, [message("m", "c.1.0")], boot_ns() + LATER)
    assert memory.claim_fetch() == (3, "c", {"c.1.0"})
    assert memory.claim_fetch() is None
    assert memory.is_fetching
    assert not memory.fetched()
    assert not memory.is_fetching
    memory.fetching(0, boot_ns())
    assert memory.fetched()


def test_job_is_overdue_once_its_hard_timeout_is_over(memory):
    memory.publish(0, [message("a"), message("b")], boot_ns() + LATER)
    memory.start(0, kill_after_s=60)
    memory.start(1)
    now = boot_ns()
    assert memory.overdue(now) == []
    assert memory.overdue(now + 61_000_000_000) == [0]


def test_latest_moment_at_which_something_runs_again_is_kept_when_the_child_is_replaced(memory):
    assert not memory.is_due_again
    memory.note_again(boot_ns() + LATER)
    memory.note_again(boot_ns())
    memory.reset()
    assert memory.is_due_again


def test_deadline_is_the_earliest_of_what_runs(memory):
    assert memory.deadline() == NEVER
    soon, later = boot_ns() + LATER, boot_ns() + 2 * LATER
    [five] = memory.publish(1, [message("a")], later)
    [seven] = memory.publish(1, [message("b")], soon)
    assert memory.deadline() == NEVER
    memory.start(five)
    assert memory.deadline() == later
    memory.start(seven)
    assert memory.deadline() == soon
    assert [(held.slot, held.mid) for held in memory.held()] == [(0, "a"), (1, "b")]


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
        memory._lock.acquire()
        os._exit(9)
    os.waitpid(pid, 0)
    assert not memory._lock.acquire(block=False)
    assert memory.snapshot() is None
    memory.reset()
    assert memory._lock.acquire(block=False)
    assert memory.held() == []


def test_what_is_known_to_be_lost_has_no_deadline(memory):
    memory.publish(0, [message("a")], boot_ns() + LATER)
    memory.start(0)
    memory.confirm([], memory.held(), 0)
    assert memory.deadline() == NEVER


def test_what_was_to_be_given_back_is_told_after_a_death_only(memory):
    memory.publish(0, [message("a"), message("b")], boot_ns() + LATER)
    memory.start(1)
    memory.ended(1, plain=False)
    memory.take_back()
    assert [held.mid for held in memory.held()] == ["b"]
    assert [held.mid for held in memory.held(taken=True)] == ["a", "b"]


def test_what_is_not_freed_outlasts_the_next_batches(memory):
    memory.publish(0, [message("a"), message("b"), message("c")], boot_ns() + LATER)
    memory.start(0)
    memory.ended(0, plain=True)
    memory.free([1])
    unstarted, leases = memory.withdraw([0, 1, 2])
    assert (unstarted, {slot: lease.mid for slot, lease in leases.items()}) == ([2], {2: "c"})
    assert list(memory.publish(1, [message("d"), message("e")], boot_ns() + LATER)) == [1, 3]
    assert [(held.mid, held.state) for held in memory.held(taken=True)] == [
        ("a", SlotState.ENDED), ("d", SlotState.HELD), ("c", SlotState.TAKEN), ("e", SlotState.HELD),
    ]  # fmt: skip
    assert memory.nfree == COUNT - 4
    memory.free([0, 2])
    assert [held.mid for held in memory.held(taken=True)] == ["d", "e"]


def test_what_the_supervisor_took_back_is_not_the_childs_to_give_back(memory):
    memory.publish(0, [message("a"), message("b")], boot_ns() + LATER)
    memory.start(0)
    memory.take_back()
    assert memory.withdraw([0, 1]) == ([1], {})


def test_renewal_of_a_message_that_the_child_has_replaced_changes_nothing(memory):
    memory.publish(0, [message("a", "old.1.0")], boot_ns() + LATER)
    old = memory.snapshot()
    memory.free([0])
    memory.publish(0, [message("b", "new.1.0")], boot_ns() + LATER)
    assert memory.confirm([], old, 0) == []
    memory.confirm(old, [], 0)
    assert memory.start(0)


def test_each_running_slot_knows_its_start(memory):
    memory.publish(0, [message("a"), message("b")], boot_ns() + LATER)
    assert memory.times().running == []
    before = boot_ns()
    assert memory.start(1) and memory.start(0)
    since = {held.mid: at for held, at in memory.times().running}
    assert before <= since["b"] <= since["a"] <= boot_ns()
    memory.ended(0, plain=True)
    assert [held.mid for held, _ in memory.times().running] == ["b"]
    assert memory.start(0) is False
    with memory._lock:  # a child that is stopped within a change
        assert [held.mid for held, _ in memory.times().running] == ["b"]


def test_run_time_is_of_started_messages_only_until_their_slot_is_free(memory):
    memory.publish(0, [message("a"), message("b")], boot_ns() + LATER)
    before = boot_ns()
    assert memory.start(0)
    for change in (lambda: None, lambda: memory.ended(0, plain=True)):
        change()
        assert 0 < memory.run_time_ns(0) <= boot_ns() - before
    memory.free([0])
    memory.publish(0, [message("c")], boot_ns() + LATER)
    assert memory.run_time_ns(0) == memory.run_time_ns(1) == 0


def test_waiting_call_keeps_its_time_when_the_child_is_within_a_change(memory):
    memory.publish(0, [message("a"), message("b")], boot_ns() + LATER)
    memory.gather([0], 7)
    assert [(held.mid, until) for held, until in memory.times().gathering] == [("a", 7)]
    with memory._lock:
        memory._states[0] = 0
        assert [held.mid for held, _ in memory.times().gathering] == ["a"]
    assert memory.times().gathering == []
