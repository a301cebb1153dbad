"""Makes one child's calls to one queue, and keeps the outcomes of jobs until they are reported.

If the reply to a call is lost, the child repeats the call with the same number. The server recognizes the number of the
last call, and returns the same messages again. An error in one queue doesn't affect other queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from msgspec import structs

from jobq.client.clock import boot_ns
from jobq.client.connection import Client, connect
from jobq.client.numbered_calls import Caller, NumberedCall, new_id
from jobq.config import WorkerSettings
from jobq.errors import JobqError, LeaseLostError, ScriptError, ServerFullError, UnavailableError
from jobq.queue.queue import MAX_COUNT, Queue
from jobq.queue.types import Dequeued, Ending, Finished, Lease
from jobq.worker import logger
from jobq.worker.cautions import OnceAMinute
from jobq.worker.queue_health import AWAY, BROKEN, QueueHealth
from jobq.worker.shared_state import lease_and_margin

#: The end of an attempt: the message's slot, or None if the slot is free already; the ending; the time (boot_ns).
Ended = tuple[int | None, Ending, int]
#: Errors that concern one queue: its keys, its settings, its messages, or the record of a caller's last call there.
REFUSED: tuple[type[Exception], ...] = (ScriptError, LeaseLostError, ValueError)
#: Errors of a server that is unreachable, or rejects all calls now.
AWAY_ERRORS = (UnavailableError, ServerFullError)
#: The patience of a child's calls between jobs, when it can do nothing but wait for its server.
NO_LIMIT_S = 1e9
HASTY_S = 0.5
#: On a Cluster: how long to wait for a node's answer, and for a redirection to another node.
ANSWER_S, REDIRECTED_S = 1.0, 0.1


class NotReportedError(JobqError):
    """A report didn't reach its queue. It will be repeated later."""


class ReportRefusedError(NotReportedError):
    """The server rejected the report."""


class ChildClients:
    """The clients of one child, with different timeouts.

    Attributes:
        patient: For calls between jobs.
        hasty: For calls while a job runs.
        progress: For progress reports of a running job. The timer may interrupt such a report to make a hasty call.
    """

    def __init__(
        self, given: Client, settings: WorkerSettings, may_give_up: Callable[[], bool]
    ) -> None:
        server = replace(given.settings, url=given.url)
        self.patient = connect(settings=replace(server, patience_s=NO_LIMIT_S))
        if self.patient.is_cluster:
            # The queues of the other nodes wait during this query.
            timeout_s = min(server.socket_timeout_s, ANSWER_S)
            self.patient = connect(
                settings=replace(server, patience_s=REDIRECTED_S, socket_timeout_s=timeout_s)
            )
        else:
            self.patient.should_give_up = may_give_up
        # A silent server must not block a job, especially not past its deadline.
        hasty_s = min(HASTY_S, settings.lease_s / 6)
        timeout_s = min(server.socket_timeout_s, hasty_s)
        self.hasty = connect(
            settings=replace(server, patience_s=hasty_s, socket_timeout_s=timeout_s)
        )
        #: The longest that a hasty call may take.
        self.hasty_ns = round(3 * hasty_s * 1e9)
        self.progress = connect(settings=replace(server, patience_s=HASTY_S))


class QueueCaller(Caller):
    """The id and numbers of a child's calls to one queue.

    All queues of the child share the id and a counter for the numbers, so that tokens are unique.
    """

    __slots__ = ("_numbers",)

    def __init__(self, arrived: Callable[[], None], caller_id: str, numbers: Iterator[int]) -> None:
        super().__init__(arrived, caller_id)
        self._numbers = numbers

    def next(self) -> int:
        self.number = next(self._numbers)
        return self.number


class CallUnderWay(NamedTuple):
    """A call that was first sent at `asked_at` and isn't answered yet. It reports the outcomes in `entries`."""

    call: NumberedCall[Any]
    entries: list[Ended]
    endings: list[Ending]
    limit: int
    asked_at: int


