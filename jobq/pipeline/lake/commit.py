"""Commit files and offsets together, so that a table has either all of a batch or none of it.

The offsets after a batch are in a file below the table. The file is written before the commit that names it. It never
changes. Delta permanently keeps the number of each app's last transaction, and the commit with that number names the
valid offsets. The files of the latest KEPT batches are kept.

`losses` lists the events trimmed before the ingest read them. `adopt` computes offsets from the rows, if the table's
log was rewritten or all its commits are older than the log's retention.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jobq.client.connection import Client
from jobq.errors import ConfigError, LakeError
from jobq.pipeline import offsets
from jobq.pipeline.lake.files import DataFile
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.reading import stored_rows
from jobq.pipeline.lake.store import LakeStore, lake_errors, remove_files, write_file
from jobq.pipeline.lake.tables import EVENTS, TABLES, TOPICS, LakeTable, from_lake, parted
from jobq.pipeline.offsets import LogOffset, LogTail, from_plain, parsed_id, to_plain

if TYPE_CHECKING:
    from deltalake import DeltaTable, Transaction
    from deltalake.transaction import AddAction, RemoveAction


KEY = "jobq"
#: Folder of a table's offset files, and number of batches whose files are kept. A reader may be that many batches
#: behind, and a log that lost its newest commits still has offsets.
FOLDER, KEPT = "_offsets", 10
#: Numbers of newest commits to search for the last batch, in this order; None searches all.
_LOOKS = (1, 25, None)
#: Number of consecutive conflicts at which the error is raised instead of retrying.
OVERTAKEN = 20


class OffsetsUntoldError(LakeError):
    """A table's log no longer has the offsets of the table's latest batch. The table can still be read."""


class CommitConflictError(LakeError):
    """Another process committed first, so this commit failed and changed nothing."""


@contextmanager
def taken_back(store: LakeStore, files: Iterable[DataFile]) -> Iterator[None]:
    """Delete the new files if their commit conflicts with another commit, because nothing refers to them."""
    try:
        yield
    except CommitConflictError:
        remove_files(store, [file.path for file in files])
        raise


@dataclass(frozen=True, kw_only=True)
class BatchRecord:
    """Record of a table's latest batch, stored in a commit.

    Attributes:
        rows: Number of rows that all batches added, or that a rollup's last refresh wrote.
        facts: Figures of this batch.
        expired: Number of rows dropped because of their age.
        before: The day, YYYY-MM-DD, before which expired rows were dropped.
        erased: Number of rows dropped by `jobq lake erase`.
        offsets: Offset files of the latest batches, latest first; if empty, the table has no offsets.
    """

    batch: int = 0
    rows: int = 0
    expired: int = 0
    before: str = ""
    erased: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    offsets: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return the record as a commit's metadata."""
        return {name: getattr(self, name) for name in _RECORDED}


_RECORDED = tuple(fact.name for fact in fields(BatchRecord))


@dataclass(frozen=True, kw_only=True)
class IngestState(BatchRecord):
    """The progress of one table's ingest: the record of its latest batch, and the offsets after it.

    Attributes:
        places: Offset in each queue or topic.
        lost: Number of entries trimmed before they were read, by queue or topic, in all batches.
    """

    places: Mapping[str, LogOffset] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)

    def following(
        self, places: Mapping[str, LogOffset], rows: int, lost: Mapping[str, int], **facts: Any
    ) -> IngestState:
        """Return the state after the next batch. `rows` and `lost` are added to the totals."""
        everything, total = {**self.places, **places}, dict(self.lost)
        for name, number in lost.items():
            total[name] = total.get(name, 0) + number
        told = {
            name: (number, _ms_of(self.places, name), _ms_of(everything, name))
            for name, number in lost.items()
            if number
        }
        return replace(
            self, batch=self.batch + 1, places=everything, rows=self.rows + rows, lost=total,
            facts={"rows": rows, "lost": told, **facts},
        )  # fmt: skip


def _ms_of(places: Mapping[str, LogOffset], name: str) -> int:
    return parsed_id(places[name].id)[0] if name in places else 0


