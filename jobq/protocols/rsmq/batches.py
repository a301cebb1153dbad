"""Many messages cut into calls; pure."""

from __future__ import annotations

from collections.abc import Iterable

from jobq.protocols.rsmq.checks import body
from jobq.protocols.rsmq.messages import RsmqMessage
from jobq.protocols.rsmq.requests import PER_CALL, MessageRef
from jobq.queue.binding import BYTES_PER_CALL


def of(messages: Iterable[str | bytes]) -> list[list[bytes]]:
    """Up to 1,000 messages and, if it is more than one, 4 MiB in each."""
    batches: list[list[bytes]] = []
    batch: list[bytes] = []
    size = 0
    for one in map(body, messages):
        if batch and (len(batch) == PER_CALL or size + len(one) > BYTES_PER_CALL):
            batches.append(batch)
            batch, size = [], 0
        batch.append(one)
        size += len(one)
    return [*batches, batch] if batch else batches


def held(messages: Iterable[RsmqMessage | MessageRef]) -> list[MessageRef]:
    """Ids with receipts; a message is its own."""
    return [(one.id, one.receipt) if isinstance(one, RsmqMessage) else one for one in messages]
