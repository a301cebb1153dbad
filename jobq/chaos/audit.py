"""What became of the messages of a time range, by the event stream of a live queue.

Needs the event level `all`, since only there each enqueue is an event. The stream lies on the server that it
tells about: what a failover or a power cut takes together with its events, an audit doesn't miss. The ledger
of `jobq chaos` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jobq.chaos.tally import Tally
from jobq.engine.audited import LIVE, Audited
from jobq.engine.keys import key
from jobq.errors import BadRecord, ConfigError
from jobq.events import Event, decode, in_utc

if TYPE_CHECKING:
    from jobq.engine.queue import Queue

READ = 1_000
Position = tuple[int, int]


class Audit:
    """Reads one queue's stream from `since_ms` on, the start of its records at level all without.

    What is accepted up to `until_ms` counts, whenever it ended. Times are the server's, epoch ms.
    """

    def __init__(
        self, queue: Queue, since_ms: int | None = None, until_ms: int | None = None
    ) -> None:
        self._queue = queue
        self._all_since = _all_since(queue)
        self.since_ms = self._all_since if since_ms is None else since_ms
        self.until_ms = until_ms
        if self.since_ms < self._all_since:
            raise ConfigError(
                f"queue {queue.name!r}: the event level is 'all' only since {in_utc(self._all_since)}, so "
                f"not all enqueues since {in_utc(self.since_ms)} are on record; audit from then on"
            )
        self._tally = Tally(until_ms)
        self._key = key(queue.prefix, "events")
        #: The first id that wasn't read yet.
        self._unread: Position = (self.since_ms, 0)
        self._next = f"{self.since_ms}-0"

    def read(self) -> None:
        """What was written since the last time. Raises ConfigError where entries were trimmed unread."""
        for at, event in self._entries():
            self._tally.take(at, event)

    def result(self) -> Audited:
        """Judge what was read, once more read to its end, beside what the queue holds now."""
        self.read()
        gone = [mid for mid in self._tally.open() if not self._lives(mid)]
        self.read()  # some ended between the two looks
        still = set(self._tally.open())
        gone = [mid for mid in gone if mid in still and not self._lives(mid)]
        if _all_since(self._queue) != self._all_since:
            raise ConfigError(
                f"queue {self._queue.name!r}: the event level was changed meanwhile; audit again"
            )
        until_ms = server_ms(self._queue) if self.until_ms is None else self.until_ms
        span = {"since_ms": self.since_ms, "until_ms": until_ms}
        return Audited(queue=self._queue.name, **span, **self._tally.figures(gone))

    def _lives(self, mid: str) -> bool:
        return self._queue.status(mid).word in LIVE

    def _entries(self) -> Iterator[tuple[int, Event]]:
        while True:
            reply = self._queue.client.command("XRANGE", self._key, self._next, "+", "COUNT", READ)
            self._check_trimmed()
            for entry_id, fields in reply:
                at, sequence = position(entry_id)
                self._unread = (at, sequence + 1)
                yield at, self._event(entry_id, fields)
            if reply:
                self._next = f"({reply[-1][0].decode()}"
            if len(reply) < READ:
                return

    def _event(self, entry_id: bytes, fields: list[bytes]) -> Event:
        try:
            return decode(fields[1], fields[0])
        except BadRecord as error:
            raise ConfigError(
                f"queue {self._queue.name!r}: entry {entry_id.decode()} isn't an event that can be counted: {error}"
            ) from error

    def _check_trimmed(self) -> None:
        client = self._queue.client
        if not client.command("EXISTS", self._key):
            return
        flat = client.command("XINFO", "STREAM", self._key, routed_by=self._key)
        facts: dict[bytes, Any] = dict(zip(flat[::2], flat[1::2], strict=True))
        first = facts[b"first-entry"]
        last_at, last_sequence = position(facts[b"last-generated-id"])
        oldest = position(first[0]) if first else (last_at, last_sequence + 1)
        if facts[b"entries-added"] > facts[b"length"] and oldest > self._unread:
            raise ConfigError(
                f"queue {self._queue.name!r}: events since {in_utc(self._unread[0])} were trimmed before they "
                f"were read, the oldest left is of {in_utc(oldest[0])}; give a later --since, or read along "
                "while they are written: jobq audit --for 10m"
            )


def _all_since(queue: Queue) -> int:
    meta = key(queue.prefix, "meta")
    since = queue.client.command("HGET", meta, "all_since")
    if since is None:
        level = queue.client.command("HGET", meta, "events") or b"attempts"
        raise ConfigError(
            f"queue {queue.name!r}: enqueues aren't on record, the event level is "
            f"{level.decode()!r}; jobq events level all --queues {queue.name}, and audit from then on"
        )
    return int(since)


def server_ms(queue: Queue) -> int:
    """The server's clock."""
    seconds, micros = queue.client.command("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def position(entry_id: bytes) -> Position:
    """An entry's id as numbers."""
    at, _, sequence = entry_id.decode().partition("-")
    return int(at), int(sequence)
