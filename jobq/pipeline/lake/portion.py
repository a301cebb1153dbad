"""What one ingest task does, on an executor or in this process: read stretches, decode, write files.

A portion says where to read and where to write in plain values, and a task answers in plain values. Errors
travel in the answer, so that a full disk isn't tried three times more and says what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from jobq import errors
from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.errors import JobqError, PipelineError
from jobq.pipeline import collector
from jobq.pipeline.decode import Bad, Bounds, columns, decode
from jobq.pipeline.lake.files import Writer, Written
from jobq.pipeline.lake.store import Store
from jobq.pipeline.lake.tables import TABLES, to_lake
from jobq.pipeline.reading.topic import batch as topic_batch
from jobq.pipeline.reading.topic import kept
from jobq.topics.calls import TopicCalls

#: Entries per call, and per decoded batch: larger replies cost more each, larger batches fewer conversions.
PAGE = 1_000
CHUNK = 20_000
FAR = 2**62


class Stretch(NamedTuple):
    """Entries of one queue or topic after `after`, up to and with `upto`; at most `limit`, 0 = all."""

    name: str
    key: str
    after: str
    upto: str
    limit: int = 0


class Portion(NamedTuple):
    """What one task reads, one stretch after the other, and the table it writes to.

    bounds: events that tell times outside are no records.
    """

    table: str
    settings: ServerSettings
    store: Store
    stretches: tuple[Stretch, ...]
    bounds: Bounds | None = None


class Read(NamedTuple):
    """How far a stretch was read: entries, the last id; `cut`: the limit ended it.

    lost: messages of a topic that retention dropped before they were read. Of events only places tell.
    """

    stretch: Stretch
    entries: int = 0
    last_id: str = ""
    lost: int = 0
    cut: bool = False


class Answer(NamedTuple):
    """What a task did. `failed`: class and words of what ended it; then nothing of it is left."""

    reads: tuple[Read, ...] = ()
    files: tuple[Written, ...] = ()
    bad: tuple[tuple[str, Bad], ...] = ()
    failed: tuple[str, str] | None = None


def work(portion: Portion) -> Answer:
    """Do it. Nothing but what a programming fault makes is raised."""
    client = Client(portion.settings)
    writer = Writer(portion.store, TABLES[portion.table])
    try:
        with collector.switched_off():
            return _work(portion, client, writer)
    except JobqError as error:
        writer.abandon()
        return Answer(failed=(type(error).__name__, str(error)))
    finally:
        client.close()


def raised(answer: Answer) -> None:
    """Raise what ended a task."""
    if answer.failed:
        kind, words = answer.failed
        known = getattr(errors, kind, PipelineError)
        raise known(words)


def _work(portion: Portion, client: Client, writer: Writer) -> Answer:
    reads, bad = [], []
    source = _topic if portion.table == "topics" else partial(_events, bounds=portion.bounds)
    for stretch in portion.stretches:
        read = Read(stretch)
        for found in source(client, stretch):
            read = read._replace(
                entries=read.entries + found.entries, last_id=found.last_id or read.last_id,
                lost=read.lost + found.lost,
            )  # fmt: skip
            bad += [(stretch.name, one) for one in found.bad]
            writer.add(found.rows)
        cut = bool(stretch.limit) and read.entries >= stretch.limit
        reads.append(read._replace(cut=cut and read.last_id != stretch.upto))
    return Answer(tuple(reads), tuple(writer.finish()), tuple(bad))


class _Chunk(NamedTuple):
    """Some entries of a stretch; without any, how many were dropped there."""

    rows: pa.Table
    entries: int
    last_id: str = ""
    bad: Sequence[Bad] = ()
    lost: int = 0


def _events(client: Client, stretch: Stretch, bounds: Bounds | None) -> Iterator[_Chunk]:
    for entries in _chunks(client, stretch):
        found = decode(stretch.name, *columns(entries), bounds)
        yield _Chunk(to_lake(found.batch), len(entries), entries[-1][0].decode(), found.bad)


def _chunks(client: Client, stretch: Stretch) -> Iterator[list[Any]]:
    """Entries as XRANGE gives them, some thousands at a time."""
    after, left, chunk = stretch.after, stretch.limit or FAR, []
    while True:
        count = min(PAGE, left)
        page = client.command("XRANGE", stretch.key, f"({after}", stretch.upto, "COUNT", count)
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


def _topic(client: Client, stretch: Stretch) -> Iterator[_Chunk]:
    binding = TopicCalls(stretch.name, client)
    for page, lost in kept(binding, int(stretch.after) + 1, int(stretch.upto)):
        rows = pa.Table.from_batches([topic_batch(stretch.name, page)])
        yield _Chunk(rows, len(page), page[-1][0].decode() if page else "", lost=lost)
