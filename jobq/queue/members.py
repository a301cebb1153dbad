"""Messages from a queue to flows: its outbox, and the members, which are the messages of flows.

The script that ends members writes their ends to the queue's outbox. Drainers read the oldest entries, deliver them to
the flows, and drop them last, so the entries of a drainer that died are read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jobq.queue.types import text_of

#: Prefix of members' mids.
MARK = "~"
#: Above this many entries the queue stops handing out messages.
MAX_ENTRIES = 1_000_000
#: How long entries are reserved for the drainer that read them.
CLAIM_MS = 1_000


class OutboxRecord(NamedTuple):
    """One entry for a flow. Anyone who may write to the queue may have written it.

    Attributes:
        kind: 'done', 'done+' (with a result), 'dead' or 'cancelled' for the member that `subject` names; or 'begin',
            'signal', 'cancel', 'retry' or 'look' for the flow of that id, with a detail.
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
        """Return when the entry was written, epoch ms by the server's clock."""
        return int(self.entry_id.partition("-")[0])


class OutboxBacklog(NamedTuple):
    """Number of entries in a queue's outbox, and the time of the oldest in epoch ms; 0 = none."""

    entries: int
    oldest_ms: int


def read_entries(reply: Sequence[Any]) -> list[OutboxEntry]:
    """Return the entries in a reply of `flow_read`; none when another drainer has them."""
    return [
        OutboxEntry(entry_id.decode(), text)
        for entry_id, text in zip(reply[1::2], reply[2::2], strict=True)
    ]


def _records(text: bytes) -> list[OutboxRecord]:
    found = []
    for part in text.split(b"\x1e") if text else ():
        kind, subject, detail = (*part.split(b"\x1f", 2), b"", b"")[:3]
        found.append(OutboxRecord(text_of(kind), text_of(subject), detail))
    return found