def state_of(lake: Lake, table: LakeTable) -> IngestState:
    """Return the state after the table's latest batch. Raises OffsetsUntoldError if the state is lost."""
    record = record_of(lake.table(table.name), table.app)
    state, store = IngestState(**vars(record)), lake.below(table.name)
    if not record.offsets:
        return state
    told = offsets_after(store, record)
    if told is None:
        raise _untold(store.uri, record.batch, f"{record.offsets[0]} is missing or damaged")
    return replace(state, places=told[0], lost=told[1])


def offsets_after(
    store: LakeStore, record: BatchRecord
) -> tuple[dict[str, LogOffset], dict[str, int]] | None:
    """Return the offsets after a batch, and the number of entries lost so far, both by queue or topic.

    Returns None if the batch's offset file is missing or damaged.
    """
    if not record.offsets:
        return None
    try:
        with lake_errors(store), store.files().open_input_stream(record.offsets[0]) as stream:
            told = json.loads(stream.read())
        return from_plain(told["places"]), dict(told["lost"])
    except LakeError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    except (ConfigError, ValueError, KeyError, TypeError):
        return None


def record_of(delta: DeltaTable | None, app: str) -> BatchRecord:
    """Return the log's record of the table's latest batch, or an empty record before the first batch.

    Raises OffsetsUntoldError if the log no longer has the batch's commit.
    """
    batch = (delta.transaction_version(app) if delta is not None else None) or 0
    if delta is None or not batch:
        return BatchRecord()
    for limit in _LOOKS:
        newest = next((record for record in _records(delta, limit) if record.batch == batch), None)
        if newest is not None:
            return newest
    raise _untold(delta.table_uri, batch, "its log no longer has the commit")


def _untold(uri: str, batch: int, why: str) -> OffsetsUntoldError:
    return OffsetsUntoldError(
        f"{uri} no longer has the offsets of batch {batch}: {why}; "
        "`jobq lake ingest --adopt` rebuilds them from the rows"
    )


def batches(delta: DeltaTable) -> list[BatchRecord]:
    """Return the record of each batch in the table's log, oldest first."""
    # Upkeep's commits repeat a batch's record. The batch's own commit is the oldest of these, so its record wins.
    own = {record.batch: record for record in _records(delta, None)}
    return [own[batch] for batch in sorted(own)]


def _records(delta: DeltaTable, limit: int | None) -> Iterator[BatchRecord]:
    """Yield the batch records of a table's commits, latest first."""
    for entry in delta.history(limit):
        record = entry.get(KEY)
        if isinstance(record, dict) and "batch" in record:
            facts: dict[str, Any] = dict(record)
            facts["offsets"] = tuple(record["offsets"])
            yield BatchRecord(**facts)


def _stored(store: LakeStore, state: IngestState) -> BatchRecord:
    """Write the offsets into a file, and return the record that names the file."""
    path = f"{FOLDER}/{state.batch}-{uuid.uuid4().hex[:16]}.json"
    told = {"places": to_plain(state.places), "lost": state.lost}
    with lake_errors(store):
        write_file(store, path, json.dumps(told, separators=(",", ":")).encode())
    facts = state.plain()
    facts["offsets"] = (path, *state.offsets)[:KEPT]
    return BatchRecord(**facts)


def forget_offsets(store: LakeStore, record: BatchRecord, older_s: float) -> int:
    """Delete offset files that `record` doesn't name and that are older than `older_s`; return their number."""
    from pyarrow.fs import FileSelector

    with lake_errors(store):
        infos = store.files().get_file_info(FileSelector(FOLDER, allow_not_found=True))
    latest = time.time_ns() - older_s * 1e9
    paths = [
        path
        for info in infos
        if (path := f"{FOLDER}/{info.base_name}") not in record.offsets
        and info.mtime_ns is not None
        and info.mtime_ns <= latest
    ]
    remove_files(store, paths)
    return len(paths)


class Drop(NamedTuple):
    """Numbers of rows that a commit drops permanently: expired rows of days before `before`, and erased rows."""

    expired: int = 0
    before: str = ""
    erased: int = 0

    def from_(self, record: BatchRecord) -> BatchRecord:
        """Return `record` with these dropped rows added to its totals."""
        return replace(
            record, expired=record.expired + self.expired, before=max(record.before, self.before),
            erased=record.erased + self.erased,
        )  # fmt: skip


