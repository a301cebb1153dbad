"""Read the current state of queues as Arrow batches: live messages, counts and dead messages.

Each Spark action reads live messages again, page by page. Counts are taken when the read is planned. Dead messages are
read if they were dead at that time and haven't been purged or revived since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from jobq.client.connection import Client
from jobq.client.names import base_of
from jobq.client.pipelining import Read, read_together, run_all
from jobq.errors import JobqError
from jobq.events import LIMITS
from jobq.jobs.signing import unverified
from jobq.pipeline import offsets
from jobq.pipeline.reading.request import ReadRequest
from jobq.pipeline.schema import BASE_QUEUE
from jobq.queue import keys
from jobq.queue.queue import Queue, queue_scripts

PAGE = 500
FIRST_PAGE, PAGE_BYTES = 16, 262_144
FAR_MS = 2**53
LATEST_MS = LIMITS["finished_at"]
_SEP = b"\x1f"


class QueueRows(NamedTuple):
    """One queue's live messages, or its dead messages with times of death from `since` to `upto`, epoch ms.

    Attributes:
        rows: Approximate number of rows.
    """

    name: str
    rows: int
    since: int = 0
    upto: int = FAR_MS


class _Head(msgspec.Struct):
    """The job name and the enqueue time of a call."""

    job: str | None = None
    enqueued_at: int | None = None


_head = msgspec.json.Decoder(_Head).decode


def head(content: bytes) -> tuple[str | None, int | None]:
    """Return a call's job and enqueue time (epoch ms). Return None for an encrypted call or other content."""
    content = unverified(content)
    try:
        call = _head(content)
    except (ValueError, RecursionError):
        return None, None
    at = call.enqueued_at
    return call.job, at if at and 0 < at <= LATEST_MS else None


