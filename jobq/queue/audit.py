"""Count the outcomes of messages in a time range, from the event stream of a live queue.

An audit needs the event level 'all', because other levels don't record each enqueue. The stream is on the audited
server. So an audit can't detect messages that a failover or a power cut lost together with their events. `jobq chaos`
detects such losses with a ledger outside the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypedDict

from jobq.client.names import base_of
from jobq.errors import BadRecordError, ConfigError
from jobq.events import LIMITS, Event, decode, in_utc, named
from jobq.queue.fsck import unplaced
from jobq.queue.keys import key
from jobq.queue.mids import checked_mid
from jobq.queue.queue import Queue
from jobq.queue.types import text_of

ENDINGS = frozenset(("done", "dead", "cancelled", "expired"))
#: Events of an attempt's end after which the message will run again, unless newer content replaces it.
GOES_ON = frozenset(("retry", "snoozed", "crashed", "recovered"))
RAN_AGAIN = frozenset(("crashed", "recovered"))
READ = 1_000
#: The highest possible id of a stream's entry.
LAST = b"18446744073709551615-18446744073709551615"
Position = tuple[int, int]
#: The kinds of events about one message.
_OF_ONE = ENDINGS | GOES_ON | {"enqueued", "revived", "superseded"}
#: Statuses of a message that the queue still holds and will run.
LIVE = frozenset(
    ("queued", "queued-with-backoff", "locked", "locked-with-requeue", "done-with-requeue")
)


@dataclass(frozen=True, kw_only=True)
class Audited:
    """The result of auditing one queue, where accepted = finished + superseded + live + lost.

    Attributes:
        finished: Done, dead, expired, cancelled or cleared messages.
        duplicates: Number of runs that may have repeated a message's work, because a worker died or a lease was lost.
        superseded: Messages that newer content replaced.
        earlier: Messages accepted before `since_ms`, but finished in the range.
        unreadable: Events with an unreadable column. If their kind and mid are readable, they still count.
        clock_jumps: How often the server's clock was set back.
    """

    queue: str
    since_ms: int
    until_ms: int
    accepted: int = 0
    finished: int = 0
    duplicates: int = 0
    lost: int = 0
    live: int = 0
    superseded: int = 0
    earlier: int = 0
    unreadable: int = 0
    clock_jumps: int = 0
    lost_mids: list[str] = field(default_factory=list)


class Audit:
    """Reads one queue's event stream. Times are in epoch ms by the server's clock.

    Args:
        since_ms: Start of the range. Default: the time when the queue's event level became 'all'.
        until_ms: End of the range; by default now. Messages accepted in the range count, whenever they end.
        following: Ignore events that are already in the stream, even if the clock was set back.
    """

    def __init__(
        self,
        queue: Queue,
        since_ms: int | None = None,
        until_ms: int | None = None,
        *,
        following: bool = False,
    ) -> None:
        self._queue = queue
        self._key = key(queue.prefix, "events")
        self._all_since = _all_since(queue)
        #: The smallest id that hasn't been read yet.
        self._unread: Position
        if following:
            last_at, last_sequence = self._newest()
            since_ms, self._unread = server_ms(queue), (last_at, last_sequence + 1)
        else:
            since_ms = self._all_since if since_ms is None else since_ms
            self._unread = (since_ms, 0)
        self.since_ms, self.until_ms = since_ms, until_ms
        if not following and self.since_ms < self._all_since:
            raise ConfigError(
                f"queue {queue.name!r}: the audit can't start at {in_utc(self.since_ms)}, because the event level has "
                f"been 'all' only since {in_utc(self._all_since)}; start at that time or later"
            )
        self._tally = Tally(until_ms)
        self._next = "{}-{}".format(*self._unread)
        self._unreadable = self._clock_jumps = 0

    def read_events(self) -> None:
        """Read the events since the last call. Raises ConfigError if events were trimmed before they were read."""
        for event in self._entries():
            if event.kind == "clock_jump" and self._is_in_range(event):
                self._clock_jumps += 1
            # The event's own time counts: after the clock was set back, entry ids are ahead of it.
            self._tally.take(event.finished_at, event)

    def result(self) -> Audited:
        """Read to the end of the stream, compare it with the queue's current messages, and return the result."""
        self.read_events()
        gone = self._gone(self._tally.open())
        self.read_events()  # some messages may have ended since
        still = set(self._tally.open())
        gone = self._gone(mid for mid in gone if mid in still)
        if _all_since(self._queue) != self._all_since:
            raise ConfigError(
                f"queue {self._queue.name!r}: the event level was changed during the audit; audit again"
            )
        until_ms = server_ms(self._queue) if self.until_ms is None else self.until_ms
        span = {"since_ms": self.since_ms, "until_ms": until_ms}
        read = {"unreadable": self._unreadable, "clock_jumps": self._clock_jumps}
        return Audited(queue=self._queue.name, **span, **self._tally.figures(gone), **read)

    def _is_in_range(self, event: Event) -> bool:
        return self.until_ms is None or event.finished_at <= self.until_ms

    def _gone(self, mids: Iterable[str]) -> list[str]:
        """Return the mids of messages that the queue no longer has, or that no worker can ever fetch."""
        mids = list(mids)
        held = [mid for mid in mids if self._queue.status(mid).word in LIVE]
        missing = set(mids).difference(held) | unplaced(self._queue, held)
        return [mid for mid in mids if mid in missing]

    def _entries(self) -> Iterator[Event]:
        while True:
            reply = self._queue.client.command("XRANGE", self._key, self._next, "+", "COUNT", READ)
            self._check_trimmed()
            for entry_id, fields in reply:
                at, sequence = position(entry_id)
                self._unread = (at, sequence + 1)
                event = self._event(at, fields)
                if event:
                    yield event
            if reply:
                self._next = f"({reply[-1][0].decode()}"
            if len(reply) < READ:
                return

    def _event(self, at_ms: int, fields: list[bytes]) -> Event | None:
        """Return the event of an entry; None if its kind or mid is unreadable.

        Other unreadable columns are ignored, because the event may show that a message has ended.
        """
        try:
            event: Event | None = decode(fields[1], fields[0])
        except BadRecordError:
            self._unreadable += 1
            event = named(fields[1], fields[0], at_ms)
        else:
            self._unreadable += not _is_of_a_mid(event)
        return event if event and _is_of_a_mid(event) else None

    def _facts(self) -> dict[bytes, Any]:
        """Return the reply to XINFO STREAM; empty if there is no stream."""
        client = self._queue.client
        if not client.command("EXISTS", self._key):
            return {}
        reply = client.command("XINFO", "STREAM", self._key, routed_by=self._key)
        if not isinstance(reply, dict):
            reply = dict(zip(reply[::2], reply[1::2], strict=True))
        if reply[b"last-generated-id"] == LAST:
            raise ConfigError(
                f"queue {self._queue.name!r}: the stream's latest entry has the highest possible id, so no event can "
                f"be added; run jobq check fsck --repair {self._queue.name}, then audit a later range"
            )
        return reply

    def _newest(self) -> Position:
        return position(self._facts().get(b"last-generated-id", b"0-0"))

    def _check_trimmed(self) -> None:
        facts = self._facts()
        if not facts:
            return
        first = facts[b"first-entry"]
        last_at, last_sequence = position(facts[b"last-generated-id"])
        oldest = position(first[0]) if first else (last_at, last_sequence + 1)
        if facts[b"entries-added"] > facts[b"length"] and oldest > self._unread:
            raise ConfigError(
                f"queue {self._queue.name!r}: events since {in_utc(self._unread[0])} were trimmed before they were "
                f"read, and the oldest remaining event is from {in_utc(oldest[0])}; use a later --since, or audit "
                f"events while they are written: jobq check audit --for 10m"
            )


