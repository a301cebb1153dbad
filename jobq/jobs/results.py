"""Results: the receipt that enqueue returns, and the stored form of a message's outcome.

A stored outcome is `{"ok": value}`, `{"error": text, "type": class name}` for a dead or expired message, or `{"end":
"done" or "cancelled"}` for a message without a result. Each outcome has the number of the last `attempt`, and the time
`at` in epoch ms. An error is stored as text, because readers don't import its class.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from jobq.client.clock import wall
from jobq.client.names import base_of, partition_in
from jobq.durations import Duration
from jobq.errors import CodecError, JobFailedError, ResultNotStoredError
from jobq.habits import refuse_attribute
from jobq.jobs.argument_types import ArgumentTypes
from jobq.jobs.codec import HARD_LIMIT, MEMBER_SIGN, checked_size, decode_any, encode_plain
from jobq.jobs.options import JobSettings
from jobq.jobs.progress import Progress
from jobq.jobs.queues import ClientLike, QueueLike, queue_of
from jobq.jobs.signing import Purpose, Seal, opened, opened_text, seal_of, shown_text
from jobq.jobs.states import State
from jobq.queue.types import Action, Enqueued, Status

R = TypeVar("R")

#: The stored end of a job without a result.
DONE = b'{"end":"done"}'
#: Prefix of the stored end of a cancelled message.
CANCELLED = b'{"end":"cancelled"'

#: Maximum size of the result of a flow's member, in bytes.
MAX_MEMBER_RESULT = 65_536


class ResultRefusedError(CodecError):
    """The job ran, but its result can't be stored; running the job again wouldn't help."""


def encode_result(value: Any, job: str, mid: str = "") -> bytes:
    """Return the encoded result of a job; raise ResultRefusedError if it isn't JSON or is too long for a flow."""
    limit = MAX_MEMBER_RESULT if mid.startswith(MEMBER_SIGN) else HARD_LIMIT
    try:
        encoded = b'{"ok":%b}' % encode_plain(value, f"the result of {job}")
        checked_size(encoded, f"the result of {job}", limit)
    except CodecError as error:
        raise ResultRefusedError(str(error)) from error
    return encoded


def encode_failure(summary: str, kind: str) -> bytes:
    """Encode the error of a failed message, which is stored instead of a result."""
    return encode_plain({"error": summary, "type": kind}, "the failure")


def ended(record: bytes, attempt: int) -> bytes:
    """Add the attempt's number and the current time to the stored result of a message."""
    return b'%b,"attempt":%d,"at":%d}' % (record[:-1], attempt, wall.ms())


def opened_end(seal: Seal | None, queue: str, mid: str, content: bytes) -> bytes:
    """Decrypt or verify the stored outcome of a message; raise CodecError if the outcome isn't trusted."""
    if content.startswith(CANCELLED):
        # Scripts store this outcome, and scripts have no key.
        return content
    return opened(seal and seal.of("result"), queue, mid, content)


def decode_result(content: bytes, job: str, mid: str) -> Any:
    """Return the job's result; raise JobFailedError if it failed, ResultNotStoredError if no result was stored."""
    stored = decode_any(content)
    if isinstance(stored, dict) and "ok" in stored:
        return stored["ok"]
    if isinstance(stored, dict) and "error" in stored:
        expired = stored.get("type") == "expired"
        raise JobFailedError(f"{job} {mid} {'' if expired else 'is dead: '}{stored['error']}")
    if isinstance(stored, dict) and "end" in stored:
        raise ResultNotStoredError(f"{job} {mid} is {stored['end']}, but has no result")
    raise CodecError(f"the stored result of {job} {mid} is invalid")


