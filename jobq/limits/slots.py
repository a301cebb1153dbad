"""`Slots`: never more than a number of things at once, in however many processes. A lease ends with its process."""

from __future__ import annotations

import logging
import os
import random
import socket
from time import monotonic
from typing import Self

import msgspec

from jobq.client.clock import boot_ns
from jobq.client.names import checked_name
from jobq.client.numbered_calls import Values, new_id
from jobq.client.steps import Nap, Steps
from jobq.config import duration_s
from jobq.durations import Duration
from jobq.errors import ConfigError, JobqError, LimitedError
from jobq.jobs.admission import HoldingTable, holdings
from jobq.jobs.context import Call, running
from jobq.jobs.queues import ClientLike
from jobq.limits.calls import LimitCalls, OnServer
from jobq.limits.limit import checked_hold
from jobq.limits.renewal import renewals

logger = logging.getLogger("jobq.limits")
#: Waiting callers ask again after so long, twice as long each time. Refused jobs come back within these.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
LEAST_SNOOZE_S, LONGEST_SNOOZE_S = 1.0, 5.0
LEAST_LEASE_S, LONGEST_LEASE_S = 1.0, 86_400.0
#: Of a holder's name.
LONGEST_LABEL = 200


class HolderEntry(msgspec.Struct, array_like=True):
    """What a worker's supervisor needs to know of a slot."""

    name: str
    most: int
    token: str


class SlotLease:
    """A slot, held from `with` to its end, also in `async with`. Each `Slots.slot` is entered once.

    Inside a job its worker renews it, elsewhere a thread. If renewals fail until the lease ends, the slot is `lost`,
    and others may have it.
    """

    def __init__(self, slots: Slots, timeout_s: float | None, owner: str, label: str) -> None:
        """owner: the token of the message whose job asks, '' outside jobs. label: for people who ask who holds it."""
        self.slots = slots
        self.granted, self.retry_after = False, 0.0
        self.calls: LimitCalls = slots.calls
        self.token = f"{new_id()} {label[:LONGEST_LABEL]}"
        self._timeout_s = timeout_s
        self._pid = os.getpid()
        # A worker's supervisor renews what is on the worker's server.
        self._owner = owner if slots.is_on_default_server else ""
        self._table: HoldingTable | None = None
        self._index, self._entry = 0, b""
        self._until = 0
        self._lost = False

    def __repr__(self) -> str:
        return f"<SlotLease of {self.slots.name}>"

    @property
    def lost(self) -> bool:
        """Whether the lease ended while the slot was in use: others may have it."""
        if not self.granted:
            return False
        if self._table is not None:
            return self._table.is_lost(self._index)
        return self._lost or boot_ns() >= self._until

    def __enter__(self) -> Self:
        self.calls.perform(self._enter_steps())
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    async def __aenter__(self) -> Self:
        await self.calls.aio.perform(self._enter_steps())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aleave()

    # For jobs.

    def leave(self) -> None:
        """Give it back."""
        if self._ends():
            try:
                self.calls.perform(self.leave_steps())
            except JobqError as error:
                self._not_left(error)

    async def aleave(self) -> None:
        """As leave."""
        if self._ends():
            try:
                await self.calls.aio.perform(self.leave_steps())
            except JobqError as error:
                self._not_left(error)

    undo, aundo = leave, aleave

    def _ends(self) -> bool:
        # A process that was forked in between doesn't hold it.
        ends = self.granted and self._pid == os.getpid()
        self.granted = False
        if ends:
            renewals.remove(self)
        return ends

    def _not_left(self, error: JobqError) -> None:
        # A supervisor gives back what its table has; elsewhere the lease ends.
        logger.warning(
            "a slot of %s isn't given back before its lease ends: %s", self.slots.name, error
        )

    # Steps.

    def try_steps(self) -> Steps[bool]:
        """Take it if one is free."""
        self._note()
        slots, asked_at = self.slots, boot_ns()
        values: Values = {
            "now": "", "most": slots.most, "lease_ms": round(self.lease_s * 1000), "token": self.token,
        }  # fmt: skip
        reply = yield from self.calls.run_steps("enter", values)
        if reply[0] == b"ok":
            self.granted = True
            self._until = asked_at + round(self.lease_s * 1e9)
            if self._table is not None:
                self._table.keep(self._index)
            else:
                renewals.add(self)
            return True
        if self._table is not None:
            self._table.drop(self._index, self._entry)
            self._table = None
        self.retry_after, self._word = reply[1] / 1000, reply[0].decode()
        self._most = reply[2]
        return False

    def leave_steps(self) -> Steps[None]:
        """Give it back."""
        yield from self.calls.run_steps("leave", {"token": self.token})
        if self._table is not None:
            self._table.drop(self._index, self._entry)

    def renew_steps(self) -> Steps[None]:
        """Renew the lease; sets `lost` if the slot is another's by now."""
        asked_at = boot_ns()
        values: Values = {
            "now": "",
            "most": self.slots.most,
            "lease_ms": round(self.lease_s * 1000),
        }
        reply = yield from self.calls.run_steps("renew", values, [self.token])
        self._lost = not reply[1]
        if reply[1]:
            self._until = asked_at + round(self.lease_s * 1e9)

    @property
    def lease_s(self) -> float:
        """For how long it is held unless it is renewed."""
        return self.slots.lease_s if self._table is None else self._table.lease_s

    def _note(self) -> None:
        table = holdings.table if self._owner else None
        if table is None:
            return
        self._entry = msgspec.json.encode(HolderEntry(self.slots.name, self.slots.most, self.token))
        index = table.note(self._owner, self._entry)
        if index is not None:
            self._table, self._index = table, index

    def _enter_steps(self) -> Steps[None]:
        if self.granted:
            raise ConfigError(
                f"this slot of {self.slots.name} is held already; take another slot()"
            )
        yield from self.calls.list_steps()
        began, pause_s = monotonic(), FIRST_PAUSE_S
        while not (yield from self.try_steps()):
            left_s = (
                float("inf") if self._timeout_s is None else self._timeout_s - (monotonic() - began)
            )
            if left_s <= 0:
                raise self._limited()
            yield Nap(min(left_s, pause_s * random.uniform(0.5, 1.0)))
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    def _limited(self) -> LimitedError:
        wait_s, name = self.retry_after, self.slots.name
        if self._word == "held":
            return LimitedError(f"{name} is held; its next slot is free in {wait_s:.1f} s", wait_s)
        most = self._most
        return LimitedError(
            f"{name} has {most} slot{'s' * (most != 1)}, all in use; the first lease ends in {wait_s:.1f} s", wait_s
        )  # fmt: skip


