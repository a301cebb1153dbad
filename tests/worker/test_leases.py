"""The supervisor's renewals of leases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jobq.config import WorkerSettings
from jobq.queue.queue import Queue
from jobq.queue.types import Message
from jobq.worker import leases
from jobq.worker.leases import Leases
from jobq.worker.shared_state import NEVER, SharedSlots, lease_deadline


class Child:
    """What the supervisor knows of a child that lives."""

    pid = 1

    def __init__(self, slots: SharedSlots) -> None:
        self.slots = slots
        self.notified = 0

    def notify(self) -> None:
        self.notified += 1


def ask(index: int, call: Any) -> bool:
    """Call the server at once."""
    call()
    return True


def test_leases_are_not_all_renewed_while_what_a_child_holds_cannot_be_read():
    slots, asked = SharedSlots(), list[int]()
    slots.publish(0, [Message("m", b"", 1, 0, 1, "g", "t", 0)], NEVER)
    member: Any = SimpleNamespace(slots=slots, pid=1)

    def ask(index: int, call: Any) -> bool:
        asked.append(index)
        return True

    renewals = Leases(WorkerSettings(processes=1), [])
    assert renewals.renew([member], ask)
    slots._lock.acquire()
    assert not renewals.renew([member], ask)
    slots._lock.release()
    assert renewals.renew([SimpleNamespace(slots=slots, pid=0)], ask)  # type: ignore[list-item]
    assert asked == [0]


@pytest.mark.one_server
def test_deadline_counts_from_before_the_call_when_its_reply_takes_long(
    client: Any, monkeypatch: pytest.MonkeyPatch
):
    """The server may have renewed the lease as soon as it was asked."""
    clock, settings = [10**15], WorkerSettings(processes=1, lease_s=30)
    monkeypatch.setattr(leases, "boot_ns", lambda: clock[0])

    class FarQueue(Queue):
        """Its server answers after ten seconds."""

        def extend(self, *args: Any, **options: Any) -> Any:
            kept = super().extend(*args, **options)
            clock[0] += 10 * 10**9
            return kept

    queue, slots = FarQueue("low", client), SharedSlots()
    queue.enqueue(b"x")
    handed = queue.dequeue(lease=30).messages
    [slot] = slots.publish(0, handed, NEVER)
    assert slots.start(slot)
    member: Any = Child(slots)
    asked_at = clock[0]
    assert Leases(settings, [queue]).renew([member], ask)
    assert slots.deadline() == lease_deadline(asked_at, 30)


@pytest.mark.one_server
def test_lost_lock_is_counted_and_logged_once_when_the_job_stops_late(
    client: Any, caplog: pytest.LogCaptureFixture
):
    counts = list[int]()
    queue, slots = Queue("low", client), SharedSlots()
    queue.enqueue(b"x", mid="m")
    [slot] = slots.publish(0, queue.dequeue(lease=30).messages, NEVER)
    assert slots.start(slot)
    queue.cancel("m")
    member: Any = Child(slots)
    renewals = Leases(WorkerSettings(processes=1, lease_s=30), [queue], counts.append)
    caplog.set_level("INFO")
    for _ in range(3):
        assert renewals.renew([member], ask)
    assert counts == [1]
    assert [record.getMessage() for record in caplog.records] == ["stopping m, which was cancelled"]
    # The child may have been busy when it was notified.
    assert member.notified == 3