class QueueLine:
    """Makes one child's calls to one queue. Only one call at a time is pending.

    If a reply is lost, `repeat` must repeat the call before any other call. `repeat` also reports outcomes that were
    postponed because the queue was unavailable. Newer outcomes are reported later.
    """

    def __init__(
        self,
        index: int,
        queue: Queue,
        caller: Caller,
        health: QueueHealth,
        settings: WorkerSettings,
        passing: tuple[type[Exception], ...] | None = None,
    ) -> None:
        """Create the object without calling the server.

        After an error of a class in `passing` or REFUSED, the call is repeated later. Other errors are raised.
        """
        self.index, self.queue, self.caller = index, queue, caller
        self._health, self._settings = health, settings
        lease_ns, margin_ns = lease_and_margin(settings.lease_s)
        self._held_ns = lease_ns - margin_ns
        if passing is None:
            # If all queues are on one server, a child can do nothing but wait for it.
            passing = AWAY_ERRORS if queue.client.is_cluster else ()
        self._passing = passing
        #: Endings that no call has reported, in order. The first `nlate` were postponed.
        self.outbox: list[Ended] = []
        self.nlate = 0
        self._call: CallUnderWay | None = None
        #: Whether the reply to a call is on its way.
        self.is_sent = False
        #: Called with endings, the server's replies to the endings, and the slots that are free now. Without endings,
        #: the slot is of an ending that the server rejected.
        self.on_reported: Callable[[Sequence[Ending], Sequence[str], list[int]], None] = _ignore
        #: Returns the queues on the same node, including this queue; called only when the server is away.
        self.neighbours: Callable[[], Sequence[int]] = lambda: (index,)

    @property
    def waits(self) -> bool:
        """Return whether a call must be repeated or any outcomes were postponed."""
        return self.nlate > 0 or (self._call is not None and not self.is_sent)

    @property
    def is_idle(self) -> bool:
        """Return whether all calls are answered and no outcomes are postponed."""
        return self._call is None and not self.nlate

    @property
    def nasked(self) -> int:
        return 0 if self._call is None else self._call.limit

    def late(self) -> list[Ended]:
        """Return the outcomes that `repeat` will report."""
        unknown = [] if self._call is None or self.is_sent else self._call.entries
        return unknown + self.outbox[: self.nlate]

    # Calls.

    def dequeue(self, limit: int) -> tuple[Dequeued, int]:
        """Fetch messages, and return them with their lease deadline, which is 0 if the queue is unavailable."""
        if self._health.any_trouble and not self._health.may_ask(self.index):
            return self.nothing()
        try:
            handed, deadline = self.repeat() if self.waits else (None, 0)
            if handed is None:
                handed, deadline = self.ask(limit)
        except NotReportedError:
            return self.nothing()
        assert handed is not None
        return handed, deadline

    def ask(self, limit: int = 0) -> tuple[Dequeued | None, int]:
        """Report outcomes and fetch up to `limit` messages. Return the messages and their lease deadline.

        Raises NotReportedError if the call must be repeated later.
        """
        if self._call is not None or self.nlate:
            self.nlate = len(self.outbox)
            raise NotReportedError
        began = self._begin(limit)
        return self._answered(began.call.make, began.asked_at)

    def ask_hastily(self) -> bool:
        """Report outcomes with a short timeout; return whether the server answered.

        A timeout isn't recorded as an outage.
        """
        try:
            self._answered(self._begin(0).call.make)
        except NotReportedError:
            return False
        return True

    def send(self, limit: int) -> bytes:
        """Return the command that `ask` would send, for the caller to send immediately.

        Call this only after all earlier calls were answered.
        """
        command, self.is_sent = self._begin(limit).call.sent(), True
        return command

    def take(self, reply: Any) -> tuple[Dequeued | None, int]:
        """Decode the server's reply to `send`. Return the same values as `ask`.

        If `reply` is None, the reply was lost, so the call is repeated.
        """
        return self._answered(self._reading(reply), boot_ns())

    def take_nothing(self, reply: Any) -> None:
        """Read a dequeue reply whose messages the supervisor has claimed.

        The supervisor ends the session of that call, so later calls have a new caller id.
        """
        with suppress(NotReportedError):
            self._answered(self._reading(reply))
        if self._call is not None:
            self._put_back()
        self.restart()

    def repeat(self, client: Client | None = None) -> tuple[Dequeued | None, int]:
        """Repeat the call whose reply was lost, then report postponed outcomes. Return the same values as `ask`.

        If the repeated call returns messages, the postponed outcomes wait for the next call of `repeat`. If `client` is
        given, use it for these calls.
        """
        if self.is_sent:
            raise NotReportedError
        if self._call is not None:
            call, now = self._call.call, boot_ns()
            passed_ms = (now - self._call.asked_at) // 1_000_000
            handed, deadline = self._answered(lambda: call.make(client, passed_ms), now, again=True)
            if handed is not None and handed.messages:
                return handed, deadline
        while self.nlate:
            self._report(min(self.nlate, MAX_COUNT), client)
        return None, 0

    def release(self, leases: Sequence[Lease], slots: Sequence[int | None] = ()) -> bool:
        """Give unstarted messages back to the queue.

        Return False if `repeat` must do this later. Until then, the messages keep their slots.
        """
        asked_at = boot_ns()
        try:
            if self.waits:
                raise NotReportedError
            try:
                self.queue.release(leases)
            except self._passing as error:
                raise self._away(error, asked_at) from error
            except REFUSED as error:
                raise self._broken(error, asked_at) from error
        except NotReportedError:
            for (mid, token), slot in zip(leases, slots or [None] * len(leases), strict=True):
                ending = Ending(mid=mid, token=token, outcome="release")
                self.outbox.append((slot, ending, asked_at))
            self.nlate = len(self.outbox)
            return False
        return True

    def restart(self) -> None:
        """Use a new caller id for later calls, because the server's record of the old id may be corrupt.

        The supervisor ends only the session of the first id. If the reply to a call with a later id is lost, the
        messages in the reply run again after their leases expire.
        """
        self.rename(new_id())

    def rename(self, caller_id: str) -> None:
        self.caller.id = caller_id
        self.caller.heads.clear()

    # From one state to the next.

    def _begin(self, limit: int, most: int = MAX_COUNT) -> CallUnderWay:
        """Prepare a call that reports up to `most` outcomes and fetches up to `limit` messages."""
        assert self._call is None
        settings, now = self._settings, boot_ns()
        entries, self.outbox = self.outbox[:most], self.outbox[most:]
        self.nlate = max(0, self.nlate - len(entries))
        endings = [ending for _, ending, _ in entries]
        if entries and now - entries[0][2] >= 1_000_000:
            endings = [
                structs.replace(ending, age_ms=ending.age_ms + (now - at) // 1_000_000)
                for _, ending, at in entries
            ]
        call: NumberedCall[Any]
        if entries or not limit:
            call = self.queue.finish_call(
                endings, dequeue=limit, lease=settings.lease_s, crash_limit=settings.crash_limit,
                caller=self.caller,
            )  # fmt: skip
        else:
            call = self.queue.dequeue_call(
                limit, lease=settings.lease_s, crash_limit=settings.crash_limit, caller=self.caller
            )
        self._call = CallUnderWay(call, entries, endings, limit, now)
        return self._call

    def _reading(self, reply: Any) -> Callable[[], Any]:
        """Return a function that reads `reply`, or repeats the call if `reply` is None because the reply was lost."""
        assert self._call is not None
        self.is_sent, call = False, self._call.call
        return call.make if reply is None else lambda: call.take(reply)

    def _answered(
        self, read: Callable[[], Any], tried_at: int = 0, again: bool = False
    ) -> tuple[Dequeued | None, int]:
        """Read the reply to the pending call. Record failures of the try that began at `tried_at`, unless that is 0."""
        try:
            answer = read()
        except self._passing as error:
            raise self._away(error, tried_at) from error
        except REFUSED as error:
            self._put_back()
            raise self._broken(error, tried_at) from error
        call, self._call = self._call, None
        assert call is not None
        handed = answer
        if isinstance(answer, Finished):
            handed = answer.dequeued
            slots = [slot for slot, _, _ in call.entries if slot is not None]
            self.on_reported(call.endings, answer.replies, slots)
        if tried_at and (again or not call.entries) and self._health.any_trouble:
            if self._health.state(self.index) == AWAY:
                self._health.server_answered(self.neighbours())
            self._health.answered(self.index)
        return handed, call.asked_at + self._held_ns

    def _put_back(self) -> None:
        """Drop the pending call, and put its outcomes back for the next report."""
        call, self._call = self._call, None
        assert call is not None
        self.outbox[:0] = call.entries
        if call.entries:
            self.nlate = len(self.outbox)

    def _report(self, number: int, client: Client | None) -> None:
        try:
            call = self._begin(0, number).call
            self._answered(lambda: call.make(client), boot_ns(), again=True)
        except ReportRefusedError as refused:
            # The server rejects the queue, or only one of these endings, which must not block the others.
            call = self._begin(0, 0).call
            self._answered(lambda: call.make(client), boot_ns(), again=True)
            if number > 1:
                for _ in range(number):
                    self._report(1, client)
                return
            self.nlate -= 1
            slot, ending, _ = self.outbox.pop(0)
            logger.error(
                "%s: outcome %r was lost, because the server rejected it: %s",
                ending.mid,
                ending.outcome,
                refused,
            )
            self.on_reported((), (), [] if slot is None else [slot])

    def _away(self, error: Exception, tried_at: int) -> NotReportedError:
        if tried_at:
            self._health.failed(self.neighbours(), AWAY, error, tried_at)
        return NotReportedError(str(error))

    def _broken(self, error: Exception, tried_at: int) -> ReportRefusedError:
        if tried_at:
            self._health.failed((self.index,), BROKEN, error, tried_at)
        if self._call is None:
            self.restart()
        return ReportRefusedError(str(error))

    def nothing(self) -> tuple[Dequeued, int]:
        """Return the result of a fetch from an unavailable queue: no messages, and when to try again."""
        wait_ms = self._health.wait_ms(self.index)
        return Dequeued([], wait_ms, False, wait_ms), 0


def _ignore(endings: Sequence[Ending], replies: Sequence[str], slots: list[int]) -> None:
    """Ignore outcomes, because metrics are off."""


class RefusedLog:
    """Logs outcomes that the server rejected as too late, or may have rejected after a long outage."""

    def __init__(self, once: OnceAMinute | None = None) -> None:
        self._once = once or OnceAMinute()

    def __call__(self, endings: Sequence[Ending], replies: Sequence[str]) -> None:
        """Log rejected outcomes, at most one a minute as a warning. Also log outcomes that may have been rejected."""
        for ending, reply in zip(endings, replies, strict=True):
            if reply == "stale":
                self._stale(ending)
            elif reply == "unknown":
                logger.warning(
                    "%s: outcome %r was either accepted before a long outage, or rejected because its lock was lost",
                    ending.mid, ending.outcome,
                )  # fmt: skip

    def _stale(self, ending: Ending) -> None:
        text = "%s: outcome %r was rejected, because its lock was lost or it was cancelled"
        if self._once.is_due("stale"):
            remedy = (
                "; if it was not cancelled, this worker was suspended or disconnected for longer than its lease: look "
                "for the cause in earlier log lines, or use a longer --lease"
            )
            logger.warning(text + remedy, ending.mid, ending.outcome)
        else:
            logger.info(text, ending.mid, ending.outcome)


def same_node(queues: Sequence[Queue], index: int) -> list[int]:
    """Return the indexes of all queues that are known to be on the same node as this queue, including this queue."""
    key, client = queues[index].wake_key, queues[index].client
    return [
        other
        for other, queue in enumerate(queues)
        if other == index or client.shares_node(key, queue.wake_key)
    ]
