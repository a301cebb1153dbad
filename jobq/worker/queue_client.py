"""A queue as one child calls it. Trouble with one queue is noted, waits, and stops no other queue.

The server keeps the last call number of a caller per queue. So a call whose outcome is unknown waits here while other
queues are asked, and is made again under its number: what it handed out is handed out once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import structs

from jobq.client.clock import boot_ns
from jobq.client.connection import Client, connect
from jobq.client.numbered_calls import REPEAT_S, Caller, new_id
from jobq.config import WorkerSettings
from jobq.errors import JobqError, LeaseLostError, ScriptError, ServerFullError, UnavailableError
from jobq.queue.queue import MOST, Queue
from jobq.queue.types import Dequeued, Ending, Finished, Lease, PipelinedCall
from jobq.worker import logger
from jobq.worker.cautions import OnceAMinute
from jobq.worker.queue_health import AWAY, BROKEN, QueueHealth
from jobq.worker.shared_state import lease_and_margin

#: Errors that concern one queue: its keys, its settings, its messages, the record of a caller's last call there.
REFUSED = (ScriptError, LeaseLostError, ValueError)
#: The patience of a child's calls between jobs: it has nothing better to do than to wait for its server.
NO_LIMIT_S = 1e9
HASTY_S = 0.5
#: On a Cluster: how long to wait for a node's answer, and for a redirection to another node.
ANSWER_S, REDIRECTED_S = 1.0, 0.1


class NotReportedError(JobqError):
    """The report didn't reach the queue; it waits in its QueueClient."""


class ReportRefusedError(NotReportedError):
    """The server refuses the report."""


class ChildClients:
    """The connections of one child, by how long a call may wait.

    patient: between jobs. hasty: while a job runs. progress: for a running job's own reports; not `hasty`, since the
    timer may interrupt one of those.
    """

    def __init__(
        self, given: Client, settings: WorkerSettings, may_give_up: Callable[[], bool]
    ) -> None:
        server = replace(given.settings, url=given.url)
        self.patient = connect(settings=replace(server, patience_s=NO_LIMIT_S))
        if self.patient.is_cluster:
            # The queues of the other nodes wait while this one is asked.
            timeout_s = min(server.socket_timeout_s, ANSWER_S)
            self.patient = connect(
                settings=replace(server, patience_s=REDIRECTED_S, socket_timeout_s=timeout_s)
            )
        else:
            self.patient.should_give_up = may_give_up
        # A silent server must not hold up a job, least of all past its deadline.
        hasty_s = min(HASTY_S, settings.lease_s / 6)
        timeout_s = min(server.socket_timeout_s, hasty_s)
        self.hasty = connect(
            settings=replace(server, patience_s=hasty_s, socket_timeout_s=timeout_s)
        )
        #: The longest that a hasty call may take.
        self.hasty_ns = round(3 * hasty_s * 1e9)
        self.progress = connect(settings=replace(server, patience_s=HASTY_S))


class QueueCaller(Caller):
    """The caller of one queue. All queues of a child share id and numbers, so that its tokens are unique."""

    __slots__ = ("_numbers", "again")

    def __init__(self, arrived: Callable[[], None], caller_id: str, numbers: Iterator[int]) -> None:
        super().__init__(arrived, caller_id)
        self._numbers = numbers
        #: The number of the call to repeat next, 0 for none.
        self.again = 0

    def next(self) -> int:
        self.number, self.again = self.again or next(self._numbers), 0
        return self.number

    def restart(self) -> None:
        """Continue under another id. Anyone who may write to the queue can corrupt the record of the present one.

        The supervisor closes only the first id. What a lost call of another id handed out comes back when its
        lease ends.
        """
        self.rename(new_id())

    def rename(self, caller_id: str) -> None:
        """Continue under this id."""
        self.id, self.again = caller_id, 0
        self.heads.clear()


