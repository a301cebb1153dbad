"""Results of calls, as tuples in RedisRQ's order. Additional facts are attributes of the tuples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jobq.records import JsonRecord


def text_of(written: bytes) -> str:
    """Decode a name or an id. Invalid UTF-8 is shown as escapes."""
    return written.decode("utf-8", "backslashreplace")


class _Popped(NamedTuple):
    key: str
    id: str
    content: bytes


class Popped(_Popped):
    """A popped message as the tuple `(key, id, content)`. Its attribute `deliveries` counts all deliveries."""

    deliveries: int

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Popped:
        """Parse a message from a row with four columns."""
        key, id, content, deliveries = row
        made = cls(text_of(key), text_of(id), content)
        made.deliveries = deliveries
        return made


class _Recovered(NamedTuple):
    id: str
    content: bytes


class Recovered(_Recovered):
    """A recovered message as the tuple `(id, content)`. Its attribute `deliveries` counts all deliveries."""

    deliveries: int

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Recovered:
        """Parse a message from a row with three columns."""
        id, content, deliveries = row
        made = cls(text_of(id), content)
        made.deliveries = deliveries
        return made


class WaitingItem(NamedTuple):
    """A waiting message in a result of `inspect`."""

    id: str
    content: bytes


class PendingItem(NamedTuple):
    """A delivered but unacknowledged message. Times are by the server's clock."""

    id: str
    content: bytes
    delivered_at: int
    elapsed_ms: int
    deliveries: int


class DeadItem(NamedTuple):
    """A message dead-lettered after too many deliveries."""

    id: str
    content: bytes
    died_at: int
    elapsed_ms: int
    deliveries: int


class ReliableRecord(JsonRecord):
    """A queue and counts of its messages by state.

    Attributes:
        promised: Undelivered messages for which a waiting client has a ticket.
        max_deliveries: Number of deliveries after which a message is dead, or 0 for no limit.
        last_id: Empty before the first push.
    """

    key: str
    undelivered: int
    delivered: int
    dead: int
    promised: int
    max_deliveries: int
    last_id: str
