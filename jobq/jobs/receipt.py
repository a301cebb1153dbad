"""What enqueue gives back: where the message is, its result, and a way to call it off."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from jobq.errors import JobFailedError, ResultNotStoredError, ResultTimeoutError
from jobq.jobs.results import decode_result
from jobq.jobs.signing import Purpose, opened, seal_of, shown_text
from jobq.jobs.waiting import wait_for_item

if TYPE_CHECKING:
    from jobq.jobs.job import Job
    from jobq.queue.queue import Queue
    from jobq.queue.types import Action, Status

R = TypeVar("R")

#: How long one blocking wait lasts before the message's status is looked at: one that died with its
#: whole host leaves no result behind.
LOOK_EVERY_S = 10.0
_GONE = frozenset(("nil", "done-awaiting-gc", "done-with-backoff"))


class Receipt(Generic[R]):
    """One enqueued message. `action` says what enqueue did; 'exists' means it was refused as a duplicate.

    `reason` is then the status of the message that exists. 'buffered' means that it waits in this
    process's outage buffer.
    """

    __slots__ = ("_job", "_queue", "action", "mid", "reason")

    def __init__(
        self, mid: str, action: Action, reason: str = "", *, job: Job[..., Any], queue: Queue
    ) -> None:
        self.mid = mid
        self.action = action
        self.reason = reason
        self._job = job
        self._queue = queue

    @property
    def job(self) -> str:
        """The job's name."""
        return self._job.name

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
        """Call the message off; False when there was nothing left to cancel.

        A running attempt isn't stopped at once: its child hears of it at the next renewal of its lease.
        """
        return self._queue.cancel(self.mid)[0] == "cancelled"

    def result(self, timeout: float | None = None) -> R:
        """What the job returned, waiting up to `timeout` seconds for it; None waits without end.

        Raises ResultNotStoredError when the job stores none or it has expired, JobFailedError when the message is dead,
        ResultTimeoutError when time is up, CodecError where calls are sealed and this result isn't. Blocks on a
        connection of its own, so it doesn't poll.
        """
        if not self._job.stores_result:
            raise ResultNotStoredError(
                f"{self.job} stores no results; declare it with @job(result_ttl=…)"
            )
        key = self._queue.result_key(self.mid)
        deadline = None if timeout is None else time.monotonic() + timeout
        content = self._queue.client.command("LINDEX", key, 0)
        while content is None:
            self._check_alive(key)
            left = LOOK_EVERY_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise ResultTimeoutError(f"no result of {self.job} {self.mid} within {timeout:g} s")
            content = wait_for_item(self._queue.client, key, min(left, LOOK_EVERY_S))
        seal = seal_of(self._queue.client)
        content = opened(seal and seal.of("result"), self.queue, self.mid, content)
        return cast("R", decode_result(content, self.job, self.mid))

    async def aresult(self, timeout: float | None = None) -> R:
        """`result` in a thread, so that the event loop goes on; cancelling doesn't end that thread's wait."""
        import asyncio

        return await asyncio.to_thread(self.result, timeout)

    def _check_alive(self, key: str) -> None:
        status = self.status()
        if status.word == "dead":
            died = self._queue.admin.dead(mid=self.mid)
            why = self._shown("reason", died[0].reason) if died else "its reason was purged"
            why = why.partition("\n")[0]
            raise JobFailedError(f"{self.job} {self.mid} is dead: {why}")
        # Stored by the same script that ends the attempt: once it is over, a result is there or never.
        if status.word in _GONE and self._queue.client.command("EXISTS", key) == 0:
            raise ResultNotStoredError(
                f"{self.job} {self.mid} is over, and no result is kept (cancelled, or expired)"
            )

    def _shown(self, purpose: Purpose, text: str) -> str:
        return shown_text(seal_of(self._queue.client), purpose, self.queue, self.mid, text)

    def __repr__(self) -> str:
        reason = f", reason={self.reason!r}" if self.reason else ""
        return f"Receipt(mid={self.mid!r}, action={self.action!r}{reason})"
