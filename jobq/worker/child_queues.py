"""The queues of one child: take messages, report how they ended, give back what wasn't started.

A message keeps its slot in the shared memory until its report has reached the queue. So its lease is renewed, and a
death of this child is cleaned up, while a report waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from time import monotonic_ns
from typing import NamedTuple

from msgspec import structs

from jobq.client.clock import boot_ns
from jobq.client.connection import Client
from jobq.client.numbered_calls import Caller
from jobq.client.waiter import BlockingConnection
from jobq.config import BURST_WAIT_S, WorkerSettings
from jobq.errors import JobqError, ScriptError, UnavailableError
from jobq.jobs.signing import seal_of
from jobq.queue.members import MARK
from jobq.queue.queue import Queue
from jobq.queue.types import DeadMessage, Dequeued, Ending, Finished, Lease, Message, PipelinedCall
from jobq.worker import logger
from jobq.worker.counters import Counters
from jobq.worker.done_calls import DoneCalls
from jobq.worker.queue_client import (
    ChildClients,
    NotReportedError,
    QueueCaller,
    QueueClient,
    RefusedLog,
    same_node,
)
from jobq.worker.queue_health import BROKEN, QueueHealth
from jobq.worker.shared_state import Control, SharedSlots, lease_deadline

#: A message that ended: its slot, how, and when (monotonic_ns).
Ended = tuple[int, Ending, int]
#: Outcomes after which the message runs again.
_AGAIN = frozenset(("retry", "snooze", "hold"))
#: The server counts a backoff from the report of the ending.
_REPORTED_WITHIN_S = 0.5


class SentReport(NamedTuple):
    """A report and dequeue that was sent, and whose reply isn't read."""

    queue: int
    call: PipelinedCall[Finished]
    outbox: list[Ended]
    endings: list[Ending]
    limit: int
    sent_at: int


