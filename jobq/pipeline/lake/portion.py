"""What one ingest task does, on an executor or in this process: read stretches, decode, write files.

A portion says where to read and where to write in plain values, and a task answers in plain values. Errors
travel in the answer, so that a full disk isn't tried three times more and says what it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from jobq import errors
from jobq.compat.topic.binding import Binding
from jobq.compat.topic.reading import pages
from jobq.config import ServerSettings
from jobq.engine.connection import Client
from jobq.errors import JobqError, PipelineError
from jobq.pipeline import collector, offsets
from jobq.pipeline.decode import Bad, columns, decode
from jobq.pipeline.lake.files import Writer, Written
from jobq.pipeline.lake.store import Store
from jobq.pipeline.lake.tables import TABLES, to_lake
from jobq.pipeline.reading.topic import batch as topic_batch

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
    """What one task reads, one stretch after the other, and the table it writes to."""

    table: str
    settings: ServerSettings
    store: Store
    stretches: tuple[Stretch, ...]


class Read(NamedTuple):
    """How far a stretch was read: entries, the first and last id; `cut`: the limit ended it."""

    stretch: Stretch
    entries: int = 0
    first_id: str = ""
    last_id: str = ""
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
    source = _topic if portion.table == "topics" else _events
    for stretch in portion.stretches:
        read = Read(stretch)
        for rows, wrong, entries in source(client, stretch):
            first, last = entries[0][0].decode(), entries[-1][0].decode()
            read = read._replace(
                entries=read.entries + len(entries), first_id=read.first_id or first, last_id=last
            )
            bad += [(stretch.name, one) for one in wrong]
            writer.add(rows)
        cut = bool(stretch.limit) and read.entries >= stretch.limit
        reads.append(read._replace(cut=cut and read.last_id != stretch.upto))
    return Answer(tuple(reads), tuple(writer.finish()), tuple(bad))


def _events(client: Client, stretch: Stretch) -> Iterator[tuple[pa.Table, list[Bad], list[Any]]]:
    for entries in _chunks(client, stretch):
        found = decode(stretch.name, *columns(entries))
        yield to_lake(found.batch), found.bad, entries


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


def _topic(client: Client, stretch: Stretch) -> Iterator[tuple[pa.Table, list[Bad], list[Any]]]:
    binding = Binding(stretch.name, client)
    for page in pages(binding, offsets.parsed(stretch.after)[0] + 1, int(stretch.upto), False):
        yield pa.Table.from_batches([topic_batch(stretch.name, page)]), [], page