class Receipt(Generic[R]):
    """The receipt of an enqueued call.

    `action` is the result of the enqueue, for example:

    - `exists`: the call was rejected as a duplicate. `existing_status` is the status of the existing message.
    - `buffered`: the message waits in this process's outage buffer.
    - `written`: the call is in the outbox of a database, and is enqueued once its transaction is committed.
    """

    __slots__ = (
        "_types", "action", "bound_queue", "existing_status", "job", "mid", "settings",
    )  # fmt: skip

    def __init__(
        self,
        mid: str,
        action: Action,
        existing_status: str,
        job: str,
        queue: QueueLike,
        settings: JobSettings,
        types: ArgumentTypes | None = None,
    ) -> None:
        self.mid = mid
        self.action = action
        self.existing_status = existing_status
        #: The job's name.
        self.job = job
        #: The queue on the client that the receipt uses.
        self.bound_queue: Any = queue
        #: The options of its job.
        self.settings = settings
        self._types = types

    @property
    def queue(self) -> str:
        """The queue's name."""
        return base_of(self.bound_queue.name)

    @property
    def partition(self) -> str:
        """The partition of the queue that has the message, such as `low/3`; '' if the queue has none."""
        return partition_in(self.bound_queue.name)

    @property
    def accepted(self) -> bool:
        """Whether the call was accepted; False if it was rejected as a duplicate."""
        return self.action != "exists"

    @property
    def client(self) -> ClientLike:
        """The client that this receipt uses."""
        client: ClientLike = self.bound_queue.client
        return client

    def status(self) -> Status:
        """Return the message's status as the server reports it, with attempts and progress."""
        known: Status = self._run(_calls().status(self))
        return known

    def state(self) -> State:
        """Return the message's state, in words that programs can show to people; see `State`."""
        known: State = self._run(_calls().state(self))
        return known

    async def astate(self) -> State:
        """Return the message's state, using the event loop's own connection; see `state`."""
        known: State = await self._arun(_calls().state(self))
        return known

    async def astatus(self) -> Status:
        """Return the message's status, using the event loop's own connection; see `status`."""
        known: Status = await self._arun(_calls().status(self))
        return known

    def cancel(self) -> bool:
        """Cancel the message; return False if it can no longer be cancelled.

        A running attempt isn't stopped immediately: its worker notices at the next renewal of the lease.
        """
        return bool(self._run(_calls().cancel(self)))

    async def acancel(self) -> bool:
        """Cancel the message, using the event loop's own connection; see `cancel`."""
        return bool(await self._arun(_calls().cancel(self)))

    def revive(self) -> bool:
        """Run a dead message again as a new message; return False if it isn't dead or a newer message has its mid."""
        return bool(self._run(_calls().revive(self)))

    async def arevive(self) -> bool:
        """Revive the message, using the event loop's own connection; see `revive`."""
        return bool(await self._arun(_calls().revive(self)))

    def result(self, timeout: Duration | None = None) -> R:
        """Return the job's result. Wait for it up to `timeout`, such as 30 or "5m"; None waits without limit.

        Raises:
            ResultNotStoredError: The job doesn't store results, or the result has expired.
            JobFailedError: The message is dead.
            ResultTimeoutError: The timeout has passed.
            CodecError: Calls are sealed, but this result isn't.
        """
        return self._decoded(self._run(_calls().result(self, timeout)))

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Return the result, using the event loop's own connections; see `result`. Cancelling ends the wait."""
        return self._decoded(await self._arun(_calls().result(self, timeout)))

    def _run(self, steps: Any) -> Any:
        return _calls().perform(self.client, steps)

    def _arun(self, steps: Any) -> Coroutine[Any, Any, Any]:
        done: Coroutine[Any, Any, Any] = _calls().aperform(self.client, steps)
        return done

    def _decoded(self, content: bytes) -> R:
        content = opened_end(seal_of(self.client), self.queue, self.mid, content)
        value = decode_result(content, self.job, self.mid)
        return cast("R", value if self._types is None else self._types.decoded_result(value))

    @property
    def progress(self) -> Progress | None:
        """The latest report of the running attempt; None if there is none.

        Each access is a round trip to the server.
        """
        return self.state().progress

    def follow(self) -> Iterator[State]:
        """Yield the state now and after each change, including changes of progress, until the message ends.

        The state is read twice a second. Raises UnavailableError if the server stays unreachable; call `follow` again
        to continue.
        """
        states: Iterator[State] = _calls().follow(self)
        return states

    def afollow(self) -> AsyncIterator[State]:
        """Yield states, using the event loop's own connection: `async for state in receipt.afollow()`; see `follow`."""
        states: AsyncIterator[State] = _calls().afollow(self)
        return states

    def opened(self, purpose: Purpose, text: str) -> str:
        """Decrypt or verify the message's stored `text`, including the data of a progress report."""
        return opened_text(seal_of(self.bound_queue.client), purpose, self.queue, self.mid, text)

    def shown(self, purpose: Purpose, text: str) -> str:
        """Decrypt or verify the message's stored `text` for display, without the data of a progress report."""
        return shown_text(seal_of(self.bound_queue.client), purpose, self.queue, self.mid, text)

    def __repr__(self) -> str:
        status = f", existing_status={self.existing_status!r}" if self.existing_status else ""
        return f"Receipt(mid={self.mid!r}, action={self.action!r}{status})"

    if not TYPE_CHECKING:  # a type checker would accept every misspelt name
        __getattr__ = refuse_attribute


class Receipts(Sequence[Receipt[R]], Generic[R]):
    """The receipts of many calls of one job, in order. To save memory, each access makes a new receipt."""

    __slots__ = ("_accepted", "_job", "_queue", "_settings", "_types")

    def __init__(
        self,
        accepted: Sequence[Enqueued],
        job: str,
        queue: QueueLike,
        settings: JobSettings,
        types: ArgumentTypes | None = None,
    ) -> None:
        self._accepted, self._job, self._types = accepted, job, types
        self._queue, self._settings = queue, settings

    def __len__(self) -> int:
        return len(self._accepted)

    def __iter__(self) -> Iterator[Receipt[R]]:
        return map(self._receipt, self._accepted)

    @overload
    def __getitem__(self, index: int) -> Receipt[R]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt[R]]: ...
    def __getitem__(self, index: int | slice) -> Receipt[R] | list[Receipt[R]]:
        if isinstance(index, slice):
            return list(map(self._receipt, self._accepted[index]))
        return self._receipt(self._accepted[index])

    def _receipt(self, done: Enqueued) -> Receipt[R]:
        queue = queue_of(done.partition, self._queue.client) if done.partition else self._queue
        return Receipt(
            done.mid,
            done.action,
            done.existing_status,
            self._job,
            queue,
            self._settings,
            self._types,
        )

    def __repr__(self) -> str:
        return f"<Receipts of {len(self):,} calls of {self._job}>"


@cache
def _calls() -> Any:
    import jobq.jobs.receipt_calls

    return jobq.jobs.receipt_calls
