"""Follow the event streams of all queues. Each poll fetches a limited number of new events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from jobq.client.connection import Client
from jobq.client.pipelining import commands
from jobq.errors import BadRecordError, JobqError
from jobq.events import decode
from jobq.queue import keys
from jobq.web.outcomes import StreamEntry

#: Maximum number of events per poll. If there are more, only SAMPLE of the latest are read to represent all.
MAX_EVENTS, SAMPLE = 5_000, 2_000
#: After a start, past events are read up to this age and up to this number.
PAST_MS, MAX_PAST = 900_000, 50_000
#: Maximum number of entries per stream and call.
PER_CALL = 1_000


class Follower(Protocol):
    """Counts events from streams. The sampler's thread writes the counts, and other threads read them."""

    def take(self, queue: str, entries: Sequence[StreamEntry], weight: float = 1.0) -> None:
        """Count a queue's events. The entries may be in any order.

        Args:
            weight: Number of events that each entry of a sample represents.
        """

    def forget(self, names: Iterable[str]) -> None:
        """Drop data about deleted queues."""


class _FollowedStream:
    """The position up to which a queue's events were read.

    Attributes:
        since_ms: All events after this time were read.
    """

    __slots__ = ("added", "floor", "last", "since_ms", "until")

    def __init__(self, added: int) -> None:
        self.added = added
        self.last = ""
        #: Reading backwards stops at this entry, which was already read.
        self.floor = ""
        self.since_ms = 0
        #: Reading backwards continues before this entry; '' at the end.
        self.until = "+"

    def resume(self, added: int) -> None:
        """After a pause, prepare to read backwards to the last known entry."""
        if not self.until:
            self.floor, self.last = self.last, ""
        self.added, self.until = added, "+"

    def give_up(self, last: str) -> None:
        """Stop reading older entries. New entries are still read."""
        self.until, self.last = "", self.last or last

    def followed(self, added: int, last: str) -> None:
        """Record how many entries the stream ever had, and the id of the last entry read, or ''."""
        self.added, self.last = added, last or self.last

    def read_back(self, entries: Sequence[Any], count: int, since: int) -> None:
        """Record a batch of entries read backwards.

        Args:
            count: Number of requested entries.
            since: Earliest requested time, in epoch ms.
        """
        if not self.last:
            self.last = entries[0][0].decode() if entries else self.floor or f"{since}-0"
        if len(entries) == count:
            self.until = f"({entries[-1][0].decode()}"
            self.since_ms = _at_ms(entries[-1][0])
        else:
            self.until = ""
            self.since_ms = self.since_ms if self.floor else since


