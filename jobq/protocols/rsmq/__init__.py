"""RSMQ: simple message queues on Redis, shared with RSMQ's clients in other languages.

Messages are delivered at least once.

::

    from jobq.protocols.rsmq import Rsmq

    rsmq = Rsmq("redis://localhost", realtime=True)
    rsmq.create_queue("mails", vt=30)
    rsmq.send_message("mails", "to everybody")
    message = rsmq.receive_message("mails", wait=10)
    rsmq.delete_message("mails", message.id, receipt=message.receipt)

The module `keys` lists RSMQ's keys. The scripts are in `lua/rsmq/`.
"""

from __future__ import annotations

from jobq.protocols.rsmq.client import AsyncRsmq, Rsmq
from jobq.protocols.rsmq.consumer import AsyncConsumer, Consumed, Consumer
from jobq.protocols.rsmq.errors import (
    InvalidFormatError,
    InvalidValueError,
    MessageNotStringError,
    MessageTooLongError,
    MissingParameterError,
    NoAttributeSuppliedError,
    QueueExistsError,
    QueueNotFoundError,
    RsmqError,
)
from jobq.protocols.rsmq.messages import Attributes, Peeked, Repaired, RsmqCounts, RsmqMessage

__all__ = [
    "AsyncConsumer", "AsyncRsmq", "Attributes", "Consumed", "Consumer", "InvalidFormatError",
    "InvalidValueError", "MessageNotStringError", "MessageTooLongError", "MissingParameterError",
    "NoAttributeSuppliedError", "Peeked", "QueueExistsError", "QueueNotFoundError", "Repaired", "Rsmq",
    "RsmqCounts", "RsmqError", "RsmqMessage",
]  # fmt: skip
