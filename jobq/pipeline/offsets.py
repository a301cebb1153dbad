"""Work with offsets in event streams and topics: find new and lost entries, and divide ranges.

A `LogOffset` is the id of the last entry read, and the number of entries that the stream had received by then. The
server keeps this count, so the numbers of unread and lost entries are exact. In a topic, both are the message's
index: `LogOffset(str(index), index)`.

All functions are pure, except functions that take a client.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

from jobq.client.connection import Client
from jobq.client.numbered_calls import BoundScripts, ScriptCall
from jobq.client.pipelining import Read, read_together
from jobq.durations import DAY_MS
from jobq.errors import ConfigError, JobqError, ScriptError
from jobq.events import MAXLEN
from jobq.queue import keys
from jobq.topics.calls import TopicCalls

#: Number of entries that a call of walk.lua counts, which takes about 10 ms of the server's time.
STEP = 2_000
#: Streams per round trip.
TOGETHER = 300
LAST_SEQ = 2**64 - 1
START = "0-0"


class LogOffset(NamedTuple):
    """The offset after the entry `id`, which was the `n`th entry added. The default is before the first entry."""

    id: str = START
    n: int = 0


class LogTail(NamedTuple):
    """The state of a stream or topic at one moment.

    Attributes:
        id: Id of the last entry ever added.
        n: Number of entries ever added.
        length: Number of entries that are still there.
        first_id: Id of the oldest entry that is still there.
    """

    key: str
    id: str
    n: int
    length: int
    first_id: str

    @property
    def place(self) -> LogOffset:
        """The offset after the last entry."""
        return LogOffset(self.id, self.n)

    @property
    def dropped(self) -> int:
        """Number of trimmed entries."""
        return self.n - self.length

    @property
    def oldest(self) -> LogOffset:
        """The offset before the oldest entry."""
        return LogOffset(id_before(self.first_id) if self.length else self.id, self.dropped)


class LogRange(NamedTuple):
    """Entries of one stream after the id `after`, up to and including `upto`.

    Attributes:
        expected: Number of these entries, including trimmed entries.
        limit: Maximum number of entries to read, 0 for all.
        start: The offset at which the range begins.
    """

    queue: str
    key: str
    after: str
    upto: str
    expected: int
    limit: int = 0
    start: LogOffset = LogOffset()

    @property
    def end(self) -> LogOffset:
        """Offset after the range's last entry."""
        return LogOffset(self.upto, self.start.n + self.expected)


class ReadPlan(NamedTuple):
    """The ranges to read next.

    Attributes:
        places: Offset of each queue at the start of the plan.
        lost: Number of entries trimmed before they were read, by queue.
        remade: Queues whose stream was deleted or recreated since the last read. The old stream's losses are unknown.
    """

    ranges: list[LogRange]
    places: dict[str, LogOffset]
    lost: dict[str, int]
    remade: list[str]

    @property
    def ends(self) -> dict[str, LogOffset]:
        """Offset of each queue after the plan's ranges have been read completely."""
        return self.places | {range_.queue: range_.end for range_ in self.ranges}


def events_key(namespace: str, queue: str) -> str:
    """Return the key of a queue's event stream."""
    return keys.key(keys.prefix(namespace, queue), "events")


def parsed_id(entry_id: str) -> tuple[int, int]:
    """Return an entry's id as two numbers, which compare in the server's order."""
    ms, _, seq = entry_id.partition("-")
    return int(ms), int(seq or 0)


def id_before(entry_id: str) -> str:
    """Return the highest id below this id; for a topic, the previous index."""
    ms, seq = parsed_id(entry_id)
    if "-" not in entry_id:
        return str(ms - 1)
    if seq:
        return f"{ms}-{seq - 1}"
    return f"{ms - 1}-{LAST_SEQ}" if ms else START


def id_after(entry_id: str) -> str:
    """Return the lowest id above this id."""
    ms, seq = parsed_id(entry_id)
    return f"{ms}-{seq + 1}" if seq < LAST_SEQ else f"{ms + 1}-0"


def events_tail(client: Client, key: str) -> LogTail:
    """Return the stream's current end. A missing stream has no entries."""
    [tail] = events_tails(client, [key])
    if isinstance(tail, JobqError):
        raise tail
    return tail


