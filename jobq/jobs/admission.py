"""Checks a job's limits, set with `@job(limits=[…])`, before the job starts.

If a limit rejects the job, the job is snoozed, and the attempt isn't counted. `jobq.limits` implements the limits;
this module has the interfaces for executors and workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from jobq.errors import CodecError, JobqError, UnavailableError
from jobq.events import ago_ms, attempt_record, trace_id
from jobq.jobs.context import Call, failure_log
from jobq.queue.types import Ending

#: How long a job waits if the server is unreachable, or if another error prevents the check of a limit.
UNREACHABLE_S, BROKEN_S = 1.0, 5.0
#: Maximum number of slots of limits in one process.
MAX_HOLDINGS = 512


class Admitted(Protocol):
    """The decision of one limit. Call `undo` if the job doesn't start; otherwise, call `leave` when the job ends.

    Neither method raises a JobqError.
    """

    granted: bool
    retry_after: float

    def undo(self) -> None: ...
    def leave(self) -> None: ...
    async def aundo(self) -> None: ...
    async def aleave(self) -> None: ...


class JobLimit(Protocol):
    """A limit for `@job(limits=…)`.

    Attributes:
        rank: Limits with a lower rank are acquired first.
        declaration: The limit as the program declares it.
    """

    name: str
    rank: int

    @property
    def declaration(self) -> str: ...

    def admit(self, call: Call, worker: str) -> Admitted: ...
    async def aadmit(self, call: Call, worker: str) -> Admitted: ...


class HoldingTable(Protocol):
    """Shared memory that lists the limit slots held by a child's jobs.

    The supervisor renews these slots, and releases the slots if the child dies.
    """

    lease_s: float

    def note(self, owner: str, entry: bytes) -> int | None:
        """Record a slot that the message with token `owner` is about to acquire.

        Return the slot's index in the table; None if the table is full.
        """
        ...

    def keep(self, index: int) -> None:
        """Record that the slot was acquired, so that the supervisor renews the slot."""

    def drop(self, index: int, entry: bytes) -> None:
        """Forget a returned slot."""

    def is_lost(self, index: int) -> bool:
        """Return whether the supervisor failed to renew the slot at `index`."""
        ...


class Holdings:
    """Stores this process's table of slots. The table is None outside a worker's child."""

    table: HoldingTable | None = None


holdings = Holdings()


#: Returns the call with results of steps inserted into its arguments.
FillInputs = Callable[[Call], Call]


def filled(call: Call, worker: str, fill: FillInputs | None) -> Call | Ending:
    """Put results of steps into the arguments of a call.

    If the results can't be read now, return an Ending that postpones the call.

    Raises any other error of `fill`, and CodecError if `fill` is None.
    """
    if fill is None:
        raise CodecError("the call needs results of flow steps, which this process can't read")
    try:
        return fill(call)
    except UnavailableError as error:
        failure_log.warning(
            "%s %s was postponed: can't read results of its flow: %s", call.job.name, call.message.mid, error
        )  # fmt: skip
        return _snoozed(call, worker, UNREACHABLE_S, "results of its flow can't be read")


def run_admitted(call: Call | Ending, worker: str, run: Callable[[Call], Ending]) -> Ending:
    """Run a call if all its limits admit it; otherwise, return an `Ending` that postpones the call.

    If `call` is already an `Ending`, return it.
    """
    if isinstance(call, Ending):
        return call
    held: list[Admitted] = []
    try:
        waits = admit(call, worker, held)
        return run(call) if waits is None else waits
    finally:
        for admitted in held:
            admitted.leave()


def admit(call: Call, worker: str, held: list[Admitted]) -> Ending | None:
    """Acquire a permit from each limit of a call, and add the permits to `held`.

    If a limit has no permit, return an `Ending` that postpones the call.
    """
    before = len(held)
    for limit in call.job.settings.limits:
        try:
            waits = _answered(call, worker, limit, limit.admit(call, worker), held)
        except JobqError as error:
            waits = _unasked(call, worker, limit, error)
        if waits is not None:
            while len(held) > before:
                held.pop().undo()
            return waits
    return None


async def arun_admitted(
    call: Call | Ending, worker: str, run: Callable[[Call], Coroutine[Any, Any, Ending]]
) -> Ending:
    """Run an async job if all its limits admit it; see run_admitted."""
    if isinstance(call, Ending):
        return call
    held: list[Admitted] = []
    try:
        waits = await aadmit(call, worker, held)
        return await run(call) if waits is None else waits
    finally:
        for admitted in held:
            await admitted.aleave()


async def aadmit(call: Call, worker: str, held: list[Admitted]) -> Ending | None:
    """Acquire all limits of a call without blocking the event loop; see `admit`."""
    before = len(held)
    for limit in call.job.settings.limits:
        try:
            waits = _answered(call, worker, limit, await limit.aadmit(call, worker), held)
        except JobqError as error:
            waits = _unasked(call, worker, limit, error)
        if waits is not None:
            while len(held) > before:
                await held.pop().aundo()
            return waits
    return None


def _answered(
    call: Call, worker: str, limit: JobLimit, answer: Admitted, held: list[Admitted]
) -> Ending | None:
    if answer.granted:
        held.append(answer)
        return None
    failure_log.debug(
        "%s %s was postponed by %.1f s by limit %s",
        call.job.name,
        call.message.mid,
        answer.retry_after,
        limit.name,
    )
    return _snoozed(call, worker, answer.retry_after, f"limit {limit.name}")


def _unasked(call: Call, worker: str, limit: JobLimit, error: JobqError) -> Ending:
    away = isinstance(error, UnavailableError)
    failure_log.log(
        logging.WARNING if away else logging.ERROR,
        "%s %s was postponed: can't check limit %s: %s", call.job.name, call.message.mid, limit.name, error,
    )  # fmt: skip
    wait_s = UNREACHABLE_S if away else BROKEN_S
    return _snoozed(call, worker, wait_s, f"limit {limit.name} can't be checked")


def _snoozed(call: Call, worker: str, wait_s: float, why: str) -> Ending:
    message = call.message
    record = attempt_record(
        call.job.name, message.attempt, ago_ms(call.enqueued_at), 0, 0, 0, worker, why,
        nbytes=len(message.content), trace_id=trace_id(call.headers),
    )  # fmt: skip
    return Ending(
        mid=message.mid, token=message.token, outcome="snooze", backoff=wait_s, record=record
    )
