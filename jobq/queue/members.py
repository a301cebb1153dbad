"""The outbox of a queue, through which members (the messages of flows) report to their flows.

When a member ends, a script adds an entry to the queue's outbox. Drainers read the oldest entries, deliver them to
the flows, and only then delete them. So if a drainer dies, another drainer delivers its entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jobq.queue.types import text_of

#: Prefix of members' mids.
MARK = "~"
#: While its outbox has more entries than this, the queue doesn't hand out messages.
MAX_ENTRIES = 1_000_000
#: How long entries are reserved for the drainer that read them.
CLAIM_MS = 1_000


class OutboxRecord(NamedTuple):
    """One report to a flow. Anyone who may write to the queue may have written it.

    Attributes:
        kind: 'done', 'done+' (with a result), 'dead' or 'cancelled' for a member; 'begin', 'signal', 'cancel', 'retry'
            or 'look' for a flow.
        subject: The member's mid, or the flow's id.
        detail: Details about a flow, depending on `kind`.
    """

    kind: str
    subject: str
    detail: bytes = b""


class OutboxEntry(NamedTuple):
    """One entry of a queue's outbox.

    Attributes:
        text: The stored records; b'' if the entry can't be read.
    """

    entry_id: str
    text: bytes

    @property
    def records(self) -> list[OutboxRecord]:
        """The parsed records."""
        return _records(self.text)

    @property
    def since_ms(self) -> int:
        """When the entry was written, in epoch ms by the server's clock."""
        return int(self.entry_id.partition("-")[0])


class OutboxBacklog(NamedTuple):
    """Number of entries in a queue's outbox, and the time of the oldest entry in epoch ms; 0 if there is none."""

    entries: int
    oldest_ms: int


def read_entries(reply: Sequence[Any]) -> list[OutboxEntry]:
    """Return the list of entries in a reply of `flow_read`. It is empty if another drainer has reserved the entries."""
    return [
        OutboxEntry(entry_id.decode(), text)
        for entry_id, text in zip(reply[1::2], reply[2::2], strict=True)
    ]


def _records(text: bytes) -> list[OutboxRecord]:
    records = []
    for part in text.split(b"\x1e") if text else ():
        kind, subject, detail = (*part.split(b"\x1f", 2), b"", b"")[:3]
        records.append(OutboxRecord(text_of(kind), text_of(subject), detail))
    return records