def events_tails(client: Client, streams: Sequence[str]) -> Iterator[LogTail | JobqError]:
    """Yield each stream's end, or an error if it can't be read. Each round trip reads a few hundred streams."""
    for first in range(0, len(streams), TOGETHER):
        some = streams[first : first + TOGETHER]
        asked = [Read(key, ("XINFO", "STREAM", key)) for key in some]
        for key, reply in zip(some, read_together(client, asked), strict=True):
            yield _tail(key, reply)


def _tail(key: str, reply: Any) -> LogTail | JobqError:
    if isinstance(reply, ScriptError) and is_missing_key(reply):
        return LogTail(key, START, 0, 0, START)
    if isinstance(reply, JobqError):
        return reply
    facts = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    first = facts.get(b"first-entry")
    return LogTail(
        key, facts[b"last-generated-id"].decode(), int(facts[b"entries-added"]), int(facts[b"length"]),
        first[0].decode() if first else START,
    )  # fmt: skip


def trim(client: Client, ends: Mapping[str, LogOffset]) -> Iterator[JobqError | None]:
    """Drop all entries up to each stream's offset. For each stream, yield None or an error.

    Each round trip trims a few hundred streams. The call can be repeated safely.
    """
    left = iter(ends.items())
    while some := list(islice(left, TOGETHER)):
        asked = [Read(key, ("XTRIM", key, "MINID", "=", id_after(at.id))) for key, at in some]
        for reply in read_together(client, asked):
            yield reply if isinstance(reply, JobqError) else None


def is_missing_key(error: ScriptError) -> bool:
    """Return whether XINFO STREAM failed because the key doesn't exist. The server has no error code for that."""
    return "no such key" in str(error)


def topic_tail(client: Client, topic: str) -> LogTail:
    """Return the topic's current end. `n` is the last message's index, so `n` also counts removed messages."""
    [tail] = topic_tails(client, [topic])
    if isinstance(tail, JobqError):
        raise tail
    return tail


def topic_tails(client: Client, topics: Sequence[str]) -> Iterator[LogTail | JobqError]:
    """Yield each topic's end, or an error if it can't be read. Each round trip reads a few hundred topics."""
    for first in range(0, len(topics), TOGETHER):
        some = [TopicCalls(topic, client) for topic in topics[first : first + TOGETHER]]
        asked = [read for binding in some for read in _tail_reads(binding)]
        replies = read_together(client, asked)
        for number, binding in enumerate(some):
            own = replies[number * _NREADS : (number + 1) * _NREADS]
            failed = next((reply for reply in own if isinstance(reply, JobqError)), None)
            yield failed or _topic_tail(binding, own[0])


#: Number of reads in `_tail_reads` for a topic.
_NREADS = 3


def _tail_reads(binding: TopicCalls) -> list[Read | ScriptCall[Any]]:
    """Return calls for a topic. The first reads the topic's end. The others fail if a key has the wrong type."""
    bound = binding.scripts()["read"]
    values = bound.script.order({"from": 1, "upto": 0, "count": 1})
    logs = [binding.key(name) for name in ("log", "base")]
    return [
        ScriptCall(bound.script, bound.keys, values, list),
        *(Read(key, ("XRANGE", key, "0-0", "0-0")) for key in logs),
    ]


def _topic_tail(binding: TopicCalls, reply: Sequence[Any]) -> LogTail:
    first, last, _, _ = reply
    there = max(0, last - max(1, first) + 1)
    return LogTail(binding.log_key, str(last), last, there, str(first) if there else "0")


class Overrun(NamedTuple):
    """A forecast of when a stream will drop unread entries, if new entries keep arriving at the current rate.

    Attributes:
        seconds: Time until the stream drops unread entries.
        unread: Number of unread entries.
        kept: Maximum number of entries that the stream keeps.
        lag_s: Age of the last entry read.
    """

    seconds: float
    unread: int
    kept: int
    lag_s: float

    @property
    def is_near(self) -> bool:
        """Return whether unread entries may be dropped in less than `lag_s` from now."""
        return self.seconds < self.lag_s


