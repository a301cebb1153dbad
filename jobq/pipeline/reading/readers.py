"""The readers that Spark calls: `JobqReader` for a batch, `JobqStreamReader` for a stream.

Both plan partitions on the driver and read each of them in an executor. A stream keeps exact offsets per queue or topic
in the query's own checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from jobq.client.connection import Client
from jobq.pipeline import offsets
from jobq.pipeline.engine import gc_off
from jobq.pipeline.gateway import told_without_traceback
from jobq.pipeline.offsets import LogOffset, LogRange, LogTail
from jobq.pipeline.reading import live, ranges, streams
from jobq.pipeline.reading.ranges import ReadRange
from jobq.pipeline.reading.request import ReadRequest
from jobq.pipeline.reading.streams import report_loss, report_remade

if TYPE_CHECKING:
    import pyarrow as pa


class JobqReader(DataSourceReader):
    """Reads a view. It doesn't accept filters from Spark, because Spark 4.3 would also apply them to other reads."""

    def __init__(self, request: ReadRequest) -> None:
        self.request = request

    @told_without_traceback()
    def partitions(self) -> Sequence[InputPartition]:
        """Plan partitions for the current entries. Only the view `messages` also reads messages enqueued later."""
        with self.request.connected() as client:
            return [
                InputPartition(value) for value in _PLANS[self.request.view](self.request, client)
            ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield one partition's rows as Arrow batches."""
        return read(self.request, partition)


def read(request: ReadRequest, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition. A partition whose value is None has no rows."""
    if partition.value is None:
        return
    make = _batches(request.view)
    with told_without_traceback(), gc_off(), request.connected() as client:
        for range_ in partition.value:
            yield from make(request, range_, client)


def _batches(view: str) -> Callable[[ReadRequest, Any, Client], Iterator[pa.RecordBatch]]:
    known: dict[str, Callable[[ReadRequest, Any, Client], Iterator[pa.RecordBatch]]] = {
        "events": streams.event_batches, "topic": streams.topic_batches, "messages": live.message_batches,
        "dead": live.dead_batches, "queues": live.count_batches,
    }  # fmt: skip
    return known[view]


def _shelves(request: ReadRequest, client: Client) -> list[Any]:

    names = ranges.chosen(client, request)
    is_live = request.view == "messages"
    parts = (
        live.message_parts(client, names) if is_live else live.dead_parts(client, request, names)
    )
    return ranges.packed(parts, request.partitions or ranges.MAX_PARTS)


def _counts(request: ReadRequest, client: Client) -> list[Any]:

    rows = live.queue_rows(client, ranges.chosen(client, request))
    return [tuple(rows)] if rows else []


_PLANS: dict[str, Callable[[ReadRequest, Client], list[Any]]] = {
    "events": streams.planned_parts, "topic": streams.planned_parts, "messages": _shelves, "dead": _shelves,
    "queues": _counts,
}  # fmt: skip

Offset = dict[str, dict[str, Any]]


class JobqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads events or topics as a stream. It keeps one connection on the driver."""

    def __init__(self, request: ReadRequest) -> None:
        self.request = request
        self._client: Client | None = None
        #: The tails when an AvailableNow query began, at which it ends.
        self._frozen: dict[str, LogTail] | None = None
        #: Offsets at which queues reach `until`; they are kept, because counting the entries before takes a while.
        self._ends: dict[str, LogOffset] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_client": None}

    @told_without_traceback()
    def initialOffset(self) -> Offset:
        """Return the offsets at which a new query begins."""
        tails = self._tails({})
        places = ranges.bounds(
            self._connected(), self.request, tails, self.request.starting, self.request.since_ms
        )
        return offsets.to_plain(
            {name: self._numbered(tails[name], place) for name, place in places.items()}
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the option maxRowsPerTrigger as a limit."""
        return ReadMaxRows(self.request.max_rows) if self.request.max_rows else ReadAllAvailable()

    @told_without_traceback()
    def prepareForTriggerAvailableNow(self) -> None:
        """End the query at the current end of the streams."""
        self._frozen = self._tails({})

    @told_without_traceback()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Offset:
        """Return the offsets at which the next batch ends."""
        places = offsets.from_plain(start)
        tails = self._tails(places) if self._frozen is None else self._frozen
        for name in tails.keys() - places.keys():
            begin = self._begin(name, tails[name])
            if begin.n:
                places[name] = begin
        if self.request.until_ms is not None:
            tails = {
                name: self._ended(name, places.get(name, now.oldest), now)
                for name, now in tails.items()
            }
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        plan = offsets.plan(places, tails, most)
        ends = dict(plan.places)
        for range_ in plan.ranges:
            ends[range_.queue] = self._cut(range_) if range_.limit else range_.end
        return offsets.to_plain(ends)

    @told_without_traceback()
    def reportLatestOffset(self) -> Offset:
        """Return the latest offsets for Spark's progress reports."""
        tails = self._tails({})
        return offsets.to_plain(
            {name: self._ends.get(name, now.place) for name, now in tails.items()}
        )

    @told_without_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan partitions for the entries between two offsets.

        Raises DataLossError if entries were already trimmed, unless the options allow losses.
        """
        begun, ended = offsets.from_plain(start), offsets.from_plain(end)
        changed = [name for name, upto in ended.items() if begun.get(name) != upto]
        tails = ranges.tails_of(self._connected(), self.request.view, changed)
        planned = [
            self._stretch(name, now, begun.get(name), ended[name]) for name, now in tails.items()
        ]
        stretches = [stretch for stretch in planned if stretch is not None]
        if self.request.partitions:
            stretches = [piece for stretch in stretches for piece in self._pieces(stretch)]
        else:
            stretches = ranges.split(self._connected(), stretches, ranges.ROWS_PER_PART)
        packs = ranges.packed(stretches, self.request.partitions or ranges.MAX_PARTS)
        return [InputPartition(pack) for pack in packs]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield one partition's rows as Arrow batches."""
        return read(self.request, partition)

    @told_without_traceback()
    def commit(self, end: dict[str, Any]) -> None:
        """With trimOnCommit, trim the entries that no later batch reads."""
        if self.request.trims:
            client = self._connected()
            for name, place in offsets.from_plain(end).items():
                key = offsets.events_key(client.namespace, name)
                client.command("XTRIM", key, "MINID", offsets.id_after(place.id))

    def stop(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> Client:
        if self._client is None:
            self._client = Client(self.request.settings)
        return self._client

    def _tails(self, places: dict[str, LogOffset]) -> dict[str, LogTail]:
        """Return the ends of the chosen queues and of the queues in `places`."""
        client = self._connected()
        names = sorted({*ranges.chosen(client, self.request, strict=False), *places})
        tails = ranges.tails_of(client, self.request.view, names)
        # A queue without entries has no offset yet. Its first entry will be its beginning.
        return {name: now for name, now in tails.items() if now.n or name in places}

    def _numbered(self, now: LogTail, place: LogOffset) -> LogOffset:
        """Return the offset with its entry number, which is counted if the user gave only an id."""
        if place.n != ranges.UNKNOWN:
            return place
        if offsets.parsed_id(place.id) <= offsets.parsed_id(now.oldest.id):
            return now.oldest
        counted = offsets.counted_offset(self._connected(), now.key, now.oldest, place.id)
        return LogOffset(place.id, counted.n)

    def _cut(self, range_: LogRange) -> LogOffset:
        """Return the offset after the last entry that the range's limit allows."""
        if self.request.view == "topic":
            now = ranges.tail_of(self._connected(), "topic", range_.queue)
            index = min(range_.end.n, max(range_.start.n, now.dropped) + range_.limit)
            return LogOffset(str(index), index)
        place = offsets.counted_offset(
            self._connected(), range_.key, range_.start, range_.upto, range_.limit
        )
        # Without progress, all of the range was trimmed; partitions() raises the error.
        return place if place.n > range_.start.n else range_.end

    def _begin(self, name: str, now: LogTail) -> LogOffset:
        """Return the offset at which to start reading a queue that appeared after the query began."""
        if self.request.since_ms is None:
            return LogOffset()
        place = ranges.place_at(self._connected(), self.request.view, name, self.request.since_ms)
        if offsets.parsed_id(place.id) <= offsets.parsed_id(now.oldest.id):
            return LogOffset()
        return self._numbered(now, place)

    def _ended(self, name: str, place: LogOffset, now: LogTail) -> LogTail:
        """Return the stream's end at the time `until`. The query has read up to `place`."""
        client, until_ms = self._connected(), self.request.until_ms
        assert until_ms is not None
        last = ranges.place_at(client, self.request.view, name, until_ms)
        if offsets.parsed_id(now.id) <= offsets.parsed_id(last.id):
            return now
        if offsets.parsed_id(place.id) >= offsets.parsed_id(last.id):
            # The query has reached `until`, so nothing more is read from the stream, even if it was recreated.
            return LogTail(now.key, place.id, place.n, 0, place.id)
        if last.n == ranges.UNKNOWN and name not in self._ends:
            start = max(place, now.oldest, key=lambda offset: offsets.parsed_id(offset.id))
            counted = offsets.counted_offset(client, now.key, start, last.id)
            self._ends[name] = LogOffset(last.id, counted.n)
        end = self._ends.get(name, last)
        return now._replace(id=end.id, n=end.n, length=max(0, end.n - now.dropped))

    def _stretch(
        self, name: str, now: LogTail, begun: LogOffset | None, end: LogOffset
    ) -> ReadRange | None:
        start = self._begin(name, now) if begun is None else begun
        if offsets.is_remade(start, now):
            report_remade(self.request, name)
            start = now.oldest if offsets.parsed_id(end.id) < offsets.parsed_id(start.id) else start
        lost = max(0, min(now.dropped, end.n) - start.n)
        report_loss(self.request, name, lost)
        if offsets.parsed_id(end.id) <= offsets.parsed_id(start.id):
            return None
        expected = max(0, end.n - start.n - lost)
        return ReadRange(name, now.key, start.id, end.id, expected, now.dropped, expected)

    def _pieces(self, range_: ReadRange) -> list[ReadRange]:
        """Cut a range by number of entries, so that each part has an exact count."""
        if self.request.view == "topic":
            return ranges.cut_by_index(range_, self.request.partitions)
        size, pieces, rest = -(-range_.rows // self.request.partitions), [], range_
        while rest.rows > size > 0:
            place = offsets.counted_offset(
                self._connected(), range_.key, LogOffset(rest.after, 0), range_.upto, size
            )
            pieces.append(rest._replace(upto=place.id, expected=size, rows=size))
            left = rest.rows - size
            rest = rest._replace(after=place.id, expected=left, rows=left)
        return [*pieces, rest]
