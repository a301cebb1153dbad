"""The supervisor's renewals of leases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jobq.config import WorkerSettings
from jobq.queue.types import Message
from jobq.worker.leases import Leases
from jobq.worker.shared_state import NEVER, SharedSlots


def test_leases_are_not_all_renewed_while_what_a_child_holds_cannot_be_read():
    slots, asked = SharedSlots(), list[int]()
    slots.publish(0, [Message("m", b"", 1, 0, 1, "g", "t", 0)], NEVER)
    member: Any = SimpleNamespace(slots=slots, pid=1)

    def ask(index: int, call: Any) -> bool:
        asked.append(index)
        return True

    leases = Leases(WorkerSettings(processes=1), [])
    assert leases.renew([member], ask)
    slots._lock.acquire()
    assert not leases.renew([member], ask)
    slots._lock.release()
    assert leases.renew([SimpleNamespace(slots=slots, pid=0)], ask)  # type: ignore[list-item]
    assert asked == [0]
