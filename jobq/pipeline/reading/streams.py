"""Read events and topics as Arrow batches, and detect entries dropped before they were read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from jobq.client.connection import Client
from jobq.client.names import base_of
from jobq.errors import BadRecordError, DataLossError, OutOfRangeError
from jobq.pipeline import offsets
from jobq.pipeline.decode import BadEntry, columns, decode
from jobq.pipeline.reading import ranges
from jobq.pipeline.reading.ranges import UNKNOWN, ReadRange
from jobq.pipeline.reading.request import CORRUPT, ReadRequest
from jobq.pipeline.schema import TOPIC_COLUMNS, arrow_schema, events_schema
from jobq.topics.calls import TopicCalls
from jobq.topics.messages import decoded
from jobq.topics.ranges import pages

#: Entries per call, and per batch. Larger replies cost more per entry; larger batches need fewer conversions.
PAGE = 1_000
BATCH = 10_000
_log = logging.getLogger("jobq.pipeline")


def planned_parts(request: ReadRequest, client: Client) -> list[tuple[ReadRange, ...]]:
    """Divide the current entries of events or topics into partitions."""
    stretches, gone = ranges.planned(client, request)
    for name, lost in gone.items():
        report_loss(request, name, lost)
    return ranges.divided(client, stretches, request.partitions)


def event_batches(
    request: ReadRequest, range_: ReadRange, client: Client
) -> Iterator[pa.RecordBatch]:
    """Yield the events of a range.

    Raises DataLossError for lost entries and BadRecordError for bad entries, unless the options allow them.
    """
    names = [column.name for column in request.columns]
    pages = _Pages(request, client, range_)
    for entries in pages.chunks():
        events = decode(range_.name, *columns(entries))
        if request.mode == "PERMISSIVE":
            yield from _permissive(request, range_.name, events.batch, events.bad)
            continue
        if events.bad:
            _refuse(request, range_.name, events.bad)
        if events.batch.num_rows:
            yield events.batch.select(names)
    report_loss(request, range_.name, pages.lost())


class _Pages:
    """Reads a range, and detects entries trimmed before they were read.

    If the number of entries is known, the loss is the number of entries that weren't read. Otherwise, each page
    starts at a known entry. If the server still has that entry, no later entries were trimmed. If that entry is gone,
    the loss is the number of entries trimmed since the range was created.
    """

    def __init__(self, request: ReadRequest, client: Client, range_: ReadRange) -> None:
        self._request, self._client, self._range = request, client, range_
        self._read = self._dropped = 0

    def chunks(self) -> Iterator[list[Any]]:
        """Yield the range's entries in the format of XRANGE, about BATCH entries at a time."""
        range_, chunk = self._range, list[Any]()
        after, anchor = range_.after, range_.anchor
        while True:
            start = anchor or f"({after}"
            page = self._client.command("XRANGE", range_.key, start, range_.upto, "COUNT", PAGE + 1)
            more = len(page) > PAGE
            if anchor:
                page = self._checked(page, anchor, after)
            chunk += page
            if len(chunk) >= BATCH or not more:
                self._read += len(chunk)
                if chunk:
                    yield chunk
                chunk = []
            if not more:
                return
            after = page[-1][0].decode()
            anchor = after if anchor else ""

    def _checked(self, page: list[Any], anchor: str, after: str) -> list[Any]:
        if page and page[0][0].decode() == anchor:
            return page[1:] if anchor == after else page
        now = offsets.events_tail(self._client, self._range.key)
        gone = now.dropped - self._range.dropped
        if gone <= 0:
            report_remade(self._request, self._range.name)
        self._dropped = max(self._dropped, gone)
        return page

    def lost(self) -> int:
        """Return the number of missing entries. Read all chunks first."""
        if self._range.expected == UNKNOWN:
            return self._dropped
        return max(0, self._range.expected - self._read)


def report_loss(request: ReadRequest, name: str, lost: int) -> None:
    """Raise or log an error if entries were trimmed before they were read."""
    if not lost:
        return
    _tell(request, _loss(request.view, name, lost))


def report_remade(request: ReadRequest, name: str) -> None:
    """Raise DataLossError, because the stream was deleted or recreated. If losses are allowed, only log a warning."""
    _tell(
        request,
        f"{request.view} of {name!r}: the stream was deleted or recreated, and the number of lost entries "
        "can't be determined; failOnDataLoss=false continues with the remaining entries",
    )


def _tell(request: ReadRequest, text: str) -> None:
    if request.strict:
        raise DataLossError(text)
    _log.warning(text)


