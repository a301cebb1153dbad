"""Commit files and offsets together, so that a table has a batch completely or not at all.

The offsets are in the commit's own metadata. No checkpoint beside the table can disagree with it. Delta keeps the
number of each app's last transaction for ever; the offsets that count are those of the commit with that number.

A table of few queues or topics has all offsets in every commit. With more of them, a commit has those that its batch
changed, and now and then a commit has all.

`losses` lists the events that were trimmed before the ingest read them. `adopt` computes the offsets from the rows,
for a table whose log was rewritten, or whose every commit is older than the log's retention.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jobq.client.connection import Client
from jobq.durations import DAY_MS
from jobq.errors import LakeError
from jobq.pipeline import offsets
from jobq.pipeline.lake.files import DataFile
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.reading import stored_rows
from jobq.pipeline.lake.store import LakeStore, lake_errors, remove_files
from jobq.pipeline.lake.tables import EVENTS, TABLES, TOPICS, LakeTable, from_lake, parted
from jobq.pipeline.offsets import (
    LogOffset,
    LogTail,
    from_plain,
    packed,
    parsed_id,
    to_plain,
    unpacked,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable, Transaction
    from deltalake.transaction import AddAction, RemoveAction


KEY = "jobq"
#: A table with more queues or topics has commits with changed offsets only.
FEW_PLACES = 100
#: After so many commits, or such a time, a commit has all offsets again. The log is kept longer.
COPY_EVERY, COPY_MS = 20, DAY_MS
#: How many of the newest commits to search for the offsets, step by step; None: all.
_LOOKS = (1, COPY_EVERY + 5, 500, None)
#: Offsets and losses after the newest batches, by the batches' uids.
_KNOWN: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
_NKNOWN = 16
#: How many conflicts in a row are retried before the error is raised.
OVERTAKEN = 20


class OffsetsUntoldError(LakeError):
    """The log of a table no longer has the offsets of its newest batch. The table itself can be read."""


class CommitConflictError(LakeError):
    """Another ingest or upkeep committed first. Nothing of this commit is in the table."""


@contextmanager
def taken_back(store: LakeStore, files: Iterable[DataFile]) -> Iterator[None]:
    """Delete the new files if their commit conflicts with another: nothing refers to them."""
    try:
        yield
    except CommitConflictError:
        remove_files(store, [file.path for file in files])
        raise


class FullCopy(NamedTuple):
    """The newest commit with all offsets: about its version, and when, epoch ms. The default: every commit has all."""

    version: int = 0
    at_ms: int = 0

    def is_due(self, version: int) -> bool:
        """Return whether the commit of that version should have all offsets again."""
        age = time.time_ns() // 1_000_000 - self.at_ms
        return version - self.version >= COPY_EVERY or not 0 <= age < COPY_MS


@dataclass(frozen=True, kw_only=True)
class IngestState:
    """How far the ingest of one table is.

    rows, lost: totals of all batches; facts: figures of the last batch alone. expired: rows that were dropped for their
    age; before: the day, YYYY-MM-DD, before which they were dropped. erased: rows that `jobq lake erase` dropped. uid:
    names the batch; empty if all commits have all offsets. copied: where the newest full copy is. previous: the state
    one batch before, of a batch to commit.
    """

    batch: int = 0
    places: Mapping[str, LogOffset] = field(default_factory=dict)
    rows: int = 0
    expired: int = 0
    before: str = ""
    erased: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    uid: str = ""
    copied: FullCopy = field(default_factory=FullCopy)
    previous: IngestState | None = field(default=None, compare=False, repr=False)

    def plain(self) -> dict[str, Any]:
        """Return the state as a commit's metadata, with all offsets."""
        return {**self._figures(), "places": to_plain(self.places), "lost": dict(self.lost)}

    def changes(self, version: int) -> dict[str, Any]:
        """Return the state as the metadata of the commit `version`, with the changed offsets where that is enough."""
        whole = self.copied.is_due(version)
        copied = FullCopy(version, time.time_ns() // 1_000_000) if whole else self.copied
        found: dict[str, Any] = {
            **self._figures(),
            "uid": self.uid,
            "copied": list(copied),
            "whole": whole,
        }
        if whole:
            return {**found, "places": packed({}, self.places), "lost": dict(self.lost)}
        # Without a previous state it is a batch that is committed already: its own commit has the offsets.
        if self.previous is None:
            return {**found, "places": None}
        return {**found, "places": packed(self.previous.places, self.places)}

    def _figures(self) -> dict[str, Any]:
        return {
            "batch": self.batch, "rows": self.rows, "expired": self.expired, "before": self.before,
            "facts": dict(self.facts),
            **({"erased": self.erased} if self.erased else {}),
        }  # fmt: skip

    def following(
        self, places: Mapping[str, LogOffset], rows: int, lost: Mapping[str, int], **facts: Any
    ) -> IngestState:
        """Return the state after one more batch."""
        everything = {**self.places, **places}
        return replace(
            self, batch=self.batch + 1, places=everything, rows=self.rows + rows,
            lost=_summed(self.lost, lost), facts={"rows": rows, "lost": dict(lost), **facts},
            uid=uuid.uuid4().hex if len(everything) > FEW_PLACES else "",
            previous=replace(self, previous=None),
        )  # fmt: skip


def _summed(lost: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    total = {name: lost.get(name, 0) + more.get(name, 0) for name in {*lost, *more}}
    return {name: number for name, number in sorted(total.items()) if number}


def state_of(table: DeltaTable | None, app: str) -> IngestState:
    """Return the state of the table's newest batch. OffsetsUntoldError if the log no longer has it."""
    batch = (table.transaction_version(app) if table is not None else None) or 0
    if table is None or not batch:
        return IngestState()
    for limit in _LOOKS:
        records = list(_records(table, limit))
        newest = next((one for one in records if one["batch"] == batch), None)
        if newest is not None:
            found = _combined(newest, records)
            if found is not None:
                return found
    raise OffsetsUntoldError(
        f"the log of {table.table_uri} doesn't tell the offsets of batch {batch} any more; "
        "`jobq lake ingest --adopt` takes them from the rows"
    )


def states(table: DeltaTable) -> Iterator[IngestState]:
    """Yield the state after each batch in the table's log, oldest first.

    States before the first full copy in the log have no offsets, and of the losses those of their batch.
    """
    # Upkeep repeats the metadata of the last batch; another batch may have been committed before it.
    own = {
        found["batch"]: found for found in _records(table, None) if found.get("places") is not None
    }
    last = IngestState()
    for batch in sorted(own):
        found, state = own[batch], _figures_of(own[batch])
        if not _is_whole(found) and (last.batch != batch - 1 or not last.places):
            last = replace(state, lost=state.facts.get("lost") or {})
        else:
            last = _after(last, state, found)
        yield last


def _records(table: DeltaTable, limit: int | None) -> Iterator[dict[str, Any]]:
    """Yield the metadata of batches, newest first."""
    for entry in table.history(limit):
        found = entry.get(KEY)
        if isinstance(found, dict) and "batch" in found:
            yield found


def _is_whole(found: Mapping[str, Any]) -> bool:
    return bool(found.get("whole", True))


def _after(before: IngestState, state: IngestState, found: Mapping[str, Any]) -> IngestState:
    """Return the state with offsets and losses: those of its record, or those before with what it changed."""
    places, lost = found.get("places"), found.get("lost") or {}
    if isinstance(places, str) and not _is_whole(found):
        lost = _summed(before.lost, state.facts.get("lost") or {})
        return replace(state, places=unpacked(before.places, places), lost=lost)
    found_places = unpacked({}, places) if isinstance(places, str) else from_plain(places)
    return replace(state, places=found_places, lost=lost)


def _combined(
    newest: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
) -> IngestState | None:
    """Return the state of a batch from its record and earlier ones; None if they don't reach back to a full copy."""
    state = _figures_of(newest)
    if state.uid in _KNOWN:
        return replace(state, **_KNOWN[state.uid])
    own: dict[int, Mapping[str, Any]] = {}
    for record in records:
        batch = record["batch"]
        if record.get("places") is not None and (batch not in own or _is_whole(record)):
            own[batch] = record
    first = state.batch
    while first in own and not _is_whole(own[first]):
        first -= 1
    if first not in own:
        return None
    reached = IngestState()
    for batch in range(first, state.batch + 1):
        reached = _after(reached, _figures_of(own[batch]), own[batch])
    state = replace(state, places=reached.places, lost=reached.lost)
    _remember(state)
    return state


def _remember(state: IngestState) -> None:
    if state.uid:
        _KNOWN[state.uid] = {"places": state.places, "lost": state.lost}
        if len(_KNOWN) > _NKNOWN:
            _KNOWN.popitem(last=False)


def _figures_of(found: Mapping[str, Any]) -> IngestState:
    return IngestState(
        batch=int(found["batch"]), rows=int(found["rows"]), expired=int(found.get("expired") or 0),
        before=found.get("before") or "", facts=found.get("facts") or {}, uid=found.get("uid") or "",
        copied=FullCopy(*found.get("copied", ())),
        erased=int(found.get("erased") or 0),
    )  # fmt: skip


class Drop(NamedTuple):
    """What a commit drops for ever: rows for their age, all of days before `before`; rows that were erased.

    log: the log before the commit is dropped, so that the commit has all offsets.
    """

    expired: int = 0
    before: str = ""
    erased: int = 0
    log: bool = False

    def from_(self, state: IngestState) -> IngestState:
        """Return the state without these rows."""
        return replace(
            state, expired=state.expired + self.expired, before=max(state.before, self.before),
            erased=state.erased + self.erased, copied=FullCopy() if self.log else state.copied,
        )  # fmt: skip


def commit_batch(
    lake: Lake, table: LakeTable, files: Iterable[DataFile], after: IngestState
) -> None:
    """Commit files as the batch `after`. On a conflict, delete them and raise CommitConflictError."""
    files = list(files)
    with taken_back(lake.below(table.name), files):
        delta = lake.made(table.name)
        before = state_of(delta, table.app)
        if before.batch != after.batch - 1 or (after.previous and after.previous.uid != before.uid):
            raise CommitConflictError(
                f"another ingest committed batch {after.batch} of {table.name} first"
            )
        # Rows may have gone while this batch was read, and all offsets been copied.
        after = replace(
            after, expired=before.expired, before=before.before, erased=before.erased, copied=before.copied
        )  # fmt: skip
        commit_files(lake, table.name, delta, [file.action() for file in files], after)


def commit_files(
    lake: Lake, name: str, delta: DeltaTable, actions: Iterable[AddAction | RemoveAction],
    state: IngestState | None = None, *, drop: Drop | None = None,
) -> None:  # fmt: skip
    """Commit actions to the table as `delta` has it. With a state, the commit is a batch of the ingest.

    Raises CommitConflictError if another commit of the same app came first, or if both remove files. List the files to
    remove from this same `delta`. Without a state the commit repeats the last batch's metadata, so that it is found
    quickly. drop: rows that this commit drops for ever; a batch that was committed in between is a conflict, too.
    """
    from deltalake import CommitProperties
    from deltalake.exceptions import CommitFailedError

    table, store, actions = TABLES[name], lake.below(name), list(actions)
    # Read again: batches may have come since `delta`, and the newest is the one to repeat.
    known = state or state_of(delta if drop else lake.table(name), table.app)
    numbered = known if state or drop else None
    transactions = _transactions(delta, table, numbered, actions) or None
    known = drop.from_(known) if drop else known
    properties = CommitProperties(
        custom_metadata=_metadata(known, delta), app_transactions=transactions
    )
    with lake_errors(store):
        try:
            _write_transaction(delta, actions, table, properties)
        except CommitFailedError as error:
            raise CommitConflictError(
                f"another ingest or an expiry writes to {store.uri}; batch {known.batch} was not committed"
                if state
                else f"another process works on {store.uri}; nothing was changed, run this again"
            ) from error
    _remember(known)
    with lake_errors(store, "it is committed, but a power cut may lose it"):
        delta.update_incremental()
        _settle(store, delta)


def _transactions(
    delta: DeltaTable,
    table: LakeTable,
    state: IngestState | None,
    actions: list[AddAction | RemoveAction],
) -> list[Transaction]:
    from deltalake import Transaction
    from deltalake.transaction import RemoveAction

    found = [Transaction(table.app, state.batch)] if state else []
    if any(isinstance(one, RemoveAction) for one in actions):
        # deltalake lets two commits remove the same file; then the table has the rows of both.
        app = f"{table.app}-upkeep"
        found.append(Transaction(app, (delta.transaction_version(app) or 0) + 1))
    return found


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
    """Return properties for deltalake's own operations: they repeat the last batch's metadata."""
    from deltalake import CommitProperties

    return CommitProperties(custom_metadata=_metadata(state_of(delta, app), delta))


def _metadata(known: IngestState, delta: DeltaTable) -> dict[str, Any] | None:
    if not known.batch:
        return None
    return {KEY: known.changes(delta.version() + 1) if known.uid else known.plain()}


class Loss(NamedTuple):
    """Events that were trimmed before a batch read them: written after `after_ms` and before `upto_ms`."""

    queue: str
    nevents: int
    after_ms: int
    upto_ms: int


def losses(table: DeltaTable | None) -> list[Loss]:
    """Return the losses in the table's log, oldest first. after_ms is 0 where only the total is known."""
    if table is None:
        return []
    return list(_losses(states(table)))


def _losses(batches: Iterable[IngestState]) -> Iterator[Loss]:
    last, known = IngestState(), Counter[str]()
    for batch in batches:
        for queue, count in batch.facts.get("lost", {}).items():
            if count:
                known[queue] += count
                yield Loss(queue, count, _ms_of(last, queue), _ms_of(batch, queue))
        last = batch
    for queue, total in last.lost.items():
        if total > known[queue]:
            yield Loss(queue, total - known[queue], 0, _ms_of(last, queue))


def _ms_of(state: IngestState, queue: str) -> int:
    return parsed_id(state.places[queue].id)[0] if queue in state.places else 0


#: The number of an offset that only the server of another source can count.
UNCOUNTED = -1


def adopt(lake: Lake, client: Client, source: str = "") -> None:
    """Compute and commit the offsets of events and topics, for the tables whose log has none.

    The offsets of other sources get the number UNCOUNTED; their next ingest counts.
    """
    for table in (EVENTS, TOPICS):
        delta = lake.table(table.name)
        if delta is None or _is_told(delta, table.app):
            continue
        ids, rows = _event_ids(lake) if table is EVENTS else _topic_ids(lake)
        places = {
            name: _offset_of(client, table.name, name, last, source) for name, last in ids.items()
        }
        batch = (delta.transaction_version(table.app) or 0) + 1
        commit_files(
            lake, table.name, delta, [], IngestState(batch=batch, places=places, rows=rows)
        )


def _is_told(delta: DeltaTable, app: str) -> bool:
    try:
        state_of(delta, app)
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
    """Return the offset of the entry with the id `last` in a stream of events."""
    if parsed_id(now.oldest.id) >= last:
        # The stream has none of it any more. What else was trimmed can't be determined.
        return now.oldest
    return offsets.counted_offset(client, now.key, now.oldest, f"{last[0]}-{last[1]}")


def _event_ids(lake: Lake) -> tuple[dict[str, tuple[int, int]], int]:
    newest: dict[str, tuple[int, int]] = {}
    rows = 0
    for stored in stored_rows(lake, EVENTS):
        found = from_lake(stored)
        rows += found.num_rows
        ms = pc.divide(found["entry_at"].cast(pa.int64()), 1000)
        ids = pa.Table.from_arrays([found["queue"], ms, found["entry_seq"]], ["queue", "ms", "seq"])
        for row in ids.group_by(["queue", "ms"]).aggregate([("seq", "max")]).to_pylist():
            last = (row["ms"], row["seq_max"])
            newest[row["queue"]] = max(last, newest.get(row["queue"], last))
    return newest, rows


def _topic_ids(lake: Lake) -> tuple[dict[str, tuple[int, int]], int]:
    newest: dict[str, tuple[int, int]] = {}
    rows = 0
    for found in stored_rows(lake, TOPICS, ["topic", "index"]):
        rows += found.num_rows
        for row in found.group_by("topic").aggregate([("index", "max")]).to_pylist():
            last = (row["index_max"], 0)
            newest[row["topic"]] = max(last, newest.get(row["topic"], last))
    return newest, rows
