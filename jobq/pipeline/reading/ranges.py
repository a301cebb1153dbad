"""Plan the ranges of event streams and topics that a read covers, and divide them into partitions.

The bounds are fixed when the read is planned, so that all Spark actions on a DataFrame read the same entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from jobq.client.connection import Client
from jobq.errors import ConfigError, JobqError
from jobq.pipeline import offsets
from jobq.pipeline.offsets import LogOffset, LogTail
from jobq.pipeline.options import parsed_moment, unknown
from jobq.pipeline.reading.request import ReadRequest
from jobq.queue.directory import queue_names
from jobq.queue.partitions import with_partitions
from jobq.topics.calls import TopicCalls, topic_names

#: Approximate number of rows per partition by default. Each partition costs PySpark 40 ms.
ROWS_PER_PART = 500_000
MAX_PARTS = 32
UNKNOWN = -1


class _Sized(Protocol):
    @property
    def rows(self) -> int: ...


Piece = TypeVar("Piece", bound=_Sized)


class ReadRange(NamedTuple):
    """Entries of one queue or topic after the id `after`, up to and including `upto`.

    Attributes:
        expected: Number of entries; UNKNOWN if the range was divided by time.
        anchor: If the range was divided by time, the id of the previous entry or, if there is none, of the first entry.
        dropped: Number of entries trimmed from the stream before this range was created.
        rows: Estimated number of rows, for dividing the work.
    """

    name: str
    key: str
    after: str
    upto: str
    expected: int
    dropped: int = 0
    rows: int = 0
    anchor: str = ""


def tail_of(client: Client, view: str, name: str) -> LogTail:
    """Return the current end of a queue's event stream or of a topic."""
    if view == "topic":
        return offsets.topic_tail(client, name)
    return offsets.events_tail(client, offsets.events_key(client.namespace, name))


def tails_of(client: Client, view: str, names: Sequence[str]) -> dict[str, LogTail]:
    """Return the current end of each queue or topic, by name. Each round trip reads a few hundred ends."""
    streams = [offsets.events_key(client.namespace, name) for name in names]
    tails = (
        offsets.topic_tails(client, names)
        if view == "topic"
        else offsets.events_tails(client, streams)
    )
    by_name: dict[str, LogTail] = {}
    for name, now in zip(names, tails, strict=True):
        if isinstance(now, JobqError):
            raise now
        by_name[name] = now
    return by_name


def chosen(client: Client, request: ReadRequest, strict: bool = True) -> list[str]:
    """Return the sorted names of the queues or topics to read. A queue's partitions are included.

    Args:
        strict: Raise ConfigError for a queue or topic that was never used.
    """
    known = topic_names(client) if request.view == "topic" else queue_names(client)
    if not request.names:
        return known
    what = "topic" if request.view == "topic" else "queue"
    for name in request.names:
        if strict and name not in known and not _has_stream(client, request, name):
            raise ConfigError(
                unknown(what, name, known)
                if known
                else f"there is no {what} {name!r}, because this server has no {what}s yet"
            )
    if request.view == "topic":
        return sorted(request.names)
    return sorted(with_partitions(client, request.names))


def _has_stream(client: Client, request: ReadRequest, name: str) -> bool:
    # The queue was forgotten, but its history is still there.
    return request.view != "messages" and tail_of(client, request.view, name).n > 0


def planned(client: Client, request: ReadRequest) -> tuple[list[ReadRange], dict[str, int]]:
    """Return the ranges to read, and for each stream the number of requested entries that were already trimmed.

    The number is known only if the requested offsets contain entry numbers.
    """
    tails = tails_of(client, request.view, chosen(client, request))
    starts = bounds(client, request, tails, request.starting, request.since_ms)
    ends = bounds(client, request, tails, request.ending, request.until_ms)
    stretches, gone = [], {}
    for name, now in tails.items():
        start, end = starts.get(name, now.oldest), ends.get(name, now.place)
        if start.n >= 0 and now.dropped > start.n:
            gone[name] = now.dropped - start.n
            start = now.oldest
        start, end = max(start, now.oldest, key=_order), min(end, now.place, key=_order)
        if _order(start) < _order(end):
            stretches.append(_stretch(name, now, start, end))
    return stretches, gone


def _order(place: LogOffset) -> tuple[int, int]:
    return offsets.parsed_id(place.id)


def _stretch(name: str, now: LogTail, start: LogOffset, end: LogOffset) -> ReadRange:
    if _order(start) == _order(now.oldest):
        start = now.oldest
    exact = start.n >= 0 and end.n >= 0
    first, last = _order(start)[0], _order(end)[0]
    whole = _order(now.place)[0] - _order(now.oldest)[0]
    share = (last - first + 1) / (whole + 1)
    rows = end.n - start.n if exact else max(1, round(now.length * min(1.0, share)))
    return ReadRange(
        name, now.key, start.id, end.id, end.n - start.n if exact else UNKNOWN, now.dropped, rows
    )