class QueueClient:
    """Queue number `index` of a child."""

    def __init__(
        self,
        index: int,
        queue: Queue,
        caller: QueueCaller,
        health: QueueHealth,
        settings: WorkerSettings,
    ) -> None:
        self.index, self.queue, self.caller = index, queue, caller
        self._health, self._settings = health, settings
        lease_ns, margin_ns = lease_and_margin(settings.lease_s)
        self._held_ns = lease_ns - margin_ns
        # If all queues have one server there is nothing better to do than to wait for it.
        self._passing = (UnavailableError, ServerFullError) if queue.client.is_cluster else ()
        # The call with an unknown outcome: when it was first made, how to repeat it, what it reports.
        self._unknown: tuple[int, Callable[[], Finished], Sequence[Ending]] | None = None
        self._endings: list[tuple[int, Ending]] = []
        self._when_reported: list[Callable[[], None]] = []
        #: Called with the server's replies to endings.
        self.on_replies: Callable[[Sequence[Ending], Finished], None] = RefusedLog()
        #: Returns the queues on the same node, including this one; called only when the server is away.
        self.neighbours: Callable[[], Sequence[int]] = lambda: (index,)

    @property
    def has_report(self) -> bool:
        """Whether a report waits."""
        return self._unknown is not None or bool(self._endings)

    @property
    def has_endings(self) -> bool:
        """Whether a waiting report says how runs ended."""
        return bool(self._endings or (self._unknown and self._unknown[2]))

    def dequeue(self, limit: int) -> tuple[Dequeued, int]:
        """Return what the queue hands out and its lease deadline; nothing, and 0, if the queue is in trouble."""
        if self._health.any_trouble and not self._health.may_ask(self.index):
            return self._nothing()
        try:
            if self._unknown or self._endings:
                finished, deadline = self.report()
                if finished is not None and finished.messages:
                    return finished, deadline
            settings, asked_at = self._settings, boot_ns()
            try:
                dequeued = self.queue.dequeue(
                    limit, lease=settings.lease_s, crash_limit=settings.crash_limit, caller=self.caller
                )  # fmt: skip
            except self._passing as error:
                again = partial(self._dequeue_again, self.caller.number, limit, asked_at)
                self._unknown = (asked_at, again, ())
                raise self._away(error, asked_at) from error
            except REFUSED as error:
                raise self._broken(error, asked_at) from error
        except NotReportedError:
            return self._nothing()
        if self._health.any_trouble:
            self._answered()
        return dequeued, asked_at + self._held_ns

    def pipeline_finish(self, endings: Sequence[Ending], dequeue: int) -> PipelinedCall[Finished]:
        """Return the `finish` to be sent now and read later. Not while a report waits."""
        settings = self._settings
        return self.queue.pipeline_finish(
            endings, dequeue=dequeue, lease=settings.lease_s,
            crash_limit=settings.crash_limit, caller=self.caller,
        )  # fmt: skip

    def finish(
        self,
        endings: Sequence[Ending],
        dequeue: int = 0,
        sent: Callable[[], Finished] | None = None,
        sent_at: int = 0,
    ) -> tuple[Dequeued | None, int]:
        """End attempts and, if asked, dequeue. Raises NotReportedError if they will be ended later.

        sent: reads the reply if the call was sent before, at `sent_at`.
        """
        asked_at = sent_at or boot_ns()
        if sent is None and (self._unknown or self._endings):
            self._endings += [(asked_at, ending) for ending in endings]
            raise NotReportedError
        try:
            finished = self._finish(endings, dequeue) if sent is None else sent()
        except self._passing as error:
            number = self.caller.number
            again = partial(self._finish_again, number, endings, dequeue, asked_at)
            self._unknown = (asked_at, again, endings)
            raise self._away(error, asked_at) from error
        except REFUSED as error:
            self._endings += [(asked_at, ending) for ending in endings]
            raise self._broken(error, asked_at) from error
        self.on_replies(endings, finished)
        return finished.dequeued, asked_at + self._held_ns

    def release(self, holds: Sequence[Lease]) -> bool:
        """Give back what wasn't started; False if that happens later."""
        asked_at = boot_ns()
        try:
            if self._unknown or self._endings:
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

    def answer(self, ahead: PipelinedCall[Dequeued], reply: Any, asked_at: int) -> Dequeued:
        """Return what a dequeue sent behind a wait handed out. reply: None if it was lost, so the call is repeated."""
        try:
            return ahead.again() if reply is None else ahead.read(reply)
        except self._passing as error:
            self._unknown = (asked_at, lambda: Finished([], ahead.again()), ())
            self._away(error, boot_ns())
        except REFUSED as error:
            self._broken(error, boot_ns())
        return self._nothing()[0]

    def claimed(self, endings: Sequence[Ending], sent: Callable[[], Finished]) -> None:
        """Read the reply to a call whose caller the supervisor closes: what it hands out isn't this child's."""
        try:
            self.on_replies(endings, sent())
        except (*self._passing, *REFUSED):
            self._endings += [(boot_ns(), ending) for ending in endings]
        self.caller.restart()

    def when_reported(self, then: Callable[[], None]) -> None:
        """Call `then` once no report waits."""
        self._when_reported.append(then)

    def report(self) -> tuple[Dequeued | None, int]:
        """Report what waits. Return what that hands out and its lease deadline; raises NotReportedError."""
        if self._unknown is not None:
            asked_at, again, endings = self._unknown
            try:
                finished = self._retry(again)
            except ReportRefusedError:
                self._endings[:0] = [(asked_at, ending) for ending in endings]
                self._unknown = None
                raise
            self._unknown = None
            if finished.dequeued is not None and finished.dequeued.messages:
                return finished.dequeued, asked_at + self._held_ns
        while self._endings:
            part = self._endings[:MOST]
            self._send([_older(ending, boot_ns() - at) for at, ending in part])
            del self._endings[: len(part)]
        then, self._when_reported = self._when_reported, []
        for each in then:
            each()
        return None, 0

    def _send(self, endings: list[Ending]) -> None:
        try:
            self.on_replies(endings, self._retry(lambda: self._finish(endings, 0)))
        except ReportRefusedError as refused:
            self._retry(lambda: self._finish((), 0))
            # One of these is refused, not the queue. It must not hold up the others.
            if len(endings) > 1:
                for ending in endings:
                    self._send([ending])
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
            endings, dequeue=dequeue, lease=settings.lease_s,
            crash_limit=settings.crash_limit, caller=self.caller,
        )  # fmt: skip

    def _finish_again(
        self, number: int, endings: Sequence[Ending], dequeue: int, asked_at: int
    ) -> Finished:
        passed = boot_ns() - asked_at
        same = self._renumber(number, passed)
        finished = self._finish([_older(ending, passed) for ending in endings], dequeue)
        if same:  # otherwise the lost call may have ended them
            self.on_replies(endings, finished)
        return finished

    def _dequeue_again(self, number: int, limit: int, asked_at: int) -> Finished:
        self._renumber(number, boot_ns() - asked_at)
        settings = self._settings
        return Finished([], self.queue.dequeue(
            limit, lease=settings.lease_s, crash_limit=settings.crash_limit, caller=self.caller
        ))  # fmt: skip

    def _renumber(self, number: int, passed_ns: int) -> bool:
        """Reuse the lost call's number while the server surely has its record; return whether."""
        if passed_ns >= REPEAT_S * 1e9:
            return False
        self.caller.again = number
        return True

    def _away(self, error: Exception, asked_at: int) -> NotReportedError:
        self._health.failed(self.neighbours(), AWAY, error, asked_at)
        return NotReportedError(str(error))

    def _broken(self, error: Exception, asked_at: int) -> ReportRefusedError:
        self._health.failed((self.index,), BROKEN, error, asked_at)
        self.caller.restart()
        return ReportRefusedError(str(error))

    def _answered(self) -> None:
        if self._health.state(self.index) == AWAY:
            self._health.server_answered(self.neighbours())
        self._health.answered(self.index)

    def _nothing(self) -> tuple[Dequeued, int]:
        wait_ms = self._health.wait_ms(self.index)
        return Dequeued([], wait_ms, False, wait_ms), 0


