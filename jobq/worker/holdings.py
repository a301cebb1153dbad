"""Shared records of resources that jobs acquire elsewhere, such as slots of limits.

The child records a resource before acquiring it, so no acquired resource is missing from the records. The supervisor
renews the resources together with the leases. It also releases resources of messages that the child no longer holds,
and all resources of a dead child.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from enum import IntEnum
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import NamedTuple, Protocol

from jobq.client.connection import Client
from jobq.durations import counted
from jobq.errors import JobqError
from jobq.jobs.admission import MAX_HOLDINGS
from jobq.worker import logger
from jobq.worker.shared_lock import new_lock
from jobq.worker.shared_state import LOCK_WAIT_S, SharedSlots

#: Number of entries of one child, and the size of each entry in bytes.
COUNT, SIZE = MAX_HOLDINGS, 1024
_HEAD = Struct(">HH")  # lengths of the owner and of the entry
ROOM = SIZE - _HEAD.size


class HoldingState(IntEnum):
    """The state of a resource. NOTED: the job may have acquired it. LOST: it could not be renewed."""

    FREE = 0
    NOTED = 1
    HELD = 2
    LOST = 3


class Holding(NamedTuple):
    """A resource that a job holds, such as a slot of a limit. `owner` is the token of the job's message."""

    place: int
    state: int
    owner: str
    entry: bytes


class Keeper(Protocol):
    """Renews and releases resources, such as slots of limits. Each entry describes a resource."""

    def renew(self, client: Client, entries: list[bytes], lease_s: float) -> list[bool | None]:
        """Renew entries for `lease_s`. Return whether each entry is still held; None if the server is unreachable."""
        ...

    def leave(self, client: Client, entries: list[bytes]) -> None:
        """Release resources, and ignore resources that aren't held. Raises JobqError."""


class SharedHoldings:
    """Records of resources, in memory that a child and the supervisor share. Unused pages don't take memory."""

    def __init__(self) -> None:
        self._memory = memoryview(mmap.mmap(-1, COUNT + COUNT * SIZE))
        self._states = self._memory[:COUNT]
        self.lease_s = 0.0
        self._lock = new_lock()

    def reset(self) -> None:
        """After a child's exit, empty the memory for the next child."""
        if any(self._states):
            self._states[:] = bytes(COUNT)
        self._lock = new_lock()

    # The child's.

    def note(self, owner: str, entry: bytes) -> int | None:
        """Record a resource before the job of `owner` acquires it.

        Return the record's index, or None if the memory is full.
        """
        name = owner.encode()
        if len(name) + len(entry) > ROOM:
            return None
        with self._lock:
            index = bytes(self._states).find(HoldingState.FREE)
            if index < 0:
                return None
            start = COUNT + index * SIZE
            text = _HEAD.pack(len(name), len(entry)) + name + entry
            self._memory[start : start + len(text)] = text
            self._states[index] = HoldingState.NOTED
        return index

    def keep(self, index: int) -> None:
        """Record that the job has acquired a resource, so that the supervisor renews it."""
        self._states[index] = HoldingState.HELD

    def drop(self, index: int, entry: bytes) -> None:
        """Delete the record of a resource that was released."""
        with self._lock:
            if self._read(index).entry == entry:
                self._states[index] = HoldingState.FREE

    def is_lost(self, index: int) -> bool:
        """Return whether the resource could not be renewed."""
        return self._states[index] == HoldingState.LOST

    # The supervisor's.

    @property
    def is_empty(self) -> bool:
        return not any(self._states)

    def snapshot(self) -> list[Holding] | None:
        """Return all resources, or None if the child is changing its records right now."""
        if not self._lock.acquire(timeout=LOCK_WAIT_S):
            return None
        try:
            return self.left()
        finally:
            self._lock.release()

    def left(self) -> list[Holding]:
        """Return all recorded resources. Call this only after the child's exit."""
        return [self._read(index) for index, state in enumerate(self._states) if state]

    def confirm(self, renewed: Iterable[Holding], state: HoldingState) -> None:
        """Set the state of these resources, except resources that their jobs have just released."""
        if not self._lock.acquire(timeout=LOCK_WAIT_S):
            return
        try:
            for holding in renewed:
                now = self._read(holding.place)
                if now.state and now.entry == holding.entry:
                    self._states[holding.place] = state
        finally:
            self._lock.release()

    def _read(self, index: int) -> Holding:
        start = COUNT + index * SIZE
        nowner, nentry = _HEAD.unpack_from(self._memory, start)
        middle = start + _HEAD.size + nowner
        owner = bytes(self._memory[start + _HEAD.size : middle]).decode()
        return Holding(
            index, self._states[index], owner, bytes(self._memory[middle : middle + nentry])
        )


#: A child's messages and its jobs' resources.
Memory = tuple[SharedSlots, SharedHoldings]


class Keeping:
    """Renews and releases resources, such as slots of limits, in the supervisor for all children."""

    def __init__(self, keeper: Keeper, client: Client, lease_s: float) -> None:
        self._keeper, self._client, self._lease_s = keeper, client, lease_s
        # Resources that must still be given back.
        self._gone: list[bytes] = []

    def child_gone(self, holdings: SharedHoldings) -> None:
        """Release the resources that an exited child held."""
        self._gone += [holding.entry for holding in holdings.left()]
        self.leave()

    def leave(self) -> None:
        """Release resources that finished jobs didn't release. After an error, the next renewal tries again."""
        gone = self._gone
        try:
            if gone:
                self._keeper.leave(self._client, gone)
                self._gone = []
        except JobqError as error:
            logger.warning("can't return %s of limits yet: %s", counted(len(gone), "slot"), error)

    def renew(self, children: Iterable[Memory]) -> None:
        """Renew the leases of resources that running jobs hold. Release resources that finished jobs didn't release."""
        held = [
            (holdings, holding)
            for slots, holdings in children
            if not holdings.is_empty
            for holding in self._held(slots, holdings)
        ]
        if held:
            entries = [holding.entry for _, holding in held]
            kept = self._keeper.renew(self._client, entries, self._lease_s)
            for (holdings, holding), ok in zip(held, kept, strict=True):
                if ok is not None:
                    holdings.confirm([holding], HoldingState.HELD if ok else HoldingState.LOST)
            self._gone += _given_back_since(held)
        self.leave()

    def _held(self, slots: SharedSlots, holdings: SharedHoldings) -> list[Holding]:
        """Return resources that a child's running jobs hold. Schedule the release of its other resources."""
        # In this order: a message is held before its job holds any resource, and until the job has given it back.
        noted, messages = holdings.snapshot(), slots.snapshot()
        if noted is None or messages is None:
            return []
        owners = {held.token for held in messages}
        over = [note for note in noted if note.owner not in owners]
        holdings.confirm(over, HoldingState.FREE)
        self._gone += [note.entry for note in over]
        return [note for note in noted if note.owner in owners and note.state != HoldingState.NOTED]


def _given_back_since(held: Iterable[tuple[SharedHoldings, Holding]]) -> list[bytes]:
    """Return resources that jobs released while the supervisor renewed them. The renewal may have acquired them again.

    If a child's memory can't be read now, return none of its resources, because the child may still hold them.
    Resources that it no longer holds will expire.
    """
    gone: list[bytes] = []
    for holdings, some in groupby(held, key=itemgetter(0)):
        noted = holdings.snapshot()
        if noted is not None:
            now = {holding.entry for holding in noted}
            gone += [holding.entry for _, holding in some if holding.entry not in now]
    return gone