def overruns(
    client: Client, places: Mapping[str, LogOffset], tails: Mapping[str, LogTail]
) -> dict[str, Overrun]:
    """Forecast when streams will drop unread entries. Streams with an unknown maximum length are left out.

    The rate of new entries is calculated from the entries after the last entry read.
    """
    unread = {
        queue: now.n - places[queue].n
        for queue, now in tails.items()
        if queue in places and now.n > places[queue].n and not is_remade(places[queue], now)
    }
    seconds, micros = client.command("TIME") if unread else (0, 0)
    at_ms, forecasts, queues = int(seconds) * 1000 + int(micros) // 1000, {}, list(unread)
    for queue, kept in zip(queues, _lengths_kept(client, queues), strict=True):
        # An id may be ahead of the clock; then the time is unknown.
        lag_ms = at_ms - parsed_id(places[queue].id)[0]
        if kept and lag_ms > 0 and places[queue].n:
            left = max(0, kept - unread[queue])
            lag_s = lag_ms / 1000
            forecasts[queue] = Overrun(left * lag_s / unread[queue], unread[queue], kept, lag_s)
    return forecasts


def _lengths_kept(client: Client, queues: Sequence[str]) -> Iterator[int]:
    """Yield the maximum length of each queue's stream; 0 if it can't be read."""
    for first in range(0, len(queues), TOGETHER):
        some = queues[first : first + TOGETHER]
        stored = [keys.key(keys.prefix(client.namespace, queue), "meta") for queue in some]
        for length in read_together(client, [Read(key, ("HGET", key, "maxlen")) for key in stored]):
            if length is None:
                yield MAXLEN
            else:
                is_number = isinstance(length, bytes) and length.isdigit() and len(length) < 12
                yield int(length) if is_number else 0


def plan(
    places: Mapping[str, LogOffset], tails: Mapping[str, LogTail], max_rows: int = 0
) -> ReadPlan:
    """Plan what to read from each queue after its offset. A queue without an offset begins with its oldest entry.

    Args:
        max_rows: Approximate maximum for all queues together, 0 for no limit. Queues with few entries are read
            completely; the others get equal shares, as the `limit` of their ranges.
    """
    done = ReadPlan([], dict(places), {}, [])
    for queue, now in sorted(tails.items()):
        place = places.get(queue, now.oldest)
        if is_remade(place, now):
            done.remade.append(queue)
            place = now.oldest
        # After a failover that lost entries already read, the count is lower than before.
        place = place._replace(n=min(place.n, now.n))
        done.places[queue] = place
        if now.dropped > place.n:
            done.lost[queue] = now.dropped - place.n
        if parsed_id(now.id) > parsed_id(place.id):
            done.ranges.append(
                LogRange(queue, now.key, place.id, now.id, now.n - place.n, 0, place)
            )
    if max_rows:
        done.ranges[:] = shared(done.ranges, done.lost, max_rows)
    return done


def is_remade(place: LogOffset, now: LogTail) -> bool:
    """Return whether the stream was recreated, so that entries disappeared without being trimmed."""
    if not place.n or now.dropped >= place.n:
        return False
    if "-" not in now.id:
        # A topic's indexes have no gaps, whatever is lost.
        return now.n < place.n
    return not now.length or parsed_id(now.first_id) > parsed_id(place.id)