def queue_rows(client: Client, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of the view `queues`."""
    rows = []
    for name in names:
        queue = Queue(name, client)
        queue.is_alone = True
        tail = offsets.events_tail(client, offsets.events_key(client.namespace, name))
        rows.append(
            {"queue": name, **queue.admin.counts()._asdict(), "level": queue.admin.events_level(),
             "maxlen": queue.admin.events_maxlen(), "events": tail.length, "events_added": tail.n}
        )  # fmt: skip
    return rows


def count_batches(
    request: ReadRequest, row: dict[str, Any], client: Client
) -> Iterator[pa.RecordBatch]:
    """Yield one row of the view `queues`. Its counts were taken when the read was planned."""
    yield batch_of(request, [row])


def message_parts(client: Client, names: Sequence[str]) -> list[QueueRows]:
    """Return the queues that have live messages."""
    samples = run_all(client, [Queue(name, client).admin.sample_call() for name in names])
    return [
        QueueRows(name, sample.counts.messages)
        for name, sample in zip(names, samples, strict=True)
        if sample.counts.messages
    ]


def dead_parts(client: Client, request: ReadRequest, names: Sequence[str]) -> list[QueueRows]:
    """Return the queues with dead messages. Messages that become dead after this call aren't included."""
    shelves = []
    for name in names:
        # A later time is impossible: jobq never wrote it.
        upto = newest_death(client, name, LATEST_MS)
        if upto is not None:
            if request.until_ms is not None:
                upto = min(upto, request.until_ms - 1)
            since = max(0, request.since_ms or 0)
            rows = int(client.command("ZCARD", _dead_key(client, name)))
            shelves.append(QueueRows(name, rows, since, upto))
    return shelves


def newest_death(client: Client, queue: str, upto: int) -> int | None:
    """Return the latest time at which a message became dead, in epoch ms, or None. Times after `upto` are ignored."""
    [died_at] = newest_deaths(client, [queue], upto)
    if isinstance(died_at, JobqError):
        raise died_at
    return died_at


def newest_deaths(
    client: Client, queues: Sequence[str], upto: int
) -> Iterator[int | JobqError | None]:
    """For each queue, yield the latest time at which a message became dead, or an error if the queue can't be read.

    Each round trip reads a few hundred queues.
    """
    for first in range(0, len(queues), offsets.TOGETHER):
        streams = [_dead_key(client, queue) for queue in queues[first : first + offsets.TOGETHER]]
        asked = [
            Read(key, ("ZRANGE", key, upto, 0, "BYSCORE", "REV", "LIMIT", 0, 1, "WITHSCORES"))
            for key in streams
        ]
        for reply in read_together(client, asked):
            if isinstance(reply, JobqError):
                yield reply
            else:
                yield int(float(reply[1])) if reply else None


def dead_counts(client: Client, spans: Mapping[str, tuple[int, int]]) -> Iterator[int]:
    """For each queue, yield how many messages became dead in its span, or 0 if the queue can't be read."""
    left = iter(spans.items())
    while some := list(islice(left, offsets.TOGETHER)):
        asked = [
            Read(_dead_key(client, queue), ("ZCOUNT", _dead_key(client, queue), *span))
            for queue, span in some
        ]
        for reply in read_together(client, asked):
            yield 0 if isinstance(reply, JobqError) else int(reply)


def cut_dead(client: Client, span: QueueRows, size: int) -> Iterator[QueueRows]:
    """Divide a queue's dead messages into spans of about `size` rows.

    Messages that became dead in the same millisecond stay in the same span.
    """
    key = _dead_key(client, span.name)
    while span.rows > size:
        words = (span.since, span.upto, "BYSCORE", "LIMIT", size, 1, "WITHSCORES")
        reply = client.command("ZRANGE", key, *words)
        at = int(float(reply[1])) if reply else span.upto
        if at <= span.since:
            at = span.since + 1
        if at > span.upto:
            break
        yield span._replace(rows=size, upto=at - 1)
        span = span._replace(rows=span.rows - size, since=at)
    yield span


def _dead_key(client: Client, queue: str) -> str:
    return keys.key(keys.prefix(client.namespace, queue), "dead")


def message_batches(
    request: ReadRequest, shelf: QueueRows, client: Client
) -> Iterator[pa.RecordBatch]:
    """Yield one queue's live messages, without duplicate mids."""
    script = queue_scripts(client, "pipeline", shelf.name)["messages"]
    whole = "1" if request.wants("content", "job", "enqueued_at") else ""
    seen: set[bytes] = set()
    cursor: bytes | str = "0"
    # Pages with contents have about 256 KiB, estimated from the previous page.
    count = FIRST_PAGE if whole else PAGE
    while True:
        cursor, *lists = script.run(
            {"cursor": cursor, "count": count, "contents_too": whole, "now": ""}
        )
        if whole and lists[0]:
            count = max(1, min(PAGE, PAGE_BYTES * len(lists[0]) // (1 + sum(map(len, lists[-1])))))
        rows = []
        for mid, word, attempts, crashes, delayed, locked, content in zip(*lists, strict=True):
            if mid not in seen:
                seen.add(mid)
                row = {
                    "queue": shelf.name, "mid": text(mid), "status": text(word),
                    "attempts": _number(attempts or b""), "ncrashes": _number(crashes or b""),
                    "not_before": _us(delayed), "lock_expires_at": _us(locked),
                }  # fmt: skip
                rows.append(row | _of_content(content))
        if rows:
            yield batch_of(request, rows)
        if cursor == b"0":
            return


def dead_batches(
    request: ReadRequest, shelf: QueueRows, client: Client
) -> Iterator[pa.RecordBatch]:
    """Yield one queue's dead messages, oldest first."""
    script = queue_scripts(client, "pipeline", shelf.name)["dead"]
    score, last_id = shelf.since, b""
    while True:
        page = script.run({"score": score, "id": last_id, "upto": shelf.upto, "count": PAGE})
        rows = [_dead_row(shelf.name, *row) for row in zip(page[::3], page[1::3], page[2::3])]
        if rows:
            yield batch_of(request, rows)
        if not rows:
            return
        score, last_id = int(page[-2]), page[-3]


def _dead_row(queue: str, dead_id: bytes, died_at: bytes, stored: bytes) -> dict[str, Any]:
    attempts, ncrashes, _, length, rest = (stored.split(_SEP, 4) + [b""] * 5)[:5]
    cut = _number(length)
    row = {
        "queue": queue, "dead_id": text(dead_id), "mid": text(dead_id.rpartition(b"#")[0]),
        "died_at": int(died_at) * 1000, "attempts": _number(attempts), "ncrashes": _number(ncrashes),
        "reason": text(rest[:cut]),
    }  # fmt: skip
    return row | _of_content(rest[cut:])


def _number(text: bytes) -> int:
    """Parse a number; return 0 for invalid bytes."""
    return int(text) if text.isdigit() and len(text) < 10 else 0


def _of_content(content: bytes | int) -> dict[str, Any]:
    if isinstance(content, int):
        return {"bytes": content}
    job, at = head(content)
    enqueued_at = None if at is None else at * 1000
    return {"job": job, "enqueued_at": enqueued_at, "bytes": len(content), "content": content}


def _us(ms: bytes | None) -> int | None:
    return int(ms) * 1000 if ms and ms.isdigit() and len(ms) < 16 else None


def text(value: bytes) -> str:
    """Decode bytes for display."""
    return value.decode("utf-8", "replace")


def batch_of(request: ReadRequest, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Convert rows to the request's columns; times are epoch µs."""
    if request.wants(BASE_QUEUE.name):
        for row in rows:
            row[BASE_QUEUE.name] = base_of(row["queue"])
    return pa.RecordBatch.from_pylist(list(rows), schema=request.schema())
