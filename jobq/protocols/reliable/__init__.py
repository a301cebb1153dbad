"""RELIABLEQ, the queue of the RedisRQ module, over plain Redis types. Messages are delivered at least once.

::

    from jobq.protocols.reliable import ReliableQueue

    rq = ReliableQueue()
    rq.push("mails", "a@b.example", "c@d.example")
    for key, id, content in rq.pop(10, 5_000, "mails") or ():
        rq.ack(key, id)
"""

from __future__ import annotations

from jobq.errors import EmptyKeyError
from jobq.protocols.reliable.queue import AsyncReliableQueue, ReliableQueue
from jobq.protocols.reliable.replies import (
    DeadItem,
    PendingItem,
    Popped,
    Recovered,
    ReliableRecord,
    WaitingItem,
)

__all__ = [
    "AsyncReliableQueue", "DeadItem", "EmptyKeyError", "PendingItem", "Popped", "Recovered", "ReliableQueue",
    "ReliableRecord", "WaitingItem",
]  # fmt: skip
