"""A queue as one child asks it. What goes wrong with this queue alone is noted, waits, and stops nothing else.

The server keeps the last number of a caller per queue, so a call whose outcome is unknown waits here while other queues
are asked, and is made again under its number; what it handed out is handed out once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from msgspec import structs

from jobq.client.clock import boot_ns
from jobq.client.numbered_calls import REPEAT_S, Caller, new_id
from jobq.config import WorkerSettings
from jobq.errors import JobqError, LeaseLostError, ScriptError, ServerFullError, UnavailableError
from jobq.queue.queue import MOST, Queue
from jobq.queue.types import DequeueAhead, Dequeued, Ending, Finished, Lease
from jobq.worker import logger
from jobq.worker.queue_health import AWAY, BROKEN, QueueHealth
from jobq.worker.shared_state import lease_and_margin

#: What concerns one queue: its keys, its settings, what stands in it, the record of a caller's last call there.
REFUSED = (ScriptError, LeaseLostError, ValueError)


class NotReportedError(JobqError):
    """The queue couldn't be told; what was to be said waits in its line."""


class ReportRefusedError(NotReportedError):
    """The server refuses what it was told."""


class QueueCaller(Caller):
    """One line's part of a child's caller: id and numbers are the child's, so that its tokens are unlike."""

    __slots__ = ("_numbers", "again")

    def __init__(self, arrived: Callable[[], None], caller_id: str, numbers: Iterator[int]) -> None:
        super().__init__(arrived, caller_id)
        self._numbers = numbers
        #: Number of a call that is to be made again next; 0: none.
        self.again = 0

    def next(self) -> int:
        self.number, self.again = self.again or next(self._numbers), 0
        return self.number

    def start_anew(self) -> None:
        """Go on under another id. Who may write to the queue can spoil the record of the one before.

        The supervisor closes the first id alone. What another one's lost call handed out comes back by its lease.
        """
        self.id, self.again = new_id(), 0