def commit_batch(
    lake: Lake, table: LakeTable, files: Iterable[DataFile], after: IngestState
) -> None:
    """Commit a batch's files and the state after it. On a conflict, delete the files and raise CommitConflictError."""
    files = list(files)
    with taken_back(lake.below(table.name), files):
        delta = lake.made(table.name)
        before = record_of(delta, table.app)
        if before.batch != after.batch - 1 or before.offsets != after.offsets:
            raise CommitConflictError(
                f"another ingest committed batch {after.batch} of {table.name} first"
            )
        # Rows may have expired or been erased while this batch was read.
        after = replace(after, expired=before.expired, before=before.before, erased=before.erased)
        commit_files(lake, table.name, delta, [file.action() for file in files], after)


def commit_files(
    lake: Lake, name: str, delta: DeltaTable, actions: Iterable[AddAction | RemoveAction],
    state: BatchRecord | None = None, *, drop: Drop | None = None,
) -> None:  # fmt: skip
    """Commit actions to the table. With `state`, the commit belongs to a batch.

    The offsets of an IngestState are stored with its batch. Without a state, the commit repeats the last batch's
    record, so that the record is found quickly. Files to remove must come from `delta`.

    Raises CommitConflictError if another commit came first, and both belong to batches or both remove files.

    Args:
        drop: Rows that this commit drops permanently. With `drop`, a batch committed after `delta` was read is a
            conflict.
    """
    from deltalake import CommitProperties
    from deltalake.exceptions import CommitFailedError

    table, store, actions = TABLES[name], lake.below(name), list(actions)
    # Read the table again: batches may have been added since `delta`, and the latest batch's record is repeated.
    known = state or record_of(delta if drop else lake.table(name), table.app)
    transactions = _transactions(delta, table, known if state or drop else None, actions) or None
    if isinstance(state, IngestState):
        known = _stored(store, state)
    elif drop:
        known = drop.from_(known)
    before = set(state.offsets if state else known.offsets)
    properties = CommitProperties(custom_metadata=_metadata(known), app_transactions=transactions)
    with lake_errors(store):
        try:
            _write_transaction(delta, actions, table, properties)
        except CommitFailedError as error:
            remove_files(store, {*known.offsets} - before)
            raise CommitConflictError(
                f"another ingest or an expiry is writing to {store.uri}; batch {known.batch} was not committed"
                if state
                else f"another process is working on {store.uri}; nothing was changed, try again"
            ) from error
    with lake_errors(store, "it is committed, but a power cut may lose it"):
        delta.update_incremental()
        _settle(store, delta)
    remove_files(store, before - {*known.offsets})


def _transactions(
    delta: DeltaTable,
    table: LakeTable,
    state: BatchRecord | None,
    actions: list[AddAction | RemoveAction],
) -> list[Transaction]:
    from deltalake import Transaction
    from deltalake.transaction import RemoveAction

    transactions = [Transaction(table.app, state.batch)] if state else []
    if any(isinstance(action, RemoveAction) for action in actions):
        # deltalake accepts two commits that remove the same file; then the table has the rows of both.
        app = f"{table.app}-upkeep"
        transactions.append(Transaction(app, (delta.transaction_version(app) or 0) + 1))
    return transactions


def _write_transaction(
    delta: DeltaTable,
    actions: list[AddAction | RemoveAction],
    table: LakeTable,
    properties: Any,
) -> None:
    delta.create_write_transaction(
        actions, "append", table.delta_schema(), ["dt"], commit_properties=properties
    )


def _settle(store: LakeStore, delta: DeltaTable) -> None:
    if not store.is_local:
        return
    # Some commits write a checkpoint, which readers load first.
    version = f"_delta_log/{delta.version():020d}"
    for paths in (
        (f"{version}.json",),
        (f"{version}.checkpoint.parquet", "_delta_log/_last_checkpoint"),
    ):
        if os.path.exists(os.path.join(store.uri, paths[0])):
            for path in paths:
                store.settle(path)


def last_batch_again(delta: DeltaTable, app: str) -> Any:
    """Return commit properties that copy the last batch's record into the commit of a deltalake function."""
    from deltalake import CommitProperties

    return CommitProperties(custom_metadata=_metadata(record_of(delta, app)))


