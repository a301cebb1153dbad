"""Store each entry of the audit log once. The lake keeps entries longer than the server does.

An entry records who changed what. The lake doesn't store ids of erased messages, or argument values in filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from msgspec import structs

from jobq.client.connection import Client
from jobq.pipeline import offsets
from jobq.pipeline.lake.commit import commit_batch, state_of
from jobq.pipeline.lake.files import DataFileWriter
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.reading import stored_rows
from jobq.pipeline.lake.tables import AUDIT, sourced
from jobq.pipeline.lake.tombstones import tombstone_files
from jobq.pipeline.offsets import LogRange
from jobq.queue import keys
from jobq.queue.audit_log import AuditEntry, entry_of, without_values

#: The log's name in the lake; a source's name comes before it, as in `{eu}audit`.
LOG = "audit"
#: Number of entries per call.
PAGE = 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def keep_audit(
    lake: Lake,
    client: Client,
    tolerating: Callable[[str], AbstractContextManager[object]] = nullcontext,
    source: str = "",
) -> int:
    """Store the audit log's entries that the lake doesn't have, and return their number.

    Raises CommitConflictError if another ingest stored entries at the same time.

    Args:
        tolerating: Returns a context manager for reading the log. If it suppresses an error, nothing is stored.
        source: Name of the server in the lake.
    """
    with tolerating("the audit log"):
        return _kept(lake, client, sourced(source, LOG))
    return 0


def _kept(lake: Lake, client: Client, log: str) -> int:
    state = state_of(lake, AUDIT)
    tail = offsets.events_tail(client, keys.audit_log(client.namespace))
    known = {log: state.places[log]} if log in state.places else {}
    plan = offsets.plan(known, {log: tail})
    if not plan.ranges:
        return 0
    [asked] = plan.ranges
    # A recreated log, such as one restored from a backup, may have entries that the lake already has.
    there = _known_ids(lake, log) if plan.remade else frozenset[str]()
    latest, read, erased = offsets.latest_time(client), 0, tombstone_files(lake)
    with DataFileWriter(lake.below(AUDIT.name), AUDIT) as writer:
        for page in _pages(client, asked):
            read += len(page)
            rows = [_row(entry, latest, log) for entry in page if entry.entry_id not in there]
            if rows:
                table = pa.Table.from_pylist(rows, AUDIT.schema())
                writer.add(erased.load().kept(AUDIT.name, table) if erased else table)
        files = writer.finish()
    missing = offsets.lost(asked, read)
    lost = {log: missing} if missing else {}
    stored = sum(file.rows for file in files)
    after = state.following({log: asked.end}, stored, lost, remade=plan.remade)
    commit_batch(lake, AUDIT, files, after)
    return stored


def _pages(client: Client, asked: LogRange) -> Iterator[list[AuditEntry]]:
    after = asked.after
    while reply := client.command("XRANGE", asked.key, f"({after}", asked.upto, "COUNT", PAGE):
        yield [entry_of(entry_id, fields) for entry_id, fields in reply]
        after = reply[-1][0].decode()


def _row(entry: AuditEntry, latest: int, log: str) -> dict[str, Any]:
    """Return the row of an entry. Ids can contain wrong times, so times after `latest` become `latest`."""
    impossible = entry.at_ms > latest
    return {
        **structs.asdict(entry), "log": log, "at": _EPOCH + timedelta(milliseconds=min(entry.at_ms, latest)),
        "filter": without_values(entry.filter), "damaged": entry.damaged or impossible,
    }  # fmt: skip


def _known_ids(lake: Lake, log: str) -> frozenset[str]:
    tables = stored_rows(lake, AUDIT, ["log", "entry_id"])
    rows = (row for table in tables for row in table.to_pylist())
    return frozenset(row["entry_id"] for row in rows if row["log"] == log)