class QueueClient:
    """One of those of a child."""

    def __init__(
        self,
        index: int,
        queue: Queue,
        caller: QueueCaller,
        standing: QueueHealth,
        settings: WorkerSettings,
    ) -> None:
        self.index, self.queue, self.caller = index, queue, caller
        self._standing, self._settings = standing, settings
        self._lease_ns, self._margin_ns = lease_and_margin(settings.lease_ms)
        # Where all queues have one server there is nothing better to do than to wait for it.
        self._passing = (UnavailableError, ServerFullError) if queue.client.is_cluster else ()
        # Made, with an unknown outcome: when first, how to make it again, and what it says.
        self._unheard: tuple[int, Callable[[], Finished], Sequence[Ending]] | None = None
        self._endings: list[tuple[int, Ending]] = []
        self._when_paid: list[Callable[[], None]] = []
        #: Told what the server said of endings.
        self.heard: Callable[[Sequence[Ending], Finished], None] = tell_refused
        #: Queues on the same node, this one too: asked only where the server is away.
        self.neighbours: Callable[[], Sequence[int]] = lambda: (index,)

    @property
    def owes(self) -> bool:
        """Whether anything waits to be said."""
        return self._unheard is not None or bool(self._endings)

    @property
    def has_endings(self) -> bool:
        """Whether what waits tells how runs ended."""
        return bool(self._endings or (self._unheard and self._unheard[2]))

    def dequeue(self, limit: int) -> tuple[Dequeued, int]:
        """What the queue gave, and until when that is surely held; nothing and a wait where it is in trouble."""
        if self._standing.words[0] and not self._standing.may_ask(self.index):
            return self._nothing()
        try:
            if self._unheard or self._endings:
                finished, deadline = self.pay()
                if finished is not None and finished.messages:
                    return finished, deadline
            settings, asked_at = self._settings, boot_ns()
            try:
                dequeued = self.queue.dequeue(
                    limit, lease_ms=settings.lease_ms, crash_limit=settings.crash_limit, caller=self.caller
                )  # fmt: skip
            except self._passing as error:
                again = partial(self._dequeue_again, self.caller.number, limit, asked_at)
                self._unheard = (asked_at, again, ())
                raise self._away(error, asked_at) from error
            except REFUSED as error:
                raise self._broken(error, asked_at) from error
        except NotReportedError:
            return self._nothing()
        if self._standing.words[0]:
            self._answered()
        return dequeued, asked_at + self._lease_ns - self._margin_ns

    def finish(self, endings: Sequence[Ending], dequeue: int = 0) -> tuple[Dequeued | None, int]:
        """End attempts and, if asked, dequeue. NotReportedError: they will be ended later."""
        asked_at = boot_ns()
        if self._unheard or self._endings:
            self._endings += [(asked_at, ending) for ending in endings]
            raise NotReportedError
        try:
            finished = self._finish(endings, dequeue)
        except self._passing as error:
            number = self.caller.number
            again = partial(self._finish_again, number, endings, dequeue, asked_at)
            self._unheard = (asked_at, again, endings)
            raise self._away(error, asked_at) from error
        except REFUSED as error:
            self._endings += [(asked_at, ending) for ending in endings]
            raise self._broken(error, asked_at) from error
        self.heard(endings, finished)
        return finished.dequeued, asked_at + self._lease_ns - self._margin_ns

    def release(self, holds: Sequence[Lease]) -> bool:
        """Give back what wasn't started; False: later."""
        asked_at = boot_ns()
        try:
            if self._unheard or self._endings:
                raise NotReportedError
            try:
                self.queue.release(holds)
            except self._passing as error:
                raise self._away(error, asked_at) from error
            except REFUSED as error:
                raise self._broken(error, asked_at) from error
        except NotReportedError:
            given_back = [Ending(mid=mid, token=token, outcome="release") for mid, token in holds]
            self._endings += [(asked_at, ending) for ending in given_back]
            return False
        return True

    def answer(self, ahead: DequeueAhead, reply: Any, asked_at: int) -> Dequeued:
        """What a dequeue sent behind a wait gave; None: its reply was lost."""
        try:
            return ahead.again() if reply is None else ahead.read(reply)
        except self._passing as error:
            self._unheard = (asked_at, lambda: Finished([], ahead.again()), ())
            self._away(error, boot_ns())
        except REFUSED as error:
            self._broken(error, boot_ns())
        return self._nothing()[0]

    def when_paid(self, then: Callable[[], None]) -> None:
        """Call this once nothing waits here any more."""
        self._when_paid.append(then)

    def pay(self) -> tuple[Dequeued | None, int]:
        """Report what waits. Return what that hands out and its lease deadline; raises NotReportedError."""
        if self._unheard is not None:
            asked_at, again, endings = self._unheard
            try:
                finished = self._retry(again)
            except ReportRefusedError:
                self._endings[:0] = [(asked_at, ending) for ending in endings]
                self._unheard = None
                raise
            self._unheard = None
            if finished.dequeued is not None and finished.dequeued.messages:
                return finished.dequeued, asked_at + self._lease_ns - self._margin_ns
        while self._endings:
            part = self._endings[:MOST]
            self._say([_older(ending, boot_ns() - at) for at, ending in part])
            del self._endings[: len(part)]
        then, self._when_paid = self._when_paid, []
        for each in then:
            each()
        return None, 0

    def _say(self, endings: list[Ending]) -> None:
        try:
            self.heard(endings, self._retry(lambda: self._finish(endings, 0)))
        except ReportRefusedError as refused:
            self._retry(lambda: self._finish((), 0))
            # Not the queue is refused, but one of these: it mustn't hold up the others.
            if len(endings) > 1:
                for ending in endings:
                    self._say([ending])
                return
            logger.error(
                "%s: outcome %r is lost, the server refuses it: %s",
                endings[0].mid, endings[0].outcome, refused,
            )  # fmt: skip

    def _retry(self, call: Callable[[], Finished]) -> Finished:
        asked_at = boot_ns()
        try:
            finished = call()
        except self._passing as error:
            raise self._away(error, asked_at) from error
        except REFUSED as error:
            raise self._broken(error, asked_at) from error
        self._answered()
        return finished

    def _finish(self, endings: Sequence[Ending], dequeue: int) -> Finished:
        settings = self._settings
        return self.queue.finish(
            endings, dequeue=dequeue, lease_ms=settings.lease_ms,
            crash_limit=settings.crash_limit, caller=self.caller,
        )  # fmt: skip

    def _finish_again(
        self, number: int, endings: Sequence[Ending], dequeue: int, asked_at: int
    ) -> Finished:
        passed = boot_ns() - asked_at
        same = self._renumber(number, passed)
        finished = self._finish([_older(ending, passed) for ending in endings], dequeue)
        if same:  # else it may be the lost call that ended them
            self.heard(endings, finished)
        return finished

    def _dequeue_again(self, number: int, limit: int, asked_at: int) -> Finished:
        self._renumber(number, boot_ns() - asked_at)
        settings = self._settings
        return Finished([], self.queue.dequeue(
            limit, lease_ms=settings.lease_ms, crash_limit=settings.crash_limit, caller=self.caller
        ))  # fmt: skip

    def _renumber(self, number: int, passed_ns: int) -> bool:
        """Whether the next call has the number of the lost one: as long as the server surely has its record."""
        if passed_ns >= REPEAT_S * 1e9:
            return False
        self.caller.again = number
        return True

    def _away(self, error: Exception, asked_at: int) -> NotReportedError:
        self._standing.failed(self.neighbours(), AWAY, error, asked_at)
        return NotReportedError(str(error))

    def _broken(self, error: Exception, asked_at: int) -> ReportRefusedError:
        self._standing.failed((self.index,), BROKEN, error, asked_at)
        self.caller.start_anew()
        return ReportRefusedError(str(error))

    def _answered(self) -> None:
        if self._standing.state(self.index) == AWAY:
            self._standing.server_answered(self.neighbours())
        self._standing.answered(self.index)

    def _nothing(self) -> tuple[Dequeued, int]:
        wait_ms = self._standing.wait_ms(self.index)
        return Dequeued([], wait_ms, False, wait_ms), 0


def _older(ending: Ending, passed_ns: int) -> Ending:
    return structs.replace(ending, age_ms=ending.age_ms + passed_ns // 1_000_000)


def tell_refused(endings: Sequence[Ending], finished: Finished) -> None:
    """Log the endings that came too late, and those of which an outage hides whether they did."""
    if not {"stale", "unknown"}.intersection(finished.replies):
        return
    for ending, reply in zip(endings, finished.replies, strict=True):
        if reply == "stale":
            logger.warning(
                "%s: outcome %r refused, its lock was lost or it was cancelled",
                ending.mid, ending.outcome,
            )  # fmt: skip
        elif reply == "unknown":
            logger.warning(
                "%s: outcome %r was accepted before a long outage, or refused since its lock was lost meanwhile",
                ending.mid, ending.outcome,
            )  # fmt: skip
