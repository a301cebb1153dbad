"""Divide a batch of an ingest into partitions: units of work for an `Engine`.

A partition and its result are plain values. The partition names the ranges to read and the table to write to. Errors
are returned in the result, because Spark would retry after an error such as a full disk, and shorten the error message.

Small ranges share a partition. A large range is divided by time, because each id contains a time.
A part that has more entries than its limit ends early, and the results of the following parts are discarded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from jobq.client.connection import Client
from jobq.client.pipelining import Read, read_together
from jobq.config import ServerSettings
from jobq.errors import JobqError
from jobq.pipeline import offsets
from jobq.pipeline.decode import BadEntry, TimeBounds, columns, decode
from jobq.pipeline.engine import gc_off
from jobq.pipeline.lake.files import DataFile, DataFileWriter
from jobq.pipeline.lake.quarantine import KeptEntries, Quarantine, written
from jobq.pipeline.lake.store import LakeStore
from jobq.pipeline.lake.tables import TABLES, parted, to_lake
from jobq.pipeline.lake.tombstones import TombstoneFiles, Tombstones
from jobq.pipeline.offsets import LogRange, LogTail
from jobq.pipeline.reading.streams import kept_pages, topic_batch
from jobq.topics.calls import TopicCalls

#: Entries per call, and per decoded batch. Larger replies cost more per entry; larger batches need fewer conversions.
PAGE = 1_000
CHUNK = 20_000
FAR = 2**62


class IngestPartition(NamedTuple):
    """Ranges to read in order, and the table to write to.

    Attributes:
        bounds: Events with times outside these bounds go to the quarantine.
        erased: Tombstones; rows that match them are left out.
        quarantine: State of the quarantine, for a partition of events.
    """

    table: str
    settings: ServerSettings
    store: LakeStore
    ranges: tuple[LogRange, ...]
    bounds: TimeBounds | None = None
    erased: TombstoneFiles | None = None
    quarantine: Quarantine | None = None

    def with_quarantine(self, quarantine: Quarantine) -> IngestPartition:
        """Return the partition with the state of the quarantine for its queues."""
        return self._replace(quarantine=quarantine.of({range_.queue for range_ in self.ranges}))


class RangeRead(NamedTuple):
    """How far a range was read.

    Attributes:
        cut: Whether the range's limit ended the reading.
        lost: Number of a topic's messages that retention dropped before they were read. Losses of events are computed
            from offsets.
    """

    source: LogRange
    entries: int = 0
    last_id: str = ""
    lost: int = 0
    cut: bool = False


class PartitionResult(NamedTuple):
    """The result of reading a partition.

    Attributes:
        nbad: Number of invalid entries.
        kept: New files with invalid entries, to be added to the quarantine.
        failed: Class and message of an error. After an error, the partition's files are deleted.
    """

    reads: tuple[RangeRead, ...] = ()
    files: tuple[DataFile, ...] = ()
    nbad: int = 0
    kept: KeptEntries = KeptEntries()
    failed: tuple[str, str] | None = None


def settings_of(client: Client) -> ServerSettings:
    """Return the settings with which a task can connect to the client's server."""
    return replace(client.settings, url=client.url, codec=None, outage_buffer=0)


def run_partition(partition: IngestPartition) -> PartitionResult:
    """Read, decode and write a partition. A JobqError is returned in the result."""
    client = Client(partition.settings)
    try:
        with gc_off(), DataFileWriter(partition.store, TABLES[partition.table]) as writer:
            return _run(partition, client, writer)
    except JobqError as error:
        return PartitionResult(failed=(type(error).__name__, str(error)))
    finally:
        client.close()


