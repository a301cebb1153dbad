"""Which messages of a fetch run together, and which wait for others."""

from __future__ import annotations

import pytest

import jobq
from jobq.client.clock import boot_ns
from jobq.jobs.context import Call
from jobq.jobs.registry import Registry
from jobq.queue.types import Ending, Message
from jobq.worker import batches
from jobq.worker.batches import Gathering, batch_sizes
from jobq.worker.shared_state import NEVER, SharedSlots, SlotState


@pytest.fixture
def slots():
    return SharedSlots()


@pytest.fixture
def clock(monkeypatch):
    """The time, in seconds after the start."""
    began = boot_ns()
    now = [0.0]
    monkeypatch.setattr(batches, "boot_ns", lambda: began + round(now[0] * 1e9))
    return now


def a_job(**options):
    options = {"name": "j", "registry": Registry(), **options}
    return jobq.job(**options)(lambda calls: None)


def held(slots, job, count, ncrashes=0, args=()):
    """Fetch calls of a job; return them with their slots."""
    messages = [Message(f"m{n}", b"", 1, ncrashes, 1, "g", f"t{n}", 0) for n in range(count)]
    calls = [Call(job, message, "low", list(args), {}, {}, 0) for message in messages]
    return list(zip(slots.publish(0, messages, NEVER), calls))


def gathering_of(slots, waits=True):
    return Gathering(slots, waits, lambda *_: None)


def sizes(groups):
    return [len(group) for group in groups]


def test_full_batches_run_and_the_rest_waits_for_the_linger(slots, clock):
    gathering, job = gathering_of(slots), a_job(batch=3, linger=5)
    assert sizes(gathering.groups(0, held(slots, job, 7))) == [3, 3]
    assert (bool(gathering), gathering.slots(0), gathering.left_s()) == (True, {6}, 5)
    assert [one.state for one in slots.held()][6] == SlotState.GATHERING
    clock[0] = 4
    assert sizes(gathering.groups(0, held(slots, job, 1))) == []
    assert list(gathering.due()) == []
    clock[0] = 5
    [(index, group)] = gathering.due()
    assert (index, len(group), bool(gathering)) == (0, 2, False)
    assert all(slots.start(slot) for slot, _ in group)


def test_batch_runs_as_fetched_without_linger_and_in_a_burst(slots):
    for gathering, job in (
        (gathering_of(slots), a_job(batch=3)),
        (gathering_of(slots, waits=False), a_job(batch=3, linger=5)),
    ):
        assert sizes(gathering.groups(0, held(slots, job, 4))) == [3, 1]
        assert not gathering


def test_other_messages_and_crashed_calls_run_alone(slots):
    gathering, job = gathering_of(slots), a_job(batch=3, linger=5)
    crashed = held(slots, job, 1, ncrashes=1)
    single = held(slots, jobq.job(name="s", registry=Registry())(lambda: None), 1)
    ended = [(9, Ending(mid="m", token="t"))]
    assert sizes(gathering.groups(0, [*crashed, *single, *ended])) == [1, 1, 1]
    assert not gathering


def test_dropped_calls_can_be_withdrawn(slots):
    gathering, job = gathering_of(slots), a_job(batch=3, linger=5)
    list(gathering.groups(2, held(slots, job, 2)))
    assert gathering.drop() == [(2, 0), (2, 1)]
    unstarted, leases = slots.withdraw([0, 1])
    assert (unstarted, len(leases), bool(gathering)) == ([0, 1], 2, False)


def test_supervisor_takes_waiting_calls_only_after_their_linger(slots):
    job = a_job(batch=3, linger=5)
    places = [slot for slot, _ in held(slots, job, 3)]
    slots.gather(places[:1], boot_ns() + 10**12)
    slots.gather(places[1:2], boot_ns() - 1)
    assert slots.nwaiting == 3
    assert [one.slot for one in slots.take_back()] == places[1:]


def test_largest_batch_of_a_queue_counts():
    registry = Registry()
    for number, queue in ((10, "a"), (30, "a"), (5, "b")):
        a_job(name=f"{queue}{number}", batch=number, queue=queue, registry=registry)
    assert batch_sizes(registry, ["b", "a", "c"]) == [5, 30, 0]


def test_calls_of_one_key_run_together(slots, clock):
    gathering, job = gathering_of(slots), a_job(batch=3, linger=5, key=lambda name: name)
    fetched = [*held(slots, job, 2, args=["a"]), *held(slots, job, 1, args=["b"])]
    assert sizes(gathering.groups(0, fetched)) == []
    assert (gathering.largest(0), len(gathering.slots(0))) == (2, 3)
    assert sizes(gathering.groups(0, held(slots, job, 1, args=["a"]))) == [3]
    assert gathering.largest(0) == 1


def test_all_batches_are_due_when_no_slot_is_free(slots, clock):
    gathering, job = gathering_of(slots), a_job(batch=3, linger=5)
    held(slots, job, slots.nfree - 1)
    assert sizes(gathering.groups(0, held(slots, job, 1))) == [1]


def test_leases_are_renewed_before_a_batch_starts_whose_calls_have_waited(slots, clock):
    renewed = []
    gathering = Gathering(slots, True, lambda index, group: renewed.append((index, len(group))))
    job = a_job(batch=3, linger=5)
    assert sizes(gathering.groups(0, held(slots, job, 4))) == [3]
    assert renewed == []
    clock[0] = 1
    assert sizes(gathering.groups(0, held(slots, job, 2))) == [3]
    assert renewed == [(0, 3)]
    list(gathering.groups(1, held(slots, job, 1)))
    clock[0] = 7
    assert [index for index, _ in gathering.due()] == [1]
    assert renewed == [(0, 3), (1, 1)]


def test_call_with_a_lost_lock_does_not_start(slots):
    places = [slot for slot, _ in held(slots, a_job(batch=3, linger=5), 2)]
    slots.gather(places, boot_ns())
    slots.note_lost(places[:1])
    assert [slots.start(slot) for slot in places] == [False, True]
