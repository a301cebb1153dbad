"""Results: the receipt that enqueue returns, and the stored form of what a job returned.

A stored result is `{"ok": value}`, or `{"error": text, "type": class name}` of a job that is dead. Only text comes
back of an error: no class is looked up because a result names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast, overload

from jobq.config import duration_s
from jobq.durations import Duration
from jobq.errors import CodecError, JobFailedError, ResultNotStoredError, ResultTimeoutError
from jobq.jobs.argument_types import ArgumentTypes
from jobq.jobs.codec import HARD_LIMIT, MEMBER_SIGN, checked_size, decode_any, encode_plain
from jobq.jobs.queues import QueueLike, await_item, wait_for_item
from jobq.jobs.signing import Purpose, opened, seal_of, shown_text
from jobq.queue.types import Action, Enqueued, Status

R = TypeVar("R")

#: How long one blocking wait lasts before the message's status is checked: a message that died with its
#: whole host leaves no result behind.
CHECK_EVERY_S = 10.0
#: Bytes of the result of a flow's member.
MOST_MEMBER_RESULT = 65_536
_GONE = frozenset(("nil", "done-awaiting-gc", "done-with-backoff"))


class ResultRefusedError(CodecError):
    """The job ran, but what it returned can't be stored; running it again wouldn't help."""


def encode_result(value: Any, job: str, mid: str = "") -> bytes:
    """What a job returned, or ResultRefusedError if JSON can't carry it, or if it is too long for a flow's member."""
    limit = MOST_MEMBER_RESULT if mid.startswith(MEMBER_SIGN) else HARD_LIMIT
    try:
        encoded = b'{"ok":%b}' % encode_plain(value, f"the result of {job}")
        checked_size(encoded, f"the result of {job}", limit)
    except CodecError as error:
        raise ResultRefusedError(str(error)) from error
    return encoded


def encode_failure(summary: str, kind: str) -> bytes:
    """Why there is no result."""
    return encode_plain({"error": summary, "type": kind}, "the failure")


def decode_result(content: bytes, job: str, mid: str) -> Any:
    """What the job returned; JobFailedError when it is dead, CodecError when this isn't a result."""
    stored = decode_any(content)
    if isinstance(stored, dict) and "ok" in stored:
        return stored["ok"]
    if isinstance(stored, dict) and "error" in stored:
        expired = stored.get("type") == "expired"
        raise JobFailedError(f"{job} {mid} {'' if expired else 'is dead: '}{stored['error']}")
    raise CodecError(f"what is stored as the result of {job} {mid} is not a result")


class ResultWaits:
    """What happens while a program waits for results. on_wait: called with the receipt after each blocking wait."""

    on_wait: Callable[[Receipt[Any]], object] = staticmethod(lambda receipt: None)


result_waits = ResultWaits()