class Tail:
    """Reads events and passes them to followers. Only one thread may use it at a time."""

    def __init__(self, client: Client, followers: Sequence[Follower] = ()) -> None:
        self._client, self._followers = client, followers
        self._streams: dict[str, _FollowedStream] = {}
        self._past = 0
        #: Queue -> why its events can't be read.
        self.unread: dict[str, str] = {}
        #: Whether the last reading left out events.
        self.sampled = False

    def since_ms(self, queue: str) -> int | None:
        """Return the epoch ms after which all events of a queue were read. Return None before the first poll."""
        stream = self._streams.get(queue)
        return stream.since_ms if stream and stream.last else None

    def is_read(self, queue: str = "") -> bool:
        """Return whether the past events of a queue, or of all queues, were read."""
        streams = [self._streams.get(queue)] if queue else self._streams.values()
        return queue not in self.unread and not any(stream and stream.until for stream in streams)

    def read_added(self, added: Mapping[str, int], *, slept: bool = False) -> None:
        """Read the entries added since the last poll.

        Args:
            added: Queue name -> number of events ever added.
            slept: Whether the last poll was long ago. If so, `read_past` reads the events since then.
        """
        self._forget(added)
        new = [name for name, count in added.items() if count and name not in self._streams]
        grown = {
            name: added[name] - stream.added
            for name, stream in self._streams.items()
            if added[name] > stream.added and stream.last
        }
        self.sampled = False
        if slept:
            self._past = 0
            for name in grown:
                self._streams[name].resume(added[name])
        else:
            self._follow(grown, added)
        for name in new:
            self._streams[name] = _FollowedStream(added[name])

    def _forget(self, added: Mapping[str, int]) -> None:
        """Forget the streams of deleted queues, and restart streams that were deleted and created again."""
        gone = [name for name in self._streams if name not in added]
        anew = [name for name, stream in self._streams.items() if added.get(name, 0) < stream.added]
        for name in {*gone, *anew}:
            del self._streams[name]
        for follower in self._followers:
            follower.forget(gone)

    def _follow(self, grown: Mapping[str, int], added: Mapping[str, int]) -> None:
        wanted = shared(grown, MAX_EVENTS if sum(grown.values()) <= MAX_EVENTS else SAMPLE)
        words: dict[str, tuple[Any, ...]] = {}
        for name, count in wanted.items():
            after = f"({self._streams[name].last}"
            if count < grown[name]:
                words[name] = ("XREVRANGE", self._key(name), "+", after, "COUNT", count)
            else:
                # Entries added after they were counted are read next time.
                words[name] = ("XRANGE", self._key(name), after, "+", "COUNT", count)
        for name, entries in self._replies(words):
            number, reversed_ = grown[name], words[name][0] == "XREVRANGE"
            last = entries[0 if reversed_ else -1][0].decode() if entries else ""
            self._streams[name].followed(added[name], last)
            if entries:
                more = reversed_ and len(entries) == wanted[name]
                self.sampled = self.sampled or more
                self._give(name, entries, number / len(entries) if more else 1.0)

    def read_past(self, now_ms: int, most: int = MAX_EVENTS) -> bool:
        """Read more events of the last 15 minutes, up to `most`. Return False if all of them were read."""
        open_streams = {name: stream for name, stream in self._streams.items() if stream.until}
        left = min(most, MAX_PAST - self._past)
        if not open_streams or left <= 0:
            for stream in open_streams.values():
                stream.give_up(stream.floor or f"{now_ms}-0")
            return False
        count = max(1, min(PER_CALL, left // len(open_streams)))
        names = list(open_streams)[: max(1, left // count)]
        since = now_ms - PAST_MS
        words = {}
        for name in names:
            stream = open_streams[name]
            least = f"({stream.floor}" if stream.floor else since
            words[name] = ("XREVRANGE", self._key(name), stream.until, least, "COUNT", count)
        for name, entries in self._replies(words):
            open_streams[name].read_back(entries, count, since)
            self._past += len(entries)
            self._give(name, entries, 1.0)
        return True

    def _key(self, name: str) -> str:
        return keys.key(keys.prefix(self._client.namespace, name), "events")

    def _replies(self, words: Mapping[str, tuple[Any, ...]]) -> list[tuple[str, list[Any]]]:
        replies = []
        for name, reply in zip(words, self._sent(list(words.values())), strict=True):
            if isinstance(reply, Exception):
                self.unread[name] = str(reply)
                self._streams[name].give_up("0-0")
            else:
                self.unread.pop(name, None)
                replies.append((name, reply))
        return replies

    def _sent(self, many: Sequence[tuple[Any, ...]]) -> list[Any]:
        if not many:
            return []
        if not self._client.is_cluster:
            return commands(self._client, many[0][1], many, keep_errors=True)
        return [self._alone(words) for words in many]

    def _alone(self, words: tuple[Any, ...]) -> Any:
        try:
            return self._client.command(*words)
        except JobqError as error:
            return error

    def _give(self, name: str, raw: Sequence[Any], weight: float) -> None:
        entries = [entry for entry_id, fields in raw if (entry := _entry(entry_id, fields))]
        for follower in self._followers:
            follower.take(name, entries, weight)


def shared(wanted: Mapping[str, int], most: int) -> dict[str, int]:
    """Return how many events of each queue to read: all events of small queues, and equal shares for the others."""
    shares, left = {}, most
    for i, name in enumerate(sorted(wanted, key=lambda name: wanted[name])):
        shares[name] = min(wanted[name], max(1, left // (len(wanted) - i)))
        left -= shares[name]
    return shares


def _at_ms(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])


def _entry(entry_id: bytes, fields: Any) -> StreamEntry | None:
    try:
        return StreamEntry(_at_ms(entry_id), decode(fields[1], fields[0]))
    except BadRecordError:
        return None


#: Factories of additional followers for a sampler. Modules add theirs when they are imported.
FOLLOWERS: list[Callable[[], Follower]] = []
