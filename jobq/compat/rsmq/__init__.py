"""RSMQ: simple message queues on Redis, shared with its clients of other languages, delivered at least once.

::

    from jobq.compat.rsmq import Rsmq

    rsmq = Rsmq("redis://localhost", realtime=True)
    rsmq.create_queue("mails", vt=30)
    rsmq.send_message("mails", "to everybody")
    message = rsmq.receive_message("mails", wait=10)
    rsmq.delete_message("mails", message.id, receipt=message.receipt)

The keys are RSMQ's (see `keys`), the scripts are in `lua/rsmq/`.
"""

from __future__ import annotations

from jobq.compat.rsmq.aio import AsyncRsmq
from jobq.compat.rsmq.async_consumer import AsyncConsumer
from jobq.compat.rsmq.consumer import Consumer
from jobq.compat.rsmq.consuming import Consumed
from jobq.compat.rsmq.errors import (
    InvalidFormat,
    InvalidValue,
    MessageNotString,
    MessageTooLong,
    MissingParameter,
    NoAttributeSupplied,
    QueueExists,
    QueueNotFound,
    RsmqError,
)
from jobq.compat.rsmq.message import Attributes, Counts, Healed, Message, Peeked
from jobq.compat.rsmq.rsmq import Rsmq

__all__ = [
    "AsyncConsumer", "AsyncRsmq", "Attributes", "Consumed", "Consumer", "Counts", "Healed", "InvalidFormat",
    "InvalidValue", "Message", "MessageNotString", "MessageTooLong", "MissingParameter", "NoAttributeSupplied",
    "Peeked", "QueueExists", "QueueNotFound", "Rsmq", "RsmqError",
]  # fmt: skip