class ChildQueues:
    """Queues are given by index, in the order of the settings.

    before_call: called before each call to a queue's server. counters: counts how runs ended; None for nobody.
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
        #: For calls while a job runs, and the longest that one may take.
        self.hasty = [Queue(name, clients.hasty) for name in names]
        self._hasty_ns = clients.hasty_ns
        self.hasty_client, self.progress_client = clients.hasty, clients.progress
        self._progress = {name: Queue(name, clients.progress) for name in names}
        caller_id, numbers = Caller().id, count(1)
        slots.caller = caller_id
        self._clients = []
        for index, queue in enumerate(self.queues):
            caller = QueueCaller(slots.reply_arrived, caller_id, numbers)
            one = QueueClient(index, queue, caller, health, settings)
            one.on_replies = partial(self._on_replies, index)
            one.neighbours = partial(same_node, self.queues, index)
            self._clients.append(one)
        seal = seal_of(client)
        self._done_calls = None if seal is None else DoneCalls(clients.hasty, seal)
        # Slots of what ended, in any thread, in a way that the supervisor couldn't report.
        self._unsafe: set[int] = set()
        # Endings that the server doesn't know yet, by queue.
        self._outboxes: dict[int, list[Ended]] = {}
        self._sent: SentReport | None = None
        # Opened by the first report whose reply is read later.
        self._line = BlockingConnection(clients.patient, self.queues[0].wake_key)
        # Clients whose report must be repeated.
        self._unreported: list[QueueClient] = []
        #: Number of slots of messages whose report must be repeated: they don't run.
        self.nparked = 0
        #: Queues to which this child reported ends of members of flows, without asking what else the queue has.
        self.ended_members: set[int] = set()

    def _may_give_up(self) -> bool:
        # A child that is to leave waits for a lost server only to report what it ran.
        return self._slots.asks(Control.DRAIN | Control.HURRY) and not self._reporting

    # Take.

    def dequeue(self, index: int, limit: int) -> tuple[Dequeued, int]:
        """Return what the queue hands out and its lease deadline; nothing, and 0, if the queue is in trouble."""
        self._before_call()
        client = self._clients[index]
        dequeued, deadline = client.dequeue(limit)
        if not deadline:
            self._note(client)
        self._look_up(index, dequeued)
        return dequeued, deadline

    def pipeline_dequeue(self, limit: int) -> PipelinedCall[Dequeued]:
        """Return a dequeue of the only queue, to be sent behind the wait for a message."""
        return self.queues[0].pipeline_dequeue(
            limit, lease=self._settings.lease_s, crash_limit=self._settings.crash_limit,
            caller=self._clients[0].caller,
        )  # fmt: skip

    def answer(
        self, ahead: PipelinedCall[Dequeued], reply: object, asked_at: int
    ) -> tuple[Dequeued, int]:
        """Return what that dequeue handed out and its lease deadline. reply: None if it was lost."""
        dequeued = self._clients[0].answer(ahead, reply, asked_at)
        self._look_up(0, dequeued)
        return dequeued, lease_deadline(asked_at, self._settings.lease_s)

    def _look_up(self, index: int, dequeued: Dequeued) -> None:
        if self._done_calls is not None and dequeued.messages:
            self._done_calls.look(self.queues[index].name, dequeued.messages)

    def was_done(self, message: Message) -> bool:
        """Whether this sealed call was done before it was handed out."""
        return self._done_calls is not None and self._done_calls.holds(message)

    # Report.

    def ended(self, index: int, slot: int, ending: Ending) -> bool:
        """Keep an ending for the next report; whether that can wait until other jobs have run.

        Only what is plainly done can: the supervisor reports it if this child dies.
        """
        if self._counters is not None:
            self._counters.ended(index, slot, ending)
        plain = self.mark_ended(slot, ending)
        if ending.outcome in _AGAIN and (after_s := ending.backoff or 0.0) <= BURST_WAIT_S:
            self._slots.note_again(boot_ns() + round((after_s + _REPORTED_WITHIN_S) * 1e9))
        one = (slot, ending, monotonic_ns())
        outbox = self._outboxes.get(index)
        if outbox is None:
            self._outboxes[index] = [one]
        else:
            outbox.append(one)
        return plain

    def mark_ended(self, slot: int, ending: Ending) -> bool:
        """Note for the supervisor that a run is over; whether it can report the ending if this child dies."""
        plain = ending.outcome == "done" and ending.result is None
        if not plain:
            self._unsafe.add(slot)
        self._slots.ended(slot, plain)
        return plain

    @property
    def has_endings(self) -> bool:
        """Whether an ending isn't reported, or a report isn't answered."""
        return bool(self._outboxes) or self._sent is not None

    @property
    def nasked(self) -> int:
        """Number of messages that a sent report asks for."""
        return 0 if self._sent is None else self._sent.limit

    @property
    def is_sent(self) -> bool:
        """Whether a report was sent whose reply isn't read."""
        return self._sent is not None

    def has_unsafe_endings(self) -> bool:
        """Whether there is an ending that the supervisor couldn't report, should this child die."""
        return bool(self._unsafe)

    def nended(self) -> dict[int, int]:
        """Return the number of endings that aren't reported, by queue."""
        return {index: len(outbox) for index, outbox in self._outboxes.items()}

    def report(self, index: int, limit: int = 0) -> tuple[Dequeued | None, int]:
        """Report the endings of a queue, and dequeue up to `limit` messages with it. Raises NotReportedError."""
        outbox = self._outboxes.get(index)
        if outbox is None:
            return None, 0
        self._before_call()
        if not limit:
            self._note_members(index, outbox)
        finish = partial(self._clients[index].finish, _aged(outbox), limit)
        return self._reported(index, self._drop(index), finish)

    def _note_members(self, index: int, outbox: Sequence[Ended]) -> None:
        if any(ending.mid.startswith(MARK) for _, ending, _ in outbox):
            self.ended_members.add(index)

    def _reported(
        self, index: int, slots: Sequence[int], finish: Callable[[], tuple[Dequeued | None, int]]
    ) -> tuple[Dequeued | None, int]:
        self._reporting = True
        try:
            dequeued, deadline = finish()
        except NotReportedError:
            self._note(self._clients[index])
            self._park(index, slots)
            raise
        finally:
            self._reporting = False
            self._unsafe.difference_update(slots)
        self._slots.free(slots)
        if dequeued is not None:
            self._look_up(index, dequeued)
        return dequeued, deadline

    def send(self, index: int, limit: int, claim_after_ns: int) -> bool:
        """`report` without waiting for the reply, which `collect` reads; False if that can't be done now.

        claim_after_ns: after this time the supervisor may give back what the call hands out. It knows of the call
        before that is sent, so nothing is lost with this child.
        """
        client = self._clients[index]
        busy = self._sent is not None or client.has_report or self._health.any_trouble
        if busy or self.client.is_cluster:
            return False
        self._before_call()
        outbox = self._outboxes.pop(index, [])
        endings = _aged(outbox) if outbox else []
        if not limit:
            self._note_members(index, outbox)
        sent_at = boot_ns()
        call = client.pipeline_finish(endings, limit)
        self._slots.fetching(index, sent_at + claim_after_ns)
        self._sent = SentReport(index, call, outbox, endings, limit, sent_at)
        try:
            self._line.send(call.command)
        except UnavailableError:
            pass  # there will be no reply, so `collect` makes the call again
        return True

    def reply_file(self) -> int | None:
        """Return what becomes readable when the reply comes; None if none will come."""
        return self._line.file if self._line.is_open else None

    def collect(self) -> tuple[int, Dequeued | None, int]:
        """Wait for the reply to what was sent. Return its queue, and as `report`. Raises NotReportedError."""
        assert self._sent is not None
        sent, self._sent = self._sent, None
        client, call = self._clients[sent.queue], sent.call
        self._before_call()
        try:
            reply = self._line.reply()
        except (ScriptError, UnavailableError):
            reply = None
        read = call.again if reply is None else partial(call.read, reply)
        slots = [slot for slot, _, _ in sent.outbox]
        finish: Callable[[], tuple[Dequeued | None, int]]
        if self._slots.fetched():
            finish = partial(client.finish, sent.endings, sent.limit, read, sent.sent_at)
        else:
            finish = partial(self._claimed, client, sent.endings, read)
        dequeued, deadline = self._reported(sent.queue, slots, finish)
        return sent.queue, dequeued if sent.limit else None, deadline

    def _claimed(
        self, client: QueueClient, endings: Sequence[Ending], read: Callable[[], Finished]
    ) -> tuple[None, int]:
        client.claimed(endings, read)
        self._slots.reading_done()
        if not any(one.has_report for one in self._clients):
            # So that the supervisor can close it, whichever queue was asked last.
            self._slots.caller = client.caller.id
            for one in self._clients:
                one.caller.rename(client.caller.id)
        if client.has_report:
            raise NotReportedError
        return None, 0

    def report_during_job(self) -> None:
        """While a job runs, report if the servers answer soon and the lease allows it."""
        for index in list(self._outboxes):
            if self._health.any_trouble and self._health.state(index):
                continue
            if self._slots.deadline() - boot_ns() <= self._hasty_ns:
                return
            endings = _aged(self._outboxes[index])
            try:
                finished = self.hasty[index].finish(endings, crash_limit=self._settings.crash_limit)
            except JobqError:
                return  # the loop tries again, with all patience
            self._on_replies(index, endings, finished)
            slots = self._drop(index)
            self._unsafe.difference_update(slots)
            self._slots.free(slots)

    def _drop(self, index: int) -> list[int]:
        return [slot for slot, _, _ in self._outboxes.pop(index)]

    def _on_replies(self, index: int, endings: Sequence[Ending], finished: Finished) -> None:
        self._log_refused(endings, finished)
        if self._counters is not None:
            self._counters.reported(index, endings, finished.replies)
        if self._done_calls is not None:
            self._done_calls.note(self.queues[index].name, endings, finished.replies)

    def progress(self, queue: str, mid: str, token: str, text: str) -> bool:
        """Report the progress of a running job."""
        return self._progress[queue].progress(mid, token, text)

    def checkpoint(self, queue: str, mid: str, token: str, value: str) -> str | None:
        """Keep or read the checkpoint of a running job."""
        return self._progress[queue].checkpoint(mid, token, value)

    def store_log(self, queue: str, mid: str, attempt: int, text: bytes, keep_s: float) -> None:
        """Store what an attempt logged."""
        self._progress[queue].store_log(mid, attempt, text, keep_s)

    def find_dead(self, queue: str, dead_id: str, lease: Lease) -> DeadMessage | None:
        """Return a dead message, or None if it isn't among the dead. lease: of the message that asks."""
        asked = self._progress[queue]
        found = asked.admin.dead(mid=dead_id)
        if found and found[0].dead_id == dead_id:
            return found[0]
        asked.check_lease(lease, f"the dead message {dead_id}")
        return None

    # Give back.

    def release(self, index: int, leases: Sequence[Lease]) -> bool:
        """Give back messages that weren't started; False if that happens later."""
        self._before_call()
        done = not leases or self._clients[index].release(leases)
        if not done:
            self._note(self._clients[index])
        return done

    def give_back(self, index: int, slots: Sequence[int]) -> None:
        """Give back what wasn't started of these."""
        unstarted, leases = self._slots.withdraw(slots)
        if self.release(index, leases):
            self._slots.free(unstarted)
        else:
            self._park(index, unstarted)

    def _park(self, index: int, slots: Sequence[int]) -> None:
        """Hold these until the report arrived, so that leases are renewed and a death is cleaned up."""
        self.nparked += len(slots)
        self._clients[index].when_reported(partial(self._unpark, slots))

    def _unpark(self, slots: Sequence[int]) -> None:
        self.nparked -= len(slots)
        self._slots.free(slots)

    # Repeat.

    def _note(self, client: QueueClient) -> None:
        if client.has_report and client not in self._unreported:
            self._unreported.append(client)

    def repeat_reports(self) -> None:
        """Tell each queue what waits to be reported, where it may be asked now.

        Nothing is taken now, so what a repeated call hands out is given back.
        """
        for client in self._unreported:
            if self._sent is not None and self._sent.queue == client.index:
                continue  # a caller has one call at a time
            if client.has_report and self._health.may_ask(client.index):
                try:
                    handed, _ = client.report()
                except NotReportedError:
                    continue
                if handed is not None:
                    self._slots.reading_done()
                    client.release([Lease(one.mid, one.token) for one in handed.messages])
        self._unreported = [client for client in self._unreported if client.has_report]

    def report_wait_s(self) -> float | None:
        """Return the seconds until a waiting report may be repeated; None if no report waits."""
        waits = [self._health.wait_ms(client.index) for client in self._unreported]
        return min(waits) / 1000 if waits else None

    def must_wait(self) -> bool:
        """Whether a server doesn't know yet how runs ended here, and may still answer."""
        return any(
            client.has_endings and self._health.state(client.index) != BROKEN
            for client in self._unreported
        )

    def log_unreported(self) -> bool:
        """Log what couldn't be reported; whether there is anything."""
        if self._unreported:
            logger.warning(
                "left with reports for %d queues that could not be delivered", len(self._unreported)
            )
        return bool(self._unreported)


def _aged(outbox: list[Ended]) -> list[Ending]:
    """Return the endings, with their age if the oldest is a millisecond or more."""
    now = monotonic_ns()
    if now - outbox[0][2] < 1_000_000:
        return [ending for _, ending, _ in outbox]
    return [structs.replace(ending, age_ms=(now - at) // 1_000_000) for _, ending, at in outbox]