def _run(partition: IngestPartition, client: Client, writer: DataFileWriter) -> PartitionResult:
    reads: list[RangeRead] = []
    bad: list[tuple[str, BadEntry]] = []
    erased = partition.erased.load() if partition.erased else None
    topics, todo = partition.table == "topics", list(partition.ranges)
    source = _topic if topics else partial(_events, bounds=partition.bounds)
    if not topics:
        few = [range_ for range_ in todo if _entries_of(range_) < PAGE]
        for rows, some, wrong in _many(client, few, partition.bounds):
            reads += some
            bad += _unerased(erased, wrong)
            writer.add(erased.kept(partition.table, rows) if erased else rows)
        done = {read.source for read in reads}
        todo = [range_ for range_ in todo if range_ not in done]
    for given in todo:
        read = RangeRead(given)
        for chunk in source(client, given):
            read = read._replace(
                entries=read.entries + chunk.entries, last_id=chunk.last_id or read.last_id,
                lost=read.lost + chunk.lost,
            )  # fmt: skip
            bad += _unerased(erased, [(given.queue, entry) for entry in chunk.bad])
            writer.add(erased.kept(partition.table, chunk.rows) if erased else chunk.rows)
        cut = bool(given.limit) and read.entries >= given.limit
        reads.append(read._replace(cut=cut and read.last_id != given.upto))
    files = tuple(writer.finish())
    kept = written(partition.quarantine, bad) if partition.quarantine else KeptEntries()
    return PartitionResult(tuple(reads), files, len(bad), kept)


def _unerased(
    erased: Tombstones | None, bad: Sequence[tuple[str, BadEntry]]
) -> Iterator[tuple[str, BadEntry]]:
    return (
        (queue, entry)
        for queue, entry in bad
        if erased is None or not erased.is_named_in(queue, entry.value)
    )


class _Chunk(NamedTuple):
    """Some entries of a range, or the number of messages that retention dropped from it."""

    rows: pa.Table
    entries: int
    last_id: str = ""
    bad: Sequence[BadEntry] = ()
    lost: int = 0


#: Number of ranges per round trip.
TOGETHER = 300


def _many(
    client: Client, ranges: Sequence[LogRange], bounds: TimeBounds | None
) -> Iterator[tuple[pa.Table, list[RangeRead], list[tuple[str, BadEntry]]]]:
    """Read small ranges, a few hundred per round trip, and decode their entries together.

    A range with more entries than planned is skipped.
    """
    for some in _together(ranges):
        asked = [
            Read(
                log.key, ("XRANGE", log.key, f"({log.after}", log.upto, "COUNT", log.limit or PAGE)
            )
            for log in some
        ]
        pages = read_together(client, asked)
        for page in pages:
            if isinstance(page, JobqError):
                raise page
        kept = [
            (log, page)
            for log, page in zip(some, pages, strict=True)
            if log.limit or len(page) < PAGE
        ]
        reads = [_read_of(log, page) for log, page in kept]
        bad: list[tuple[str, BadEntry]] = []
        entries = [entry for _, page in kept for entry in page]
        decoded = decode("", *columns(entries), bounds)
        if not decoded.bad:
            names = pa.array([log.queue for log, page in kept for _ in page], pa.string())
            at = decoded.batch.schema.get_field_index("queue")
            yield (
                to_lake(decoded.batch.set_column(at, decoded.batch.schema.field(at), names)),
                reads,
                bad,
            )
            continue
        tables = []
        for log, page in kept:
            alone = decode(log.queue, *columns(page), bounds)
            bad += [(log.queue, entry) for entry in alone.bad]
            tables.append(to_lake(alone.batch))
        yield pa.concat_tables(tables), reads, bad


def _together(ranges: Sequence[LogRange]) -> Iterator[list[LogRange]]:
    some: list[LogRange] = []
    entries = 0
    for range_ in ranges:
        some.append(range_)
        entries += _entries_of(range_)
        if len(some) >= TOGETHER or entries >= CHUNK:
            yield some
            some, entries = [], 0
    if some:
        yield some


def _read_of(range_: LogRange, page: Sequence[Any]) -> RangeRead:
    last_id = page[-1][0].decode() if page else ""
    cut = bool(range_.limit) and len(page) >= range_.limit and last_id != range_.upto
    return RangeRead(range_, len(page), last_id, cut=cut)


def _events(client: Client, given: LogRange, bounds: TimeBounds | None) -> Iterator[_Chunk]:
    for entries in _chunks(client, given):
        decoded = decode(given.queue, *columns(entries), bounds)
        yield _Chunk(to_lake(decoded.batch), len(entries), entries[-1][0].decode(), decoded.bad)


def _chunks(client: Client, given: LogRange) -> Iterator[list[Any]]:
    after, left, chunk = given.after, given.limit or FAR, []
    while True:
        count = min(PAGE, left)
        page = client.command("XRANGE", given.key, f"({after}", given.upto, "COUNT", count)
        chunk += page
        left -= len(page)
        if len(page) < count or left <= 0:
            break
        after = page[-1][0].decode()
        if len(chunk) >= CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _topic(client: Client, given: LogRange) -> Iterator[_Chunk]:
    binding = TopicCalls(parted(given.queue)[1], client)
    for page, lost in kept_pages(binding, int(given.after) + 1, int(given.upto)):
        rows = pa.Table.from_batches([topic_batch(given.queue, page)])
        yield _Chunk(rows, len(page), page[-1][0].decode() if page else "", lost=lost)


