"""A child's calls to its queues: fetch messages, report outcomes, and return unstarted messages.

A message keeps its slot in shared memory until the server has confirmed the outcome. Until then, the supervisor renews
the message's lease. If the child dies, the supervisor reports or returns the message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count

from jobq.client.clock import boot_ns
from jobq.client.connection import Client
from jobq.client.numbered_calls import Caller
from jobq.client.waiter import BlockingConnection
from jobq.config import BURST_WAIT_S, WorkerSettings
from jobq.durations import counted
from jobq.errors import JobqError, ScriptError, UnavailableError
from jobq.jobs.context import Call
from jobq.jobs.signing import seal_of
from jobq.queue.members import MARK
from jobq.queue.queue import Queue
from jobq.queue.types import DeadMessage, Dequeued, Ending, Lease, Message
from jobq.worker import logger
from jobq.worker.counters import Counters
from jobq.worker.done_calls import DoneCalls
from jobq.worker.queue_health import BROKEN, QueueHealth
from jobq.worker.queue_line import (
    AWAY_ERRORS,
    ChildClients,
    Ended,
    NotReportedError,
    QueueCaller,
    QueueLine,
    RefusedLog,
    same_node,
)
from jobq.worker.shared_state import Control, SharedSlots

#: Outcomes after which the message runs again.
_AGAIN = frozenset(("retry", "snooze", "hold"))
#: The server counts a backoff from the report of the ending.
_REPORTED_WITHIN_S = 0.5


class ChildQueues:
    """The queues of one child. The index of a queue is its position in the settings.

    `before_call` runs before each call to a queue's server. `counters` counts outcomes, and is None if metrics are off.
    """

    def __init__(
        self, settings: WorkerSettings, client: Client, health: QueueHealth, slots: SharedSlots,
        before_call: Callable[[], None], counters: Counters | None = None,
    ) -> None:  # fmt: skip
        self._settings, self._health, self._slots = settings, health, slots
        self._before_call, self._counters = before_call, counters
        if counters is not None:
            health.on_failure = partial(counters.add, "server_errors")
        self._reporting, self._log_refused = False, RefusedLog()
        clients = ChildClients(client, settings, self._may_give_up)
        names = [name for name, _ in settings.queues]
        self.client = clients.patient
        self.queues = [Queue(name, clients.patient) for name in names]
        #: The same queues on a client with a short timeout, for calls while a job runs.
        self.hasty = [Queue(name, clients.hasty) for name in names]
        self._hasty_ns = clients.hasty_ns
        self.hasty_client, self.progress_client = clients.hasty, clients.progress
        self._progress = {name: Queue(name, clients.progress) for name in names}
        caller_id, numbers = Caller().id, count(1)
        slots.caller = caller_id
        self._lines, self._hasty_lines = list[QueueLine](), list[QueueLine]()
        for index, (queue, hasty) in enumerate(zip(self.queues, self.hasty, strict=True)):
            caller = QueueCaller(slots.reply_arrived, caller_id, numbers)
            self._lines.append(QueueLine(index, queue, caller, health, settings))
            self._hasty_lines.append(
                QueueLine(index, hasty, Caller(), health, settings, AWAY_ERRORS)
            )
        for line in self._lines + self._hasty_lines:
            line.on_reported = partial(self._on_reported, line.index)
            line.neighbours = partial(same_node, self.queues, line.index)
        seal = seal_of(client)
        self._done_calls = None if seal is None else DoneCalls(clients.hasty, seal)
        # Slots of ended messages, from any thread, whose ending the supervisor couldn't report.
        self._unsafe: set[int] = set()
        # Lines with endings that aren't reported, by queue.
        self._ended: dict[int, QueueLine] = {}
        # Queues whose report during a job got no answer.
        self._hasty_lost: set[int] = set()
        # The line of a sent report whose reply isn't read yet.
        self._sent: QueueLine | None = None
        # Opened by the first report whose reply is read later.
        self._connection = BlockingConnection(clients.patient, self.queues[0].wake_key)
        # Lines whose calls must be repeated.
        self._late: list[QueueLine] = []
        #: Queues to which this child reported ended members of flows without checking the outbox.
        self.ended_members: set[int] = set()

    def _may_give_up(self) -> bool:
        # A leaving child waits for a lost server only to report its ended runs.
        return self._slots.asks(Control.DRAIN | Control.HURRY) and not self._reporting

    # Take.

    def dequeue(self, index: int, limit: int) -> tuple[Dequeued, int]:
        """Fetch messages, and return them with their lease deadline, which is 0 if the queue is unavailable."""
        self._before_call()
        line = self._lines[index]
        dequeued, deadline = line.dequeue(limit)
        if not deadline:
            self._note(line)
        self._look_up(index, dequeued)
        return dequeued, deadline

    def send_behind_wait(self, limit: int) -> bytes | None:
        """Return a dequeue command that can be pipelined after the wait for a message.

        Return None while another call to the queue is unfinished.
        """
        line = self._lines[0]
        return line.send(limit) if line.is_idle else None

    def take_behind_wait(self, reply: object) -> tuple[Dequeued, int]:
        """Return the messages of the pipelined dequeue command, and their lease deadline.

        `reply` is None if the reply was lost.
        """
        line = self._lines[0]
        try:
            dequeued, deadline = line.take(reply)
        except NotReportedError:
            self._note(line)
            return line.nothing()
        assert dequeued is not None
        self._look_up(0, dequeued)
        return dequeued, deadline

    def _look_up(self, index: int, dequeued: Dequeued) -> None:
        if self._done_calls is not None and dequeued.messages:
            self._done_calls.look(self.queues[index].name, dequeued.messages)

    def was_done(self, message: Message) -> bool:
        """Return whether the call in this message had already finished when the message was fetched."""
        return self._done_calls is not None and self._done_calls.holds(message)

    def renew(self, index: int, calls: Sequence[tuple[int, Call | Ending]]) -> None:
        """Renew the leases of calls waiting in a batch. A call without a lease was cancelled, and won't start.

        If the server doesn't answer, all calls start. The supervisor notices a cancellation when it next renews leases.
        """
        waiting = [(slot, call.message) for slot, call in calls if isinstance(call, Call)]
        leases = [Lease(message.mid, message.token) for _, message in waiting]
        try:
            kept = self.hasty[index].extend(leases, self._settings.lease_s)
        except JobqError as error:
            logger.debug("can't check whether waiting calls were cancelled: %s", error)
            return
        self._slots.note_lost(slot for (slot, _), ok in zip(waiting, kept, strict=True) if not ok)

    # Report.

    def ended(self, index: int, slot: int, ending: Ending) -> bool:
        """Keep an outcome for the next report. Return whether the report can wait until other jobs have run.

        Only successes without a result can wait, because the supervisor reports them if this child dies.
        """
        if self._counters is not None:
            self._counters.ended(index, slot, ending)
        plain = self.mark_ended(slot, ending)
        if ending.outcome in _AGAIN and (after_s := ending.backoff or 0.0) <= BURST_WAIT_S:
            self._slots.note_again(boot_ns() + round((after_s + _REPORTED_WITHIN_S) * 1e9))
        line = self._ended[index] = self._lines[index]
        line.outbox.append((slot, ending, boot_ns()))
        return plain

    def mark_ended(self, slot: int, ending: Ending) -> bool:
        """Mark a run as finished. Return whether the supervisor can report the outcome if this child dies."""
        plain = ending.outcome == "done" and ending.result is None
        if not plain:
            self._unsafe.add(slot)
        self._slots.ended(slot, plain)
        return plain

    @property
    def has_endings(self) -> bool:
        """Return whether any outcome isn't reported yet, or any report isn't answered yet."""
        return bool(self._ended) or self._sent is not None

    @property
    def nasked(self) -> int:
        return 0 if self._sent is None else self._sent.nasked

    @property
    def is_sent(self) -> bool:
        """Return whether the reply to a sent report is still unread."""
        return self._sent is not None

    @property
    def nlate(self) -> int:
        return sum(len(_slots(line.late())) for line in self._late)

    def has_unsafe_endings(self) -> bool:
        """Return whether any outcome would be lost if this child died now, because only the child can report it."""
        return bool(self._unsafe)

    def nended(self) -> dict[int, int]:
        """Return the number of unreported outcomes by queue.

        Outcomes that `repeat` will report aren't counted.
        """
        return {index: len(line.outbox) - line.nlate for index, line in self._ended.items()}

    def report(self, index: int, limit: int = 0) -> tuple[Dequeued | None, int]:
        """Report a queue's outcomes, and fetch up to `limit` messages in the same call. Raises NotReportedError."""
        line = self._ended.pop(index, None)
        if line is None:
            return None, 0
        self._before_call()
        if not limit:
            self._note_members(line)
        if index in self._hasty_lost:
            self._hasty_lost.discard(index)
            hasty = self._hasty_lines[index]
            # If this fails, the report is repeated later with others.
            with suppress(NotReportedError):
                self._reported(hasty, partial(hasty.repeat, self.client))
        if not line.outbox:
            return None, 0
        return self._reported(line, partial(line.ask, limit))

    def close_idle(self) -> None:
        """Close the connections that are used only while jobs run."""
        for each in (self.hasty_client, self.progress_client, self._connection):
            each.close()

    def _note_members(self, line: QueueLine) -> None:
        if any(ending.mid.startswith(MARK) for _, ending, _ in line.outbox):
            self.ended_members.add(line.index)

    def _reported(
        self, line: QueueLine, report: Callable[[], tuple[Dequeued | None, int]]
    ) -> tuple[Dequeued | None, int]:
        self._reporting = True
        try:
            dequeued, deadline = report()
        except NotReportedError:
            self._note(line)
            raise
        finally:
            self._reporting = False
        if dequeued is not None and self._done_calls is not None:
            self._look_up(line.index, dequeued)
        return dequeued, deadline

    def send(self, index: int, limit: int, claim_after_ns: int) -> bool:
        """Send a report, and let `collect` read the reply later. Return False if a report can't be sent now.

        The supervisor is informed before the call, so no message is lost if this child dies.

        Args:
            claim_after_ns: How long after the call the supervisor may claim the messages that the call returned.
        """
        line = self._lines[index]
        is_busy = self._sent is not None or not line.is_idle or index in self._hasty_lost
        if is_busy or self._health.any_trouble or self.client.is_cluster:
            return False
        self._before_call()
        self._ended.pop(index, None)
        if not limit:
            self._note_members(line)
        command = line.send(limit)
        self._slots.fetching(index, boot_ns() + claim_after_ns)
        self._sent = line
        try:
            self._connection.send(command)
        except UnavailableError:
            pass  # there will be no reply, so `collect` makes the call again
        return True

    def reply_file(self) -> int | None:
        """Return a file descriptor that becomes readable when a pending reply arrives; None if no reply is pending."""
        return self._connection.file if self._connection.is_open else None

    def collect(self) -> tuple[int, Dequeued | None, int]:
        """Read the reply to a sent report. Return the queue's index, the fetched messages and their lease deadline.

        Raises NotReportedError if the report must be repeated.
        """
        assert self._sent is not None
        line, self._sent = self._sent, None
        self._before_call()
        try:
            reply = self._connection.reply()
        except (ScriptError, UnavailableError):
            reply = None
        take = line.take if self._slots.fetched() else partial(self._take_nothing, line)
        dequeued, deadline = self._reported(line, partial(take, reply))
        return line.index, dequeued, deadline

    def _take_nothing(self, line: QueueLine, reply: object) -> tuple[None, int]:
        """Read a dequeue reply, but don't return its messages, because the supervisor has claimed them."""
        line.take_nothing(reply)
        self._slots.reading_done()
        if not any(line.waits for line in self._lines):
            # So that the supervisor can close it, whichever queue was asked last.
            self._slots.caller = line.caller.id
            for queue_line in self._lines:
                queue_line.rename(line.caller.id)
        if line.waits:
            raise NotReportedError
        return None, 0

    def report_during_job(self) -> None:
        """Report outcomes while a job runs. Timeouts are short, so that the job's lease doesn't expire."""
        for index, line in list(self._ended.items()):
            if line.waits or (self._health.any_trouble and self._health.state(index)):
                continue
            if self._slots.deadline() - boot_ns() <= self._hasty_ns:
                return
            # From a separate caller: the reply to a call of the line may be on its way.
            hasty = self._hasty_lines[index]
            if not hasty.is_idle:
                return  # the loop repeats it, with all patience
            self._note_members(line)
            hasty.outbox, line.outbox = line.outbox, []
            if not hasty.ask_hastily():
                self._hasty_lost.add(index)
                return
            del self._ended[index]

    def _on_reported(
        self, index: int, endings: Sequence[Ending], replies: Sequence[str], slots: list[int]
    ) -> None:
        if "stale" in replies or "unknown" in replies:
            self._log_refused(endings, replies)
        if self._counters is not None:
            self._counters.reported(index, endings, replies)
        if self._done_calls is not None:
            self._done_calls.note(self.queues[index].name, endings, replies)
        if self._unsafe:
            self._unsafe.difference_update(slots)
        self._slots.free(slots)

    def progress(self, queue: str, mid: str, token: str, text: str) -> bool:
        """Report the progress of a running job."""
        return self._progress[queue].progress(mid, token, text)

    def checkpoint(self, queue: str, mid: str, token: str, value: str) -> str | None:
        """Store `value` as a running job's checkpoint, or only read it if `value` is ''; see Queue.checkpoint."""
        return self._progress[queue].checkpoint(mid, token, value)

    def store_log(self, queue: str, mid: str, attempt: int, text: bytes, keep_s: float) -> None:
        """Store an attempt's log for `keep_s` seconds."""
        self._progress[queue].store_log(mid, attempt, text, keep_s)

    def find_dead(self, queue: str, dead_id: str, lease: Lease) -> DeadMessage | None:
        """Return a message from the dead-letter set, or None.

        `lease` belongs to the `on_dead` call for that message.
        """
        asked = self._progress[queue]
        messages = asked.admin.dead(mid=dead_id)
        if messages and messages[0].dead_id == dead_id:
            return messages[0]
        asked.check_lease(lease, f"the dead message {dead_id}")
        return None

    # Give back.

    def release(self, index: int, leases: Sequence[Lease], slots: Sequence[int] = ()) -> bool:
        """Give unstarted messages back to the queue.

        Return False if the call must be repeated later. Until then, the messages keep their slots.
        """
        self._before_call()
        done = not leases or self._lines[index].release(leases, slots)
        if not done:
            self._note(self._lines[index])
        return done

    def give_back(self, index: int, slots: Sequence[int]) -> None:
        """Give the unstarted messages in these slots back to their queue."""
        unstarted, leases = self._slots.withdraw(slots)
        if not self.release(index, list(leases.values()), list(leases)):
            unstarted = [slot for slot in unstarted if slot not in leases]
        self._slots.free(unstarted)

    # Repeat.

    def _note(self, line: QueueLine) -> None:
        """Record that unanswered calls to this queue must be repeated. New jobs may start before the repetition."""
        if line.waits:
            self._unsafe.difference_update(_slots(line.late()))
            if line not in self._late:
                self._late.append(line)

    def repeat_reports(self) -> None:
        """Send pending reports to each reachable queue.

        If a reply contains messages, return them to the queue, because this method can't run them.
        """
        for line in self._late:
            if line.waits and self._health.may_ask(line.index):
                try:
                    handed, _ = line.repeat()
                except NotReportedError:
                    continue
                if handed is not None:
                    self._slots.reading_done()
                    line.release([Lease(message.mid, message.token) for message in handed.messages])
        self._late = [line for line in self._late if line.waits]

    def report_wait_s(self) -> float | None:
        waits = [self._health.wait_ms(line.index) for line in self._late]
        return min(waits) / 1000 if waits else None

    def must_wait(self) -> bool:
        """Return whether a report is pending on a server that may still answer."""
        return any(line.late() and self._health.state(line.index) != BROKEN for line in self._late)

    def log_unreported(self) -> bool:
        """Return whether any outcomes couldn't be reported. If so, log a warning."""
        if self._late:
            names = {self.queues[line.index].name for line in self._late}
            logger.warning(
                "the child exits with undelivered outcomes for %s", counted(len(names), "queue")
            )
        return bool(self._late)


def _slots(entries: Sequence[Ended]) -> list[int]:
    return [slot for slot, _, _ in entries if slot is not None]