def _is_of_a_mid(event: Event | None) -> bool:
    """Return whether the event's mid is valid. True for events that aren't about a single message."""
    if event is None or event.kind not in _OF_ONE:
        return True
    try:
        checked_mid(event.mid)
    except ConfigError:
        return False
    return True


def _all_since(queue: Queue) -> int:
    meta = key(queue.prefix, "meta")
    since = queue.client.command("HGET", meta, "all_since")
    if since is None:
        level = queue.client.command("HGET", meta, "events") or b"attempts"
        name = base_of(queue.name)
        raise ConfigError(
            f"queue {name!r}: enqueues aren't recorded, because the event level is "
            f"{text_of(level)!r}; run jobq events level all --queues {name}, then audit a later range"
        )
    if not since.isdigit() or int(since) > LIMITS["finished_at"]:
        raise ConfigError(
            f"queue {queue.name!r}: meta field all_since is {text_of(since)!r:.60}, which is not a time; "
            f"run jobq events level off, then jobq events level all, with --queues {queue.name}; audit a later range"
        )
    return int(since)


def server_ms(queue: Queue) -> int:
    """Return the time by the server's clock, in epoch ms."""
    return queue.client.clock_ms()


def position(entry_id: bytes) -> Position:
    """Return an entry's id as two numbers: the time in ms and the sequence number."""
    at, _, sequence = entry_id.decode().partition("-")
    return int(at), int(sequence)


