"""What queues hold now, as Arrow batches: their live messages, their counts, their dead.

Live messages are looked at anew by every action, one page at one moment. Counts are those of when the
read was planned. The dead are those that had died by then, and weren't purged or revived since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from jobq.client.scripts import load
from jobq.events import LIMITS
from jobq.pipeline import offsets
from jobq.queue import keys
from jobq.queue.queue import Queue

if TYPE_CHECKING:
    from jobq.client.connection import Client
    from jobq.pipeline.reading.request import Request

PAGE = 500
FIRST_PAGE, PAGE_BYTES = 16, 262_144
FAR_MS = 2**53
LATEST_MS = LIMITS["finished_at"]
_SEP = b"\x1f"


class Shelf(NamedTuple):
    """One queue's messages, or those of its dead that died from `since` to `upto`, epoch ms."""

    name: str
    rows: int
    since: int = 0
    upto: int = FAR_MS


class _Head(msgspec.Struct):
    """What of a call says which job it is."""

    job: str | None = None
    enqueued_at: int | None = None


_head = msgspec.json.Decoder(_Head).decode
_SIGNED = b"jobq-s1 "


def head(content: bytes) -> tuple[str | None, int | None]:
    """Job and enqueued_at of a call; nothing of what is no call, or hidden."""
    if content.startswith(_SIGNED):
        content = content.partition(b"\n")[2]
    try:
        found = _head(content)
    except (ValueError, RecursionError):
        return None, None
    at = found.enqueued_at
    return found.job, at if at and 0 < at <= LATEST_MS else None


def queue_rows(client: Client, names: Sequence[str]) -> list[dict[str, Any]]:
    """The view `queues`."""
    rows = []
    for name in names:
        queue = Queue(name, client)
        tail = offsets.tail(client, offsets.events_key(client.namespace, name))
        rows.append(
            {"queue": name, **queue.admin.counts()._asdict(), "level": queue.admin.events_level(),
             "maxlen": queue.admin.events_maxlen(), "events": tail.length, "events_added": tail.n}
        )  # fmt: skip
    return rows


def counts(request: Request, row: dict[str, Any], client: Client) -> Iterator[pa.RecordBatch]:
    """One row of the view `queues`, as it was when the read was planned."""
    yield batch(request, [row])


def message_shelves(client: Client, names: Sequence[str]) -> list[Shelf]:
    """The queues that have messages."""
    return [Shelf(name, n) for name in names if (n := Queue(name, client).admin.counts().messages)]


def dead_shelves(client: Client, request: Request, names: Sequence[str]) -> list[Shelf]:
    """The queues that have dead, up to the newest there is now."""
    shelves = []
    for name in names:
        key = keys.key(keys.prefix(client.namespace, name), "dead")
        # Not beyond what a time can be: jobq never wrote that.
        newest = client.command(
            "ZRANGE", key, LATEST_MS, 0, "BYSCORE", "REV", "LIMIT", 0, 1, "WITHSCORES"
        )
        if newest:
            upto = int(float(newest[1]))
            if request.until_ms is not None:
                upto = min(upto, request.until_ms - 1)
            since = max(0, request.since_ms or 0)
            shelves.append(Shelf(name, int(client.command("ZCARD", key)), since, upto))
    return shelves


def messages(request: Request, shelf: Shelf, client: Client) -> Iterator[pa.RecordBatch]:
    """One queue's live messages, each mid once."""
    script = load("pipeline", "messages")
    names = [keys.key(keys.prefix(client.namespace, shelf.name), key) for key in script.keys]
    whole = "1" if request.wants("content", "job", "enqueued_at") else ""
    seen: set[bytes] = set()
    cursor: bytes | str = "0"
    # With contents as many as make about 256 KiB, by those that came before.
    count = FIRST_PAGE if whole else PAGE
    while True:
        cursor, *lists = client.run(script, names, [cursor, count, whole, ""])
        if whole and lists[0]:
            count = max(1, min(PAGE, PAGE_BYTES * len(lists[0]) // (1 + sum(map(len, lists[-1])))))
        rows = []
        for mid, word, attempts, crashes, delayed, locked, content in zip(*lists, strict=True):
            if mid not in seen:
                seen.add(mid)
                row = {
                    "queue": shelf.name, "mid": text(mid), "status": text(word),
                    "attempts": _number(attempts or b""), "ncrashes": _number(crashes or b""),
                    "not_before": _us(delayed), "lock_at": _us(locked),
                }  # fmt: skip
                rows.append(row | _of_content(content))
        if rows:
            yield batch(request, rows)
        if cursor == b"0":
            return


def dead(request: Request, shelf: Shelf, client: Client) -> Iterator[pa.RecordBatch]:
    """One queue's dead, oldest first."""
    script = load("pipeline", "dead")
    names = [keys.key(keys.prefix(client.namespace, shelf.name), key) for key in script.keys]
    score, last_id = shelf.since, b""
    while True:
        page = client.run(script, names, [score, last_id, shelf.upto, PAGE])
        rows = [_dead_row(shelf.name, *row) for row in zip(page[::3], page[1::3], page[2::3])]
        if rows:
            yield batch(request, rows)
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
    """0 for what jobq never wrote."""
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
    """What is shown of bytes that should be text."""
    return value.decode("utf-8", "replace")


def batch(request: Request, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Rows as the request's columns; times are epoch µs."""
    schema = request.schema()
    return pa.RecordBatch.from_arrays([_column(field, rows) for field in schema], schema=schema)


def _column(field: pa.Field[Any], rows: Sequence[dict[str, Any]]) -> pa.Array[Any]:
    values = [row.get(field.name) for row in rows]
    timed = pa.types.is_timestamp(field.type)
    found: pa.Array[Any] = pa.array(values, pa.int64() if timed else field.type)
    return found.cast(field.type) if timed else found