def _older(ending: Ending, passed_ns: int) -> Ending:
    return structs.replace(ending, age_ms=ending.age_ms + passed_ns // 1_000_000)


class RefusedLog:
    """Logs the endings that came too late, or that may have because of a long outage."""

    def __init__(self, once: OnceAMinute | None = None) -> None:
        self._once = once or OnceAMinute()

    def __call__(self, endings: Sequence[Ending], finished: Finished) -> None:
        """Log what the server refused of these endings: one warning a minute that says what to do, else `info`."""
        if not {"stale", "unknown"}.intersection(finished.replies):
            return
        for ending, reply in zip(endings, finished.replies, strict=True):
            if reply == "stale":
                self._stale(ending)
            elif reply == "unknown":
                logger.warning(
                    "%s: outcome %r was accepted before a long outage, or refused because its lock was lost",
                    ending.mid, ending.outcome,
                )  # fmt: skip

    def _stale(self, ending: Ending) -> None:
        text = "%s: outcome %r refused, its lock was lost or it was cancelled"
        if self._once.is_due("stale"):
            remedy = (
                "; if nobody cancelled it, this worker stood still or was cut off for longer than its lease: "
                "look for the cause in the lines before, or use a longer --lease"
            )
            logger.warning(text + remedy, ending.mid, ending.outcome)
        else:
            logger.info(text, ending.mid, ending.outcome)


def same_node(queues: Sequence[Queue], index: int) -> list[int]:
    """Return the queues that are known to be on the same node as this one, including this one."""
    key, client = queues[index].wake_key, queues[index].client
    return [
        other
        for other, queue in enumerate(queues)
        if other == index or client.shares_node(key, queue.wake_key)
    ]