def _loss(view: str, name: str, lost: int) -> str:
    if view == "topic":
        return (
            f"topic {name!r}: {lost:,} messages were dropped by retention before they were read; keep more "
            "(jobq topic retention), read sooner, or continue without them: failOnDataLoss=false"
        )
    return (
        f"queue {name!r}: {lost:,} events were trimmed before they were read; keep more of them, read sooner, or "
        f"continue without them: failOnDataLoss=false"
    )


def _refuse(request: ReadRequest, name: str, bad: list[BadEntry]) -> None:
    first = bad[0]
    text = f"queue {name!r}: entry {first.id.decode()} is not an event record: {first.reason}"
    if request.mode == "FAILFAST":
        raise BadRecordError(
            f"{text}; mode=PERMISSIVE keeps such entries, DROPMALFORMED drops them"
        )
    _log.warning("%s; %d entries dropped", text, len(bad))


def _permissive(
    request: ReadRequest, name: str, good: pa.RecordBatch, bad: list[BadEntry]
) -> Iterator[pa.RecordBatch]:
    if good.num_rows:
        nothing = pa.nulls(good.num_rows, pa.binary())
        yield _with_corrupt(request, good, nothing)
    if bad:
        yield _with_corrupt(request, _shells(name, bad), pa.array([_bytes(entry) for entry in bad]))


def _with_corrupt(
    request: ReadRequest, rows: pa.RecordBatch, corrupt: pa.Array[Any]
) -> pa.RecordBatch:
    arrays = [
        corrupt if column.name == CORRUPT.name else rows.column(column.name)
        for column in request.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=request.schema())


def _bytes(bad_entry: BadEntry) -> bytes:
    """Return an entry's version and value, separated by a zero byte. A version never has a zero byte."""
    return bad_entry.version + b"\0" + bad_entry.value


def _shells(name: str, bad: list[BadEntry]) -> pa.RecordBatch:
    """Return a row for each invalid entry, with only its queue and id."""
    rows: list[dict[str, Any]] = []
    for entry in bad:
        ms, seq = offsets.parsed_id(entry.id.decode())
        told = ms < 253_402_300_800_000 and seq < 2**31
        rows.append(
            {
                "queue": name,
                "base_queue": base_of(name),
                "entry_at": ms * 1000 if told else None,
                "entry_seq": seq if told else None,
            }
        )
    return pa.RecordBatch.from_pylist(rows, schema=events_schema())


_SCHEMA = arrow_schema(TOPIC_COLUMNS)


def topic_batches(
    request: ReadRequest, range_: ReadRange, client: Client
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range. Raises DataLossError for lost messages, unless the options allow it."""
    names = [column.name for column in request.columns]
    binding, lost = TopicCalls(range_.name, client), 0
    for page, dropped in kept_pages(binding, int(range_.after) + 1, int(range_.upto)):
        lost += dropped
        if page:
            yield topic_batch(range_.name, page).select(names)
    report_loss(request, range_.name, lost)


def kept_pages(binding: TopicCalls, following: int, upto: int) -> Iterator[tuple[list[Any], int]]:
    """Yield pages of a topic's log, each with a number of dropped messages.

    For messages that retention dropped, yield an empty page and their number. For all other pages, the number is 0.
    """
    while following <= upto:
        try:
            for page in pages(binding, following, upto, True):
                following = _index(page[-1]) + 1
                yield page, 0
            return
        except OutOfRangeError as error:
            # Retention dropped these messages. Gaps left by a compaction aren't losses.
            first = min(max(error.first, error.position + 1), upto + 1)
            yield [], first - error.position
            following = first


def topic_batch(topic: str, page: list[Any]) -> pa.RecordBatch:
    """Convert entries of a topic's log to rows of the view `topic`."""
    places = [entry[0].split(b"-") for entry in page]
    keys: list[str | None] = [None] * len(page)
    headers: list[list[tuple[str, str]] | None] = [None] * len(page)
    contents: list[bytes | None] = []
    for row, entry in enumerate(page):
        fields = entry[1]
        if len(fields) == 2 and fields[0] == b"m":
            contents.append(fields[1])
            continue
        message = decoded(entry)
        contents.append(message.content)
        keys[row] = message.key
        headers[row] = list(message.headers.items()) or None
    at = pa.array([int(place[1]) * 1000 for place in places], pa.int64())
    arrays = [
        pa.array([topic] * len(page)), pa.array([int(place[0]) for place in places], pa.int64()),
        at.cast(pa.timestamp("us", tz="UTC")), pa.array(keys, pa.string()),
        pa.array(contents, pa.binary()), pa.array(headers, _SCHEMA.field("headers").type),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _index(entry: Any) -> int:
    return int(entry[0].partition(b"-")[0])
