"""Events as Arrow batches, and what retention dropped before they were read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jobq.errors import BadRecord, DataLoss
from jobq.pipeline import offsets
from jobq.pipeline.decode import Bad, columns, decode
from jobq.pipeline.reading.request import CORRUPT
from jobq.pipeline.reading.stretch import UNKNOWN, Stretch

if TYPE_CHECKING:
    from jobq.engine.connection import Client
    from jobq.pipeline.reading.request import Request

#: Entries per call, and per batch: larger replies cost more each, larger batches fewer conversions.
PAGE = 1_000
BATCH = 10_000
_log = logging.getLogger("jobq.pipeline")


def batches(request: Request, one: Stretch, client: Client) -> Iterator[pa.RecordBatch]:
    """The events of a stretch. Raises DataLoss or BadRecord, unless the request says to go on."""
    names = [column.name for column in request.columns]
    read, watch = 0, _Watch(client, one)
    for entries in chunks(client, one.key, one.after, one.upto, watch):
        read += len(entries)
        found = decode(one.name, *columns(entries))
        if request.mode == "PERMISSIVE":
            yield from _permissive(request, one.name, found.batch, found.bad)
            continue
        if found.bad:
            _refuse(request, one.name, found.bad)
        if found.batch.num_rows:
            yield found.batch.select(names)
    report(request, one.name, watch.lost(read))


def chunks(
    client: Client, key: str, after: str, upto: str, watch: _Watch | None = None
) -> Iterator[list[Any]]:
    """Entries as XRANGE gives them, from `after`, excluded, to `upto`, some thousands at a time."""
    chunk: list[Any] = []
    while True:
        page = client.command("XRANGE", key, f"({after}", upto, "COUNT", PAGE)
        if watch is not None and page:
            watch.saw(after)
        chunk += page
        if len(page) < PAGE:
            break
        after = page[-1][0].decode()
        if len(chunk) >= BATCH:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class _Watch:
    """Notices what was dropped before it was read.

    A stretch whose number of entries is known needs no looking. Of one that was cut by time, the stream is
    looked at after each page: was it dropped further than that page's beginning, entries before it may
    have gone unread, and what is told is how many went since the read was planned.
    """

    def __init__(self, client: Client, one: Stretch) -> None:
        self._client, self._one = client, one
        self._dropped = 0

    def saw(self, after: str) -> None:
        """A page that begins after the id `after` was read."""
        if self._one.expected != UNKNOWN:
            return
        now = offsets.tail(self._client, self._one.key)
        gone = now.dropped - self._one.dropped
        if gone > 0 and (not now.length or offsets.parsed(now.first_id) > offsets.parsed(after)):
            self._dropped = gone

    def lost(self, read: int) -> int:
        """How many entries are missing, now that `read` were read."""
        if self._one.expected != UNKNOWN:
            return max(0, self._one.expected - read)
        return self._dropped


def report(request: Request, name: str, lost: int) -> None:
    """Raise or log what was dropped before it was read."""
    if not lost:
        return
    text = loss(request.view, name, lost)
    if request.strict:
        raise DataLoss(text)
    log_loss(text)


def log_loss(text: str) -> None:
    """Say what nobody will read, where the request says to go on."""
    _log.warning(text)


def loss(view: str, name: str, lost: int) -> str:
    """What to say of it."""
    if view == "topic":
        return (
            f"topic {name!r}: {lost:,} messages were dropped by retention before they were read; keep more "
            "(jobq topic limits), read sooner, or go on without them: failOnDataLoss=false"
        )
    return (
        f"queue {name!r}: {lost:,} events were trimmed before they were read; keep more of them, read "
        "sooner, or go on without them: failOnDataLoss=false"
    )


def _refuse(request: Request, name: str, bad: list[Bad]) -> None:
    first = bad[0]
    text = f"queue {name!r}: entry {first.id.decode()} is no event record: {first.reason}"
    if request.mode == "FAILFAST":
        raise BadRecord(f"{text}; mode=PERMISSIVE keeps such entries, DROPMALFORMED drops them")
    _log.warning("%s; %d entries dropped", text, len(bad))


def _permissive(
    request: Request, name: str, good: pa.RecordBatch, bad: list[Bad]
) -> Iterator[pa.RecordBatch]:
    if good.num_rows:
        nothing = pa.nulls(good.num_rows, pa.binary())
        yield _with_corrupt(request, good, nothing)
    if bad:
        yield _with_corrupt(request, _shells(name, bad), pa.array([_bytes(one) for one in bad]))


def _with_corrupt(request: Request, rows: pa.RecordBatch, corrupt: pa.Array[Any]) -> pa.RecordBatch:
    arrays = [
        corrupt if column.name == CORRUPT.name else rows.column(column.name)
        for column in request.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=request.schema())


def _bytes(one: Bad) -> bytes:
    """Version and value as they stand in the stream, between them what no version holds."""
    return one.version + b"\0" + one.value


def _shells(name: str, bad: list[Bad]) -> pa.RecordBatch:
    """Rows of which only the entry's place is known."""
    from jobq.pipeline.schema import events_schema

    rows = []
    for one in bad:
        ms, seq = offsets.parsed(one.id.decode())
        told = ms < 253_402_300_800_000 and seq < 2**31
        rows.append(
            {
                "queue": name,
                "entry_at": ms * 1000 if told else None,
                "entry_seq": seq if told else None,
            }
        )
    schema = events_schema()
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
