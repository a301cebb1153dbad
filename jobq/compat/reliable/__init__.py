"""RELIABLEQ, the queue of the RedisRQ module, over plain Redis types: pop, acknowledge, recover; at least once.

::

    from jobq.compat.reliable import ReliableQueue

    rq = ReliableQueue()
    rq.push("mails", "a@b.example", "c@d.example")
    for key, id, content in rq.pop(10, 5_000, "mails") or ():
        rq.ack(key, id)
"""

from __future__ import annotations

from jobq.compat.reliable.asynchronous import AsyncReliableQueue
from jobq.compat.reliable.queue import ReliableQueue
from jobq.compat.reliable.replies import Dead, Info, Pending, Popped, Recovered, Waiting
from jobq.errors import EmptyKey

__all__ = [
    "AsyncReliableQueue", "Dead", "EmptyKey", "Info", "Pending", "Popped", "Recovered", "ReliableQueue", "Waiting",
]  # fmt: skip