def _metadata(known: BatchRecord) -> dict[str, Any] | None:
    return {KEY: known.plain()} if known.batch else None


class Loss(NamedTuple):
    """Trimmed events that no batch read. They were written between `after_ms` and `upto_ms`."""

    queue: str
    nevents: int
    after_ms: int
    upto_ms: int


def losses(lake: Lake) -> list[Loss]:
    """Return the losses of events in the order of batches. `after_ms` is 0 if only the total is known."""
    delta = lake.table(EVENTS.name)
    if delta is None:
        return []
    state, known = state_of(lake, EVENTS), Counter[str]()
    told = [
        Loss(queue, *loss)
        for batch in batches(delta)
        for queue, loss in batch.facts.get("lost", {}).items()
    ]
    for loss in told:
        known[loss.queue] += loss.nevents
    return told + [
        Loss(queue, total - known[queue], 0, _ms_of(state.places, queue))
        for queue, total in state.lost.items()
        if total > known[queue]
    ]


#: The number of an offset that the next ingest of its own source has to count.
UNCOUNTED = -1


def adopt(lake: Lake, client: Client, source: str = "") -> None:
    """For each table whose log has no offsets, compute the offsets from the rows, and commit them.

    If a queue belongs to another source, its offset's entry number is UNCOUNTED until the next ingest of that source.
    """
    for table in (EVENTS, TOPICS):
        delta = lake.table(table.name)
        if delta is None or _is_told(lake, table):
            continue
        ids, rows = _event_ids(lake) if table is EVENTS else _topic_ids(lake)
        places = {
            name: _offset_of(client, table.name, name, last, source) for name, last in ids.items()
        }
        batch = (delta.transaction_version(table.app) or 0) + 1
        commit_files(
            lake, table.name, delta, [], IngestState(batch=batch, places=places, rows=rows)
        )


def _is_told(lake: Lake, table: LakeTable) -> bool:
    try:
        state_of(lake, table)
    except OffsetsUntoldError:
        return False
    return True


def _offset_of(
    client: Client, table: str, name: str, last: tuple[int, int], source: str
) -> LogOffset:
    if table == TOPICS.name:
        return LogOffset(str(last[0]), last[0])
    owner, queue = parted(name)
    if owner != source:
        return LogOffset(f"{last[0]}-{last[1]}", UNCOUNTED)
    key = offsets.events_key(client.namespace, queue)
    return offset_in(client, offsets.events_tail(client, key), last)


def offset_in(client: Client, now: LogTail, last: tuple[int, int]) -> LogOffset:
    """Return the offset of the entry with the id `last` in an event stream."""
    if parsed_id(now.oldest.id) >= last:
        # Every entry up to `last` has been trimmed. Whether later entries were also trimmed can't be determined.
        return now.oldest
    return offsets.counted_offset(client, now.key, now.oldest, f"{last[0]}-{last[1]}")


def _event_ids(lake: Lake) -> tuple[dict[str, tuple[int, int]], int]:
    newest: dict[str, tuple[int, int]] = {}
    rows = 0
    for stored in stored_rows(lake, EVENTS):
        table = from_lake(stored)
        rows += table.num_rows
        ms = pc.divide(table["entry_at"].cast(pa.int64()), 1000)
        ids = pa.Table.from_arrays([table["queue"], ms, table["entry_seq"]], ["queue", "ms", "seq"])
        for row in ids.group_by(["queue", "ms"]).aggregate([("seq", "max")]).to_pylist():
            last = (row["ms"], row["seq_max"])
            newest[row["queue"]] = max(last, newest.get(row["queue"], last))
    return newest, rows


def _topic_ids(lake: Lake) -> tuple[dict[str, tuple[int, int]], int]:
    newest: dict[str, tuple[int, int]] = {}
    rows = 0
    for messages in stored_rows(lake, TOPICS, ["topic", "index"]):
        rows += messages.num_rows
        for row in messages.group_by("topic").aggregate([("index", "max")]).to_pylist():
            last = (row["index_max"], 0)
            newest[row["topic"]] = max(last, newest.get(row["topic"], last))
    return newest, rows