class Figures(TypedDict):
    """The totals of an audit."""

    accepted: int
    finished: int
    duplicates: int
    lost: int
    live: int
    superseded: int
    earlier: int
    lost_mids: list[str]


class _Life:
    """An accepted message that hasn't ended.

    Attributes:
        counted: 1 if the message was accepted in the range, else 0.
        newer: The value of `counted` for newer content that runs after the current run; None without newer content.
    """

    __slots__ = ("counted", "newer")

    def __init__(self, counted: int) -> None:
        self.counted = counted
        self.newer: int | None = None

    @property
    def weight(self) -> int:
        """Number of messages to count. Newer content counts as a second message."""
        return self.counted + (self.newer or 0)

    def start_newer(self) -> None:
        """End the current run, and continue with the newer content."""
        self.counted, self.newer = self.newer or 0, None


class Tally:
    """Counts the outcomes of messages. It ignores messages accepted after `until_ms`."""

    def __init__(self, until_ms: int | None = None) -> None:
        self._until_ms = until_ms
        self._open: dict[str, _Life] = {}
        self._ended: set[str] = set()
        self._lost: list[str] = []
        self.accepted = self.finished = self.duplicates = self.superseded = self.earlier = 0

    def take(self, at_ms: int, event: Event) -> None:
        """Count an event that was written at `at_ms`."""
        if event.kind in ("enqueued", "revived"):
            counted = self._until_ms is None or at_ms <= self._until_ms
            self._accept(event.mid, event.error or "added", int(counted))
        elif event.kind in ENDINGS:
            self._end(event.mid, event.kind)
        elif event.kind in GOES_ON:
            self._go_on(event.mid, event.kind)
        elif event.kind == "superseded":
            self._replace(event.mid)
        elif event.kind == "cleared":
            self.finished += sum(life.weight for life in self._open.values())
            self._open.clear()

    def open(self) -> list[str]:
        """Return the mids of counted messages that haven't ended."""
        return [mid for mid, life in self._open.items() if life.weight]

    def figures(self, gone: list[str]) -> Figures:
        """Return the totals.

        Args:
            gone: Mids of unfinished messages that the queue no longer has.
        """
        lost = [*self._lost, *(mid for mid in gone for _ in range(self._open[mid].weight))]
        live = sum(self._open[mid].weight for mid in self._open.keys() - set(gone))
        return Figures(
            accepted=self.accepted, finished=self.finished, duplicates=self.duplicates, lost=len(lost),
            live=live, superseded=self.superseded, earlier=self.earlier, lost_mids=lost,
        )  # fmt: skip

    def _accept(self, mid: str, action: str, counted: int) -> None:
        if action == "updated":
            return  # the same message with new content
        self.accepted += counted
        life = self._open.get(mid)
        if action == "requeued" and life is not None:
            self.superseded += life.newer or 0
            life.newer = counted
            return
        if life is not None:
            # The server had forgotten the earlier message when it accepted the mid again.
            self._lost += [mid] * life.weight
        self._open[mid] = _Life(counted)

    def _end(self, mid: str, kind: str) -> None:
        life = self._open.get(mid)
        if life is None:
            known = mid in self._ended
            self.duplicates += known and kind == "done"
            self.earlier += not known
            self._ended.add(mid)
            return
        self.finished += life.counted
        if life.newer is not None and kind != "cancelled":
            life.start_newer()
            return
        self.superseded += life.newer or 0
        del self._open[mid]
        self._ended.add(mid)

    def _go_on(self, mid: str, kind: str) -> None:
        life = self._open.get(mid)
        if life is None:
            return
        if life.newer is not None:
            self.superseded += life.counted
            life.start_newer()
        elif kind in RAN_AGAIN:
            self.duplicates += life.counted

    def _replace(self, mid: str) -> None:
        life = self._open.get(mid)
        if life is None:
            return
        self.superseded += life.counted
        if life.newer is not None:
            life.start_newer()
        else:
            del self._open[mid]
            self._ended.add(mid)