def bounds(
    client: Client,
    request: ReadRequest,
    tails: Mapping[str, LogTail],
    text: str,
    at_ms: int | None = None,
) -> dict[str, LogOffset]:
    """Convert an option's text (earliest, latest, JSON or a time) to the offset of each queue or topic.

    An offset's `n` is UNKNOWN if the entry's number isn't known.
    """
    word = text.lower()
    if at_ms is None and word in ("earliest", "latest"):
        return {
            name: now.oldest if word == "earliest" else now.place for name, now in tails.items()
        }
    if at_ms is None and text.startswith("{"):
        return _given(text, tails)
    if at_ms is None:
        at_ms = round(parsed_moment("offsets", text).timestamp() * 1000)
    return {name: place_at(client, request.view, name, at_ms) for name in tails}


def place_at(client: Client, view: str, name: str, at_ms: int) -> LogOffset:
    """Return the offset before the first entry that was written at or after `at_ms`."""
    if view == "topic":
        index = int(TopicCalls(name, client).run("find", {"time": at_ms})[0]) - 1
        return LogOffset(str(index), index)
    return LogOffset(offsets.id_before(f"{max(0, at_ms)}-0"), UNKNOWN)


def _given(text: str, tails: Mapping[str, LogTail]) -> dict[str, LogOffset]:
    places = {}
    for name, value in offsets.loaded(text).items():
        if name not in tails:
            raise ConfigError(unknown("unknown name in offsets:", name, tails))
        places[name] = _offset_of(name, value, tails[name])
    return places


def _offset_of(name: str, value: Any, now: LogTail) -> LogOffset:
    if value in ("earliest", "latest"):
        return now.oldest if value == "earliest" else now.place
    # A topic's messages have indexes; an event's id has two parts.
    if isinstance(value, str) or ("-" not in now.id and isinstance(value, int)):
        n = int(value) if "-" not in now.id and str(value).isdecimal() else UNKNOWN
        value = {"id": str(value), "n": n}
    place = offsets.from_plain({name: value})[name]
    if "-" not in now.id and not place.id.isdecimal():
        raise ConfigError(
            f"offset {place.id!r} of topic {name!r} is not an index; write a whole number, "
            '"earliest" or "latest"'
        )
    return place


def divided(
    client: Client, stretches: Iterable[ReadRange], count: int = 0
) -> list[tuple[ReadRange, ...]]:
    """Divide ranges into up to `count` partitions of about equal size. If `count` is 0, choose the number."""
    todo = list(stretches)
    total = sum(stretch.rows for stretch in todo)
    # A power of two suits most numbers of cores.
    fitting = 2 ** max(0, round(math.log2(max(1, total) / ROWS_PER_PART)))
    count = count or min(MAX_PARTS, fitting)
    fair = max(1, math.ceil(total / count))
    return packed(split(client, todo, fair), count)


def split(client: Client, stretches: Iterable[ReadRange], size: int) -> list[ReadRange]:
    """Cut ranges into pieces of about `size` rows: topics by index, events by time."""
    pieces = [
        piece for stretch in stretches for piece in _cut(stretch, math.ceil(stretch.rows / size))
    ]
    anchored = [
        _anchored(client, piece) if piece.expected == UNKNOWN else piece for piece in pieces
    ]
    return list(filter(None, anchored))


def _anchored(client: Client, range_: ReadRange) -> ReadRange | None:
    """Return the range with an anchor entry; None for an empty range. If the anchor disappears, entries were lost."""
    reply = client.command("XREVRANGE", range_.key, range_.after, "-", "COUNT", 1)
    first = client.command("XRANGE", range_.key, f"({range_.after}", range_.upto, "COUNT", 1)
    if not first:
        return None
    if reply:
        anchor = reply[0][0].decode()
        return range_._replace(after=anchor, anchor=anchor)
    return range_._replace(anchor=first[0][0].decode())


def packed(pieces: Sequence[Piece], count: int) -> list[tuple[Piece, ...]]:
    """Pack the pieces into up to `count` groups with about equal numbers of rows."""
    packs: list[list[Piece]] = [[] for _ in range(min(count, len(pieces)))]
    sizes = [0] * len(packs)
    for piece in sorted(pieces, key=lambda piece: -piece.rows):
        lightest = sizes.index(min(sizes))
        packs[lightest].append(piece)
        sizes[lightest] += piece.rows
    return [tuple(pack) for pack in packs]


def _cut(range_: ReadRange, count: int) -> list[ReadRange]:
    if count <= 1:
        return [range_]
    if "-" not in range_.upto:
        return cut_by_index(range_, count)
    ranges = offsets.parts(offsets.id_after(range_.after), range_.upto, count)
    if len(ranges) == 1:
        return [range_]
    rows = max(1, range_.rows // len(ranges))
    return [
        range_._replace(after=after, upto=upto, expected=UNKNOWN, rows=rows)
        for after, upto in ranges
    ]


def cut_by_index(range_: ReadRange, count: int) -> list[ReadRange]:
    """Cut a topic's range into up to `count` pieces."""
    pieces = offsets.index_parts(int(range_.after), int(range_.upto), count)
    sizes = [int(upto) - int(after) for after, upto in pieces]
    return [
        range_._replace(after=after, upto=upto, expected=size, rows=size)
        for (after, upto), size in zip(pieces, sizes, strict=True)
    ]