def shared(ranges: list[LogRange], lost: Mapping[str, int], max_rows: int) -> list[LogRange]:
    """Limit the ranges to about `max_rows` entries in total, with at least one entry for each range."""
    left, limits = max_rows, {}
    todo = sorted(ranges, key=lambda range_: range_.expected - lost.get(range_.queue, 0))
    for taken, range_ in enumerate(todo):
        there = range_.expected - lost.get(range_.queue, 0)
        limits[range_.queue] = min(there, max(1, left // (len(todo) - taken)))
        left -= limits[range_.queue]
    return [
        range_._replace(limit=limits[range_.queue])
        if limits[range_.queue] < range_.expected - lost.get(range_.queue, 0)
        else range_
        for range_ in ranges
    ]


def lost(asked: LogRange, read: int) -> int:
    """Return how many of the range's entries were trimmed before they were read. The range must have no limit.

    A recreated stream can have more entries than expected. In that case, the number is 0.
    """
    return max(0, asked.expected - read)


def counted_offset(
    client: Client, key: str, start: LogOffset, upto: str = "+", limit: int = 0
) -> LogOffset:
    """Return the offset `limit` entries after `start`, but not after `upto`. A `limit` of 0 means no limit.

    The offset's `n` also counts trimmed entries.
    """
    script = BoundScripts(client, "pipeline", "", lambda _: key, key)["walk"]
    place, left = start, limit
    while True:
        step = min(STEP, left) if limit else STEP
        added, length, walked, last_id = script.run(
            {"after": place.id, "upto": upto, "count": step}
        )
        if not walked:
            return place
        place = LogOffset(last_id.decode(), max(place.n, added - length) + walked)
        left -= walked
        if walked < step or (limit and left <= 0):
            return place


def offset_reached(
    client: Client, asked: LogRange, read: int, last_id: str
) -> tuple[LogOffset, int]:
    """Return the offset after reading `read` entries of a range, up to `last_id`, and the number of lost entries.

    The range may have a limit. If no limit ended the reading, the server isn't called.
    """
    if not asked.limit or read < asked.limit:
        return asked.end, lost(asked, read)
    while True:
        now = events_tail(client, asked.key)
        if now.dropped <= asked.start.n:
            return LogOffset(last_id, asked.start.n + read), 0
        # Some entries were trimmed, before or after they were read: count the remaining entries.
        place = now.oldest
        if parsed_id(place.id) < parsed_id(last_id):
            place = counted_offset(client, asked.key, place, last_id)
        if parsed_id(place.id) >= parsed_id(last_id):
            return place, max(0, place.n - asked.start.n - read)


def parts(first_id: str, upto: str, count: int) -> list[tuple[str, str]]:
    """Divide the ids from `first_id` to `upto` into up to `count` ranges (after, upto] of about equal duration."""
    low, high = parsed_id(first_id)[0], parsed_id(upto)[0]
    cuts = [low + (high - low + 1) * i // count for i in range(1, count)]
    ends = [f"{cut}-0" for cut in sorted(set(cuts)) if low < cut <= high]
    stretches, after = [], id_before(first_id)
    for end in ends:
        stretches.append((after, id_before(end)))
        after = id_before(end)
    return [*stretches, (after, upto)]


def index_parts(after: int, upto: int, count: int) -> list[tuple[str, str]]:
    """Divide a topic's indexes in (after, upto] into up to `count` ranges of about equal size."""
    ends = sorted({after + (upto - after) * i // count for i in range(count + 1)})
    return [(str(low), str(high)) for low, high in pairwise(ends)]


def to_plain(places: Mapping[str, LogOffset]) -> dict[str, dict[str, Any]]:
    """Return offsets as JSON data, ordered by queue."""
    return {queue: {"id": place.id, "n": place.n} for queue, place in sorted(places.items())}


def loaded(text: str) -> Any:
    """Parse offsets from JSON. Raises ConfigError for invalid JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"offsets {text!r:.200} are not JSON: {error}") from error


def from_plain(data: Any) -> dict[str, LogOffset]:
    """Read offsets from JSON data `{queue: {"id": "1763-0", "n": 12}}`; raise ConfigError for anything else."""
    try:
        return {
            str(queue): LogOffset(_checked_id(place["id"]), int(place["n"]))
            for queue, place in data.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f'offsets {data!r:.200} can\'t be read; write {{"queue": {{"id": "1763719200000-0", "n": 0}}}}'
        ) from error


def _checked_id(entry_id: Any) -> str:
    parsed_id(entry_id)
    return str(entry_id)


def clocks(client: Client) -> tuple[int, int]:
    """Return the times of the server's clock and of this machine's clock in epoch ms, the earlier time first."""
    seconds, _ = client.command("TIME")
    both = (int(seconds) * 1000, time.time_ns() // 1_000_000)
    return min(both), max(both)


def latest_time(client: Client) -> int:
    """Return the latest time that an event can have: one day from now, in epoch ms."""
    return clocks(client)[1] + DAY_MS