#: Approximate number of entries per partition.
PARTITION_ENTRIES = 100_000
#: A part of a range cut by time ends early after this many times the planned number of entries.
PARTITION_SLACK = 3
_LAST_SEQ = 2**64 - 1


class RangeResult(NamedTuple):
    """The results of reading the parts of a range, in the order of the stream."""

    reads: tuple[RangeRead, ...]

    @property
    def entries(self) -> int:
        """The number of entries."""
        return sum(read.entries for read in self.reads)

    @property
    def last_id(self) -> str:
        """The id of the last entry; empty if there are no entries."""
        return next((read.last_id for read in reversed(self.reads) if read.entries), "")


def planned_partitions(
    table: str, settings: ServerSettings, store: LakeStore, ranges: Sequence[LogRange],
    tails: Mapping[str, LogTail], size: int = PARTITION_ENTRIES, bounds: TimeBounds | None = None,
) -> list[IngestPartition]:  # fmt: skip
    """Divide the ranges into partitions of about `size` entries."""
    planned: list[IngestPartition] = []
    waiting: list[LogRange] = []
    entries = 0
    for range_ in sorted(ranges, key=_entries_of):
        if _entries_of(range_) > size:
            parts = _cut(range_, tails[range_.queue], size)
            planned += [IngestPartition(table, settings, store, (part,), bounds) for part in parts]
            continue
        waiting += [range_] if "-" in range_.upto else _cut_by_index(range_, 1)
        entries += _entries_of(range_)
        if entries >= size:
            planned.append(IngestPartition(table, settings, store, tuple(waiting), bounds))
            waiting, entries = [], 0
    return planned + (
        [IngestPartition(table, settings, store, tuple(waiting), bounds)] if waiting else []
    )


def _entries_of(range_: LogRange) -> int:
    return range_.limit or range_.expected


def _cut(range_: LogRange, now: LogTail, size: int) -> list[LogRange]:
    count = math.ceil(_entries_of(range_) / size)
    if "-" not in range_.upto:
        return _cut_by_index(range_, count)
    first_id = max(now.first_id, offsets.id_after(range_.after), key=offsets.parsed_id)
    upto, limit = range_.upto, 0
    if range_.limit:
        there = max(1, range_.expected - max(0, now.dropped - range_.start.n))
        low, high = offsets.parsed_id(first_id)[0], offsets.parsed_id(range_.upto)[0]
        upto = f"{low + (high - low) * range_.limit // there}-{_LAST_SEQ}"
        limit = PARTITION_SLACK * size
    ranges = [
        range_._replace(after=after, upto=end, limit=limit)
        for after, end in offsets.parts(first_id, upto, count)
    ]
    # The first part begins before the oldest existing entry, because trimmed entries count as lost.
    return [ranges[0]._replace(after=range_.after), *ranges[1:]]


def _cut_by_index(range_: LogRange, count: int) -> list[LogRange]:
    upto = (
        min(int(range_.upto), int(range_.after) + range_.limit)
        if range_.limit
        else int(range_.upto)
    )
    return [
        range_._replace(after=after, upto=end, limit=0)
        for after, end in offsets.index_parts(int(range_.after), upto, count)
    ]


def gathered(
    answers: Iterable[PartitionResult],
) -> tuple[dict[str, RangeResult], list[PartitionResult], list[PartitionResult]]:
    """Return the results by queue, the partitions to commit, and the partitions to discard.

    After a partition reaches its limit, later partitions of the same range are discarded.
    """
    reads: dict[str, list[RangeRead]] = {}
    cut: set[str] = set()
    kept, dropped = [], []
    for answer in answers:
        names = {read.source.queue for read in answer.reads}
        if names & cut:
            dropped.append(answer)
            continue
        kept.append(answer)
        for read in answer.reads:
            reads.setdefault(read.source.queue, []).append(read)
            if read.cut:
                cut.add(read.source.queue)
    return {name: RangeResult(tuple(parts)) for name, parts in reads.items()}, kept, dropped
