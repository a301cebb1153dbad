"""Commits: files, batch number and offsets in one, so that a batch is in the table whole or not at all.

Offsets are in the commit's own metadata: there is no checkpoint beside the table that could disagree with
it. Delta keeps the number of each app's last transaction for ever, so the commit that belongs to that
number is the one whose offsets count.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from jobq.errors import LakeError
from jobq.pipeline.lake.files import Written
from jobq.pipeline.lake.place import Lake
from jobq.pipeline.lake.store import Store, remove, told
from jobq.pipeline.lake.tables import TABLES, Table
from jobq.pipeline.offsets import Place, from_plain, to_plain

if TYPE_CHECKING:
    from deltalake import DeltaTable, Transaction
    from deltalake.transaction import AddAction, RemoveAction

KEY = "jobq"
#: Commits to look at, one step after the other, for the one that holds the offsets.
_LOOKS = (1, 20, 500, None)
#: How often who was overtaken begins again until it gives way.
OVERTAKEN = 20


class CommitConflictError(LakeError):
    """Another ingest or upkeep has committed first what this was based on; nothing of it counts."""


@contextmanager
def taken_back(store: Store, files: Iterable[Written]) -> Iterator[None]:
    """Delete the new files when their commit is overtaken: nothing refers to them."""
    try:
        yield
    except CommitConflictError:
        remove(store, [file.path for file in files])
        raise


@dataclass(frozen=True, kw_only=True)
class State:
    """Where a table's ingest is. rows, lost: in all batches so far; `facts` are of the last one alone.

    expired: rows taken out again because of their age; before: those of earlier days, YYYY-MM-DD.
    """

    batch: int = 0
    places: Mapping[str, Place] = field(default_factory=dict)
    rows: int = 0
    expired: int = 0
    before: str = ""
    lost: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """It as a commit's metadata."""
        return {
            "batch": self.batch, "places": to_plain(self.places), "rows": self.rows,
            "expired": self.expired, "before": self.before, "lost": dict(self.lost), "facts": dict(self.facts),
        }  # fmt: skip

    def following(
        self, places: Mapping[str, Place], rows: int, lost: Mapping[str, int], **facts: Any
    ) -> State:
        """That after one more batch."""
        total = {name: self.lost.get(name, 0) + lost.get(name, 0) for name in {*self.lost, *lost}}
        return replace(
            self, batch=self.batch + 1, places={**self.places, **places}, rows=self.rows + rows,
            lost={name: number for name, number in sorted(total.items()) if number},
            facts={"rows": rows, "lost": dict(lost), **facts},
        )  # fmt: skip


def state_of(table: DeltaTable | None, app: str) -> State:
    """The state that belongs to the table's newest batch. LakeError when its log no longer tells."""
    batch = (table.transaction_version(app) if table is not None else None) or 0
    if table is None or not batch:
        return State()
    for limit in _LOOKS:
        for commit in table.history(limit):
            found = commit.get(KEY)
            if isinstance(found, dict) and found.get("batch") == batch:
                return _read(found)
    raise LakeError(
        f"the log of {table.table_uri} doesn't tell the offsets of batch {batch} any more; "
        "`jobq lake ingest --adopt` takes them from the rows"
    )


def _read(found: Mapping[str, Any]) -> State:
    return State(
        batch=int(found["batch"]), places=from_plain(found["places"]), rows=int(found["rows"]),
        expired=int(found.get("expired") or 0), before=found.get("before") or "",
        lost=found.get("lost") or {}, facts=found.get("facts") or {},
    )  # fmt: skip


def commit(
    lake: Lake, name: str, delta: DeltaTable, actions: Iterable[AddAction | RemoveAction],
    state: State | None = None, *, expired: int = 0, before: str = "",
) -> None:  # fmt: skip
    """One commit on the table as `delta` saw it. With a state it is a batch of the ingest.

    CommitConflictError when another commit of the same app came first, or another that takes files out where this one
    does: what to take out must be listed from this `delta`. Without a state the last batch's metadata is
    said again, so that it is found soon; expired: rows that this commit takes out because of their age, all
    of days `before` that one. Such a commit takes turns with batches, each of which knows what expired.
    """
    from deltalake import CommitProperties
    from deltalake.exceptions import CommitFailedError

    table, store, actions = TABLES[name], lake.below(name), list(actions)
    # Asked anew: batches may have come since `delta`, and the newest is the one to say again.
    known = state or state_of(delta if before else lake.table(name), table.app)
    numbered = known if state or before else None
    transactions = _transactions(delta, table, numbered, actions) or None
    known = replace(known, expired=known.expired + expired, before=max(known.before, before))
    properties = CommitProperties(
        custom_metadata={KEY: known.plain()} if known.batch else None, app_transactions=transactions
    )
    with told(store):
        try:
            _write(delta, actions, table, properties)
        except CommitFailedError as error:
            raise CommitConflictError(
                f"another ingest or an expiry writes to {store.uri}; batch {known.batch} was not committed"
                if state
                else f"another process works on {store.uri}; nothing was changed, run this again"
            ) from error
    with told(store, "it is committed, but may not outlast a power cut"):
        delta.update_incremental()
        _settle(store, delta)


def _transactions(
    delta: DeltaTable, table: Table, state: State | None, actions: list[AddAction | RemoveAction]
) -> list[Transaction]:
    from deltalake import Transaction
    from deltalake.transaction import RemoveAction

    found = [Transaction(table.app, state.batch)] if state else []
    if any(isinstance(one, RemoveAction) for one in actions):
        # deltalake lets two commits take out the same file, and then the rows of both are there.
        app = f"{table.app}-upkeep"
        found.append(Transaction(app, (delta.transaction_version(app) or 0) + 1))
    return found


def _write(
    delta: DeltaTable, actions: list[AddAction | RemoveAction], table: Table, properties: Any
) -> None:
    delta.create_write_transaction(
        actions, "append", table.delta_schema(), ["dt"], commit_properties=properties
    )


def _settle(store: Store, delta: DeltaTable) -> None:
    if not store.is_local:
        return
    # Some commits bring a checkpoint, with which readers then begin.
    version = f"_delta_log/{delta.version():020d}"
    for paths in (
        (f"{version}.json",),
        (f"{version}.checkpoint.parquet", "_delta_log/_last_checkpoint"),
    ):
        if os.path.exists(os.path.join(store.uri, paths[0])):
            for path in paths:
                store.settle(path)


def properties(delta: DeltaTable, app: str) -> Any:
    """What deltalake's own operations are to write into their commits: the last batch's metadata again."""
    from deltalake import CommitProperties

    known = state_of(delta, app)
    return CommitProperties(custom_metadata={KEY: known.plain()} if known.batch else None)
