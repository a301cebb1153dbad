"""Chart data of the last day. Workers store the last 1,440 minutes of each queue in a ring buffer, which is a string.

A minute takes 32 bytes: its number since the epoch, the queue's figures, and the number of messages started so far.
While a queue's figures stay the same, workers don't write them. So if the queue's buffer lacks a minute, but the buffer
for the sum of all queues has the minute, the queue's previous figures apply. Readers skip impossible minutes, because
anyone with access to the keys can write anything.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from jobq.client.connection import Client
from jobq.queue import keys

MINUTES, MINUTE_MS = 1_440, 60_000
_MINUTE = struct.Struct("<6IQ")
#: Maximum number of queues with a ring buffer: 46,080 bytes each, 32 MB in all. The remaining queues share one sum.
MAX_RINGS = 700
MAX_NUMBER = 2**32 - 1
#: Lifetime of a ring buffer after its last write: a day and an hour.
KEPT_MS = (MINUTES + 60) * MINUTE_MS


class ChartMinute(NamedTuple):
    """Figures of one minute.

    Attributes:
        minute: Minutes since the epoch.
        oldest_s: How long the next message has waited, in seconds.
        fence: The queue's fence counter: the number of starts so far.
    """

    minute: int
    ready: int
    delayed: int
    running: int
    dead: int
    oldest_s: int
    fence: int

    @property
    def packed(self) -> bytes:
        """The minute, encoded in 32 bytes."""
        numbers = [min(MAX_NUMBER, max(0, number)) for number in self[:-1]]
        return _MINUTE.pack(*numbers, max(0, self.fence) & (2**64 - 1))

    @property
    def offset(self) -> int:
        """The minute's position in the ring buffer, in bytes."""
        return self.minute % MINUTES * _MINUTE.size


def minutes_in(ring: bytes | None, now_minute: int) -> list[ChartMinute]:
    """Return the minutes of the last day in a ring buffer, oldest first."""
    whole = (ring or b"")[: MINUTES * _MINUTE.size]
    whole = whole[: len(whole) // _MINUTE.size * _MINUTE.size]
    recorded = [
        ChartMinute._make(row)
        for place, row in enumerate(_MINUTE.iter_unpack(whole))
        if now_minute - MINUTES < row[0] <= now_minute and row[0] % MINUTES == place
    ]
    return sorted(recorded)


def kept_minutes(client: Client, queue: str, now_minute: int) -> list[ChartMinute]:
    """Return a queue's figures per minute of the last day, oldest first. A missing minute repeats the previous figures.

    Args:
        queue: Name of the queue; '' means the sum of all queues.
    """
    namespace = client.namespace
    total = minutes_in(client.command("GET", keys.chart(namespace, "")), now_minute)
    if not queue:
        return total
    own = minutes_in(client.command("GET", keys.chart(namespace, queue)), now_minute)
    return _filled(own, [minute.minute for minute in total])


def _filled(own: Sequence[ChartMinute], minutes: Sequence[int]) -> list[ChartMinute]:
    by_minute = {figures.minute: figures for figures in own}
    last: ChartMinute | None = None
    filled = []
    for minute in sorted({*by_minute, *minutes}):
        last = by_minute.get(minute) or (last and last._replace(minute=minute))
        if last is not None:
            filled.append(last)
    return filled
