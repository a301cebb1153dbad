"""`ConcurrencyLimit`: all processes together use at most a given number of slots. Each slot is held by a lease."""

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
from jobq.limits.calls import LimitCalls, SharedLimit
from jobq.limits.rate_limit import checked_hold
from jobq.limits.renewal import renewals

logger = logging.getLogger("jobq.limits")
#: How long a waiting caller pauses before it tries again: the first pause, and the maximum after doublings.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.02, 1.0
#: A job without a slot is tried again after a time between these, plus or minus 30%.
MIN_SNOOZE_S, MAX_SNOOZE_S = 1.0, 5.0
MIN_LEASE_S, MAX_LEASE_S = 1.0, 86_400.0
#: Maximum length of a holder's name, in characters.
MAX_LABEL = 200


class HolderEntry(msgspec.Struct, array_like=True):
    """The facts that a worker's supervisor needs to renew a slot."""

    name: str
    most: int
    token: str


class SlotLease:
    """A slot for one `with` or `async with` block. Don't enter the same object again.

    Inside a job, the worker renews the slot's lease; elsewhere, a thread does. If renewals fail until the lease ends,
    the slot is `lost`, and another caller may hold it.
    """

    def __init__(
        self, limit: ConcurrencyLimit, timeout_s: float | None, owner: str, label: str
    ) -> None:
        """Create a lease that isn't held yet.

        Args:
            limit: The limit that the slot belongs to.
            timeout_s: Maximum waiting time in seconds; None waits without a limit.
            owner: Token of the running message; empty outside jobs.
            label: Name of the holder in listings.
        """
        self.limit = limit
        self.granted, self.retry_after = False, 0.0
        self.calls: LimitCalls = limit.calls
        self.token = f"{new_id()} {label[:MAX_LABEL]}"
        self._timeout_s = timeout_s
        self._pid = os.getpid()
        # The supervisor renews only slots on the same server as the worker's queues.
        self._owner = owner if limit.is_on_default_server else ""
        self._table: HoldingTable | None = None
        self._index, self._entry = 0, b""
        self._until = 0
        self._lost = False

    def __repr__(self) -> str:
        return f"<SlotLease of {self.limit.name}>"

    @property
    def lost(self) -> bool:
        """Whether the lease ended during use, so that another caller may hold the slot."""
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

    # The methods of Admitted; see jobs/admission.py.

    def leave(self) -> None:
        """Free the slot for another holder."""
        if self._end():
            try:
                self.calls.perform(self.leave_steps())
            except JobqError as error:
                self._log_kept(error)

    async def aleave(self) -> None:
        """Free the slot without blocking the event loop."""
        if self._end():
            try:
                await self.calls.aio.perform(self.leave_steps())
            except JobqError as error:
                self._log_kept(error)

    undo, aundo = leave, aleave

    def _end(self) -> bool:
        # A forked child doesn't hold its parent's slot.
        ends = self.granted and self._pid == os.getpid()
        self.granted = False
        if ends:
            renewals.remove(self)
        return ends

    def _log_kept(self, error: JobqError) -> None:
        # The supervisor will return a slot in its table; elsewhere, the lease expires.
        logger.warning(
            "could not return a slot of %s; it stays in use until its lease ends: %s",
            self.limit.name,
            error,
        )

    # Steps.

    def try_steps(self) -> Steps[bool]:
        """Acquire a slot if one is free; return whether that succeeded."""
        self._register()
        sent_at = boot_ns()
        values: Values = {
            "now": "", "most": self.limit.max_slots, "lease_ms": round(self.lease_s * 1000), "token": self.token,
        }  # fmt: skip
        reply = yield from self.calls.run_steps("enter", values)
        if reply[0] == b"ok":
            self.granted = True
            self._until = sent_at + round(self.lease_s * 1e9)
            if self._table is not None:
                self._table.keep(self._index)
            else:
                renewals.add(self)
            return True
        if self._table is not None:
            self._table.drop(self._index, self._entry)
            self._table = None
        self.retry_after, self._reason = reply[1] / 1000, reply[0].decode()
        self._max_slots = reply[2]
        return False

    def leave_steps(self) -> Steps[None]:
        """Free the slot for another holder."""
        yield from self.calls.run_steps("leave", {"token": self.token})
        if self._table is not None:
            self._table.drop(self._index, self._entry)

    def renew_steps(self) -> Steps[None]:
        """Renew the lease. If the lease has already ended and all slots are in use, `lost` becomes True."""
        sent_at = boot_ns()
        values: Values = {
            "now": "",
            "most": self.limit.max_slots,
            "lease_ms": round(self.lease_s * 1000),
        }
        reply = yield from self.calls.run_steps("renew", values, [self.token])
        self._lost = not reply[1]
        if reply[1]:
            self._until = sent_at + round(self.lease_s * 1e9)

    @property
    def lease_s(self) -> float:
        """Duration of the lease, in seconds."""
        return self.limit.lease_s if self._table is None else self._table.lease_s

    def _register(self) -> None:
        table = holdings.table if self._owner else None
        if table is None:
            return
        self._entry = msgspec.json.encode(
            HolderEntry(self.limit.name, self.limit.max_slots, self.token)
        )
        index = table.note(self._owner, self._entry)
        if index is not None:
            self._table, self._index = table, index

    def _enter_steps(self) -> Steps[None]:
        if self.granted:
            raise ConfigError(
                f"this slot of {self.limit.name} is already in use; call slot() again for another slot"
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
            pause_s = min(MAX_PAUSE_S, pause_s * 2)

    def _limited(self) -> LimitedError:
        wait_s, name = self.retry_after, self.limit.name
        if self._reason == "held":
            return LimitedError(f"{name} is held; try again in {wait_s:.1f} s", wait_s)
        count = self._max_slots
        return LimitedError(
            f"{name} has {count} slot{'s' * (count != 1)}, all in use; the first lease ends in {wait_s:.1f} s", wait_s
        )  # fmt: skip


class ConcurrencyLimit(SharedLimit):
    """Limit how many slots all processes together use: `with ERP.slot(timeout=5): …`.

    Threads may share a limit. `jobq limit set erp 80` overrides `max_slots` without a deploy.

    Args:
        name: Programs that use the same name on the same server share the limit.
        max_slots: Maximum number of slots in use.
        lease: Time until the slot of a dead process is free again. Inside a job, the worker's lease applies instead.
        client: None means the default client.
    """

    rank = 0

    def __init__(
        self, name: str, max_slots: int, *, lease: Duration = 15, client: ClientLike | None = None
    ) -> None:
        super().__init__(checked_name("limit", name), client)
        count = max_slots
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 10**9:
            raise ConfigError(
                f"max_slots={count!r} is out of range; it must be a whole number from 1 to 1,000,000,000"
            )
        self.max_slots, self.lease_s = count, duration_s(lease)
        if not MIN_LEASE_S <= self.lease_s <= MAX_LEASE_S:
            raise ConfigError(
                f"lease={lease!r} is out of range; it must be between 1 second and 1 day"
            )

    def __repr__(self) -> str:
        return f"ConcurrencyLimit({self.name!r}, {self.max_slots})"

    @property
    def declaration(self) -> str:
        """The maximum number of slots as text, such as `50`."""
        return str(self.max_slots)

    @property
    def is_on_default_server(self) -> bool:
        """Whether the limit uses the default client."""
        return self._client is None

    def slot(self, timeout: Duration | None = None) -> SlotLease:
        """Return a slot for a `with` or `async with` block, which acquires it on entry.

        Args:
            timeout: Maximum waiting time; None waits without a limit.

        Raises:
            LimitedError: No slot was free within `timeout`. Entering the block raises it.
        """
        timeout_s = None if timeout is None else duration_s(timeout)
        context = running.get(None)
        if context is None:
            return SlotLease(self, timeout_s, "", f"{socket.gethostname()}:{os.getpid()}")
        return SlotLease(self, timeout_s, context.token, f"{context.mid} {context.worker}")

    def hold(self, seconds: Duration) -> None:
        """Reject all requests for slots for a duration, or for the time in a Retry-After header. 0 ends the hold."""
        self.calls.perform(self.hold_steps(checked_hold(seconds)))

    async def ahold(self, seconds: Duration) -> None:
        """Hold the limit without blocking the event loop; see `hold`."""
        await self.calls.aio.perform(self.hold_steps(checked_hold(seconds)))

    def admit(self, call: Call, worker: str) -> SlotLease:
        """Try to acquire a slot for a starting job."""
        lease = self._of_call(call, worker)
        self.calls.perform(self._admit_steps(lease))
        return lease

    async def aadmit(self, call: Call, worker: str) -> SlotLease:
        """Try to acquire a slot without blocking the event loop; see `admit`."""
        lease = self._of_call(call, worker)
        await self.calls.aio.perform(self._admit_steps(lease))
        return lease

    def _of_call(self, call: Call, worker: str) -> SlotLease:
        message = call.message
        return SlotLease(self, 0.0, message.token, f"{message.mid} {worker}")

    def _admit_steps(self, lease: SlotLease) -> Steps[None]:
        yield from self.calls.list_steps()
        if not (yield from lease.try_steps()):
            wait_s = min(MAX_SNOOZE_S, max(MIN_SNOOZE_S, lease.retry_after))
            # Jobs without a slot must not all try again at the same moment.
            lease.retry_after = wait_s * random.uniform(0.7, 1.3)