class Slots(OnServer):
    """At most `most` at once, in all processes together: `with ERP.slot(timeout=5): …`. Threads may share it.

    lease: how long a slot is held after its process died; inside a job, the worker's lease. The number may be changed
    at the server: `jobq limit set erp 80`.
    """

    rank = 0

    def __init__(
        self, name: str, most: int, *, lease: Duration = 15, client: ClientLike | None = None
    ) -> None:
        super().__init__(checked_name("limit", name), client)
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= 10**9:
            raise ConfigError(
                f"most={most!r} is out of range; take a whole number of 1 to 1,000,000,000"
            )
        self.most, self.lease_s = most, duration_s(lease)
        if not LEAST_LEASE_S <= self.lease_s <= LONGEST_LEASE_S:
            raise ConfigError(f"lease={lease!r} is out of range; take 1 second to 1 day")

    def __repr__(self) -> str:
        return f"Slots({self.name!r}, {self.most})"

    @property
    def said(self) -> str:
        """The number."""
        return str(self.most)

    @property
    def is_on_default_server(self) -> bool:
        """Whether it uses the default client."""
        return self._client is None

    def slot(self, timeout: Duration | None = None) -> SlotLease:
        """A slot, to take with `with` or `async with`. LimitedError if none is free within `timeout`; None waits."""
        timeout_s = None if timeout is None else duration_s(timeout)
        context = running.get(None)
        if context is None:
            return SlotLease(self, timeout_s, "", f"{socket.gethostname()}:{os.getpid()}")
        return SlotLease(self, timeout_s, context.token, f"{context.mid} {context.worker}")

    def hold(self, seconds: Duration) -> None:
        """Give no slot for a time, given as for Retry. 0 ends a hold. Those in use stay."""
        self.calls.perform(self.hold_steps(checked_hold(seconds)))

    async def ahold(self, seconds: Duration) -> None:
        """As hold."""
        await self.calls.aio.perform(self.hold_steps(checked_hold(seconds)))

    def admit(self, call: Call, worker: str) -> SlotLease:
        """For a job that is about to start."""
        lease = self._of_call(call, worker)
        self.calls.perform(self._admit_steps(lease))
        return lease

    async def aadmit(self, call: Call, worker: str) -> SlotLease:
        """As admit."""
        lease = self._of_call(call, worker)
        await self.calls.aio.perform(self._admit_steps(lease))
        return lease

    def _of_call(self, call: Call, worker: str) -> SlotLease:
        message = call.message
        return SlotLease(self, 0.0, message.token, f"{message.mid} {worker}")

    def _admit_steps(self, lease: SlotLease) -> Steps[None]:
        yield from self.calls.list_steps()
        if not (yield from lease.try_steps()):
            wait_s = min(LONGEST_SNOOZE_S, max(LEAST_SNOOZE_S, lease.retry_after))
            # Not all at the same moment.
            lease.retry_after = wait_s * random.uniform(0.7, 1.3)