class Receipt(Generic[R]):
    """One enqueued message.

    `action` says what enqueue did. 'exists': it was refused as a duplicate, and `existing_status` is the status of
    the message that exists. 'buffered': it waits in this process's outage buffer. 'written': it is in the outbox of a
    database, and is enqueued once its transaction is committed.
    """

    __slots__ = (
        "_queue", "_stores_result", "_types", "action", "existing_status", "job", "mid",
    )  # fmt: skip

    def __init__(
        self,
        mid: str,
        action: Action,
        existing_status: str,
        job: str,
        queue: QueueLike,
        stores_result: bool,
        types: ArgumentTypes | None = None,
    ) -> None:
        self.mid = mid
        self.action = action
        self.existing_status = existing_status
        #: The job's name.
        self.job = job
        self._queue = queue
        self._stores_result = stores_result
        self._types = types

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self._queue.name

    @property
    def accepted(self) -> bool:
        """Whether enqueue took the call: not so when its mid existed already."""
        return self.action != "exists"

    def status(self) -> Status:
        """Where the message is now, with attempts and progress."""
        found = self._queue.status(self.mid)
        return found._replace(progress=self._shown("progress", found.progress))

    def cancel(self) -> bool:
        """Cancel the message; False when there was nothing left to cancel.

        A running attempt isn't stopped at once: its worker learns of it at the next renewal of the lease.
        """
        return self._queue.cancel(self.mid)[0] == "cancelled"

    def result(self, timeout: Duration | None = None) -> R:
        """What the job returned, waiting up to `timeout` for it (30, "5m"); None waits without end.

        Raises ResultNotStoredError when the job stores none or it has expired, JobFailedError when the message is dead,
        ResultTimeoutError when time is up, CodecError where calls are sealed and this result isn't. It blocks on a
        separate connection and doesn't poll. If that connection dies, it opens another within CHECK_EVERY_S.
        """
        rounds = self._rounds(timeout)
        content = self._stored()
        while content is None:
            content = wait_for_item(self._queue.client, self._result_key, next(rounds))
        return self._decoded(content)

    async def aresult(self, timeout: Duration | None = None) -> R:
        """`result` without blocking the event loop. Cancelling ends the wait."""
        import asyncio

        rounds = self._rounds(timeout)
        content = await asyncio.to_thread(self._stored)
        while content is None:
            seconds = await asyncio.to_thread(next, rounds)
            content = await await_item(self._queue.client, self._result_key, seconds)
        return self._decoded(content)

    @property
    def _result_key(self) -> str:
        return self._queue.result_key(self.mid)

    def _stored(self) -> bytes | None:
        if not self._stores_result:
            raise ResultNotStoredError(
                f"{self.job} stores no results; declare it with @job(result_ttl=…)"
            )
        return cast("bytes | None", self._queue.client.command("LINDEX", self._result_key, 0))

    def _rounds(self, timeout: Duration | None) -> Iterator[float]:
        """How long to wait next, each time. Raises when no result will come, or time is up."""
        timeout_s = None if timeout is None else duration_s(timeout)
        return self._rounds_until(
            timeout_s, None if timeout_s is None else time.monotonic() + timeout_s
        )

    def _rounds_until(self, timeout_s: float | None, deadline: float | None) -> Iterator[float]:
        waited = False
        while True:
            self._check_alive(self._result_key)
            if waited:
                result_waits.on_wait(self)
            waited = True
            left = CHECK_EVERY_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise ResultTimeoutError(
                    f"no result of {self.job} {self.mid} within {timeout_s:g} s"
                )
            yield min(left, CHECK_EVERY_S)

    def _decoded(self, content: bytes) -> R:
        seal = seal_of(self._queue.client)
        content = opened(seal and seal.of("result"), self.queue, self.mid, content)
        value = decode_result(content, self.job, self.mid)
        return cast("R", value if self._types is None else self._types.decoded_result(value))

    def _check_alive(self, key: str) -> None:
        status = self.status()
        if status.word == "dead":
            died = self._queue.admin.dead(mid=self.mid)
            why = self._shown("reason", died[0].reason) if died else "its reason was purged"
            why = why.partition("\n")[0]
            raise JobFailedError(f"{self.job} {self.mid} is dead: {why}")
        if self.action == "written" and status.word == "nil":
            return  # the relay hasn't sent it yet, or the transaction was rolled back
        # The script that ends the attempt stores the result too: none will come later.
        if status.word in _GONE and self._queue.client.command("EXISTS", key) == 0:
            raise ResultNotStoredError(
                f"{self.job} {self.mid} is over, and no result is kept (cancelled, or expired)"
            )

    def _shown(self, purpose: Purpose, text: str) -> str:
        return shown_text(seal_of(self._queue.client), purpose, self.queue, self.mid, text)

    def __repr__(self) -> str:
        status = f", existing_status={self.existing_status!r}" if self.existing_status else ""
        return f"Receipt(mid={self.mid!r}, action={self.action!r}{status})"


class Receipts(Sequence[Receipt[R]], Generic[R]):
    """The receipts of many calls of one job, in their order. Each is made when it is looked at."""

    __slots__ = ("_accepted", "_job", "_queue", "_stores_result", "_types")

    def __init__(
        self,
        accepted: Sequence[Enqueued],
        job: str,
        queue: QueueLike,
        stores_result: bool,
        types: ArgumentTypes | None = None,
    ) -> None:
        self._accepted, self._job, self._types = accepted, job, types
        self._queue, self._stores_result = queue, stores_result

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
        return Receipt(
            done.mid, done.action, done.existing_status, self._job, self._queue,
            self._stores_result, self._types,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<Receipts of {len(self):,} calls of {self._job}>"
