"""The streaming reader: exact places per queue or topic, in the query's own checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from jobq.client.connection import Client
from jobq.pipeline import offsets
from jobq.pipeline.offsets import Place, Range, Tail
from jobq.pipeline.reading import stretch
from jobq.pipeline.reading.events import report, report_remade
from jobq.pipeline.reading.reader import read
from jobq.pipeline.reading.request import Request
from jobq.pipeline.reading.stretch import Stretch

Offset = dict[str, dict[str, Any]]


class JobqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Events or topics, from wherever the checkpoint says; on the driver it keeps one connection."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._client: Client | None = None
        #: What there was when an AvailableNow query began: it ends there.
        self._frozen: dict[str, Tail] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_client": None}

    def initialOffset(self) -> Offset:
        """Where a new query begins; one with a checkpoint goes on from that."""
        tails = self._tails({})
        places = stretch.bounds(self._connected(), self.request, tails, self.request.starting)
        return offsets.to_plain(
            {name: self._numbered(tails[name], place) for name, place in places.items()}
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        """By maxRowsPerTrigger."""
        return ReadMaxRows(self.request.max_rows) if self.request.max_rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Take what there is now as the end of the query."""
        self._frozen = self._tails({})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Offset:
        """How far the next batch reads."""
        places = offsets.from_plain(start)
        tails = self._tails(places) if self._frozen is None else self._frozen
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        plan = offsets.plan(places, tails, most)
        ends = dict(plan.places)
        for one in plan.ranges:
            ends[one.queue] = self._cut(one) if one.limit else one.end
        return offsets.to_plain(ends)

    def reportLatestOffset(self) -> Offset:
        """What there is, for the query's progress."""
        return offsets.to_plain({name: now.place for name, now in self._tails({}).items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What is between two offsets. Raises DataLossError for what is known to be gone already."""
        begun, ended = offsets.from_plain(start), offsets.from_plain(end)
        stretches = []
        for name, upto in ended.items():
            one = self._stretch(name, begun.get(name, Place()), upto)
            if one is not None:
                stretches.append(one)
        if self.request.partitions:
            stretches = [piece for one in stretches for piece in self._pieces(one)]
        packs = stretch.packed(stretches, self.request.partitions or stretch.MOST_PARTS)
        return [InputPartition(pack) for pack in packs]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One partition's rows, as Arrow batches."""
        return read(self.request, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """With trimOnCommit: drop what every later batch has behind it."""
        if self.request.trims:
            client = self._connected()
            for name, place in offsets.from_plain(end).items():
                key = offsets.events_key(client.namespace, name)
                client.command("XTRIM", key, "MINID", offsets.following(place.id))

    def stop(self) -> None:
        """Leave nothing open."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> Client:
        if self._client is None:
            self._client = Client(self.request.settings)
        return self._client

    def _tails(self, places: dict[str, Place]) -> dict[str, Tail]:
        """What the queues are now: those asked for, those that came since, those read before."""
        client = self._connected()
        names = sorted({*stretch.chosen(client, self.request, strict=False), *places})
        tails = {name: stretch.tail_of(client, self.request.view, name) for name in names}
        # One without entries has no place yet: when it gets some, the first of them is its beginning.
        return {name: now for name, now in tails.items() if now.n or name in places}

    def _numbered(self, now: Tail, place: Place) -> Place:
        """A place with its number, counted where only an id was given."""
        if place.n != stretch.UNKNOWN:
            return place
        if offsets.parsed(place.id) <= offsets.parsed(now.oldest.id):
            return now.oldest
        counted = offsets.counted(self._connected(), now.key, now.oldest, place.id)
        return Place(place.id, counted.n)

    def _cut(self, one: Range) -> Place:
        """Where a range ends after its limit of entries."""
        if self.request.view == "topic":
            now = stretch.tail_of(self._connected(), "topic", one.queue)
            index = min(one.end.n, max(one.start.n, now.dropped) + one.limit)
            return Place(str(index), index)
        place = offsets.counted(self._connected(), one.key, one.start, one.upto, one.limit)
        # Without progress all of it is gone, which partitions() will tell.
        return place if place.n > one.start.n else one.end

    def _stretch(self, name: str, start: Place, end: Place) -> Stretch | None:
        now = stretch.tail_of(self._connected(), self.request.view, name)
        if offsets.is_remade(start, now):
            report_remade(self.request, name)
            start = now.oldest if offsets.parsed(end.id) < offsets.parsed(start.id) else start
        lost = max(0, min(now.dropped, end.n) - start.n)
        report(self.request, name, lost)
        if offsets.parsed(end.id) <= offsets.parsed(start.id):
            return None
        expected = max(0, end.n - start.n - lost)
        return Stretch(name, now.key, start.id, end.id, expected, now.dropped, expected)

    def _pieces(self, one: Stretch) -> list[Stretch]:
        """A stretch cut by number of entries, so that each piece knows how many it has."""
        if self.request.view == "topic":
            return stretch.cut_by_index(one, self.request.partitions)
        size, pieces, rest = -(-one.rows // self.request.partitions), [], one
        while rest.rows > size > 0:
            place = offsets.counted(
                self._connected(), one.key, Place(rest.after, 0), one.upto, size
            )
            pieces.append(rest._replace(upto=place.id, expected=size, rows=size))
            left = rest.rows - size
            rest = rest._replace(after=place.id, expected=left, rows=left)
        return [*pieces, rest]
