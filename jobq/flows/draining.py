"""Delivers records from queues' outboxes to flows, and enqueues the flows' next steps.

A drainer reads records, applies them to the flows, enqueues ready steps, and deletes the records last. If the drainer
dies before the deletion, the next drainer repeats the work. The repetition is safe, because each member counts only
once, and a step stays in the flow until it is enqueued. If the client requires durability on disk or replicas, the
drainer deletes the records only after all changed nodes have confirmed this durability.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence

from jobq.client.clock import Reminder, boot_ns
from jobq.client.connection import Client
from jobq.client.names import base_of
from jobq.client.pipelining import commands
from jobq.errors import (
    CodecError,
    ConfigError,
    NotDurableError,
    ScriptError,
    ServerFullError,
    UnavailableError,
)
from jobq.flows.accepting import ending, results_at
from jobq.flows.announcing import SEPARATOR, announce, announced, is_for_others, queue_at
from jobq.flows.entries import ENDINGS, Done, Heard, Said, heard, in_calls, runs_in
from jobq.flows.sending import Sending, StepSender
from jobq.flows.store import PER_CALL, FlowStore
from jobq.flows.types import MAX_RESULT_BYTES, Applied, FlowChange
from jobq.queue.durability import SharedConfirmation, UnconfirmableError
from jobq.queue.members import OutboxEntry, OutboxRecord
from jobq.queue.queue import Queue

#: Number of entries to read, apply and delete together.
BATCH = 64
#: Maximum age of a read. Older entries are read again before anything is sent, because mids stay taken for an hour.
GIVE_UP_S = 600.0
#: How long to skip a flow and its entries if its node doesn't answer or has no room for its next steps.
PASS_OVER_NS = 5_000_000_000
#: How long a process without a key leaves sealed signals to other processes.
SEALED_FOR_MS = 3_600_000
_log = logging.getLogger("jobq.flows")


class Drainer:
    """Delivers records from the outboxes of queues to the flows. Only one thread at a time may use an instance.

    Args:
        clock: Clock for tests. It returns nanoseconds, including time while the machine sleeps.
    """

    def __init__(self, client: Client, clock: Callable[[], int] = boot_ns) -> None:
        self.client, self._clock = client, clock
        self._id, self._reminder = secrets.token_hex(8), Reminder()
        # Queues with new signals to sub-flows.
        self._said_at: set[str] = set()
        # Flows to skip, because their node didn't answer or was full, and when to try them again.
        self._away: dict[str, int] = {}
        # Flows with more to send than one call sends.
        self._unfinished: set[str] = set()
        # Keys of delivered results to delete, because flows have stored these results.
        self._kept: list[str] = []
        # Queue -> the last skipped entry, and the time until which reading begins after it.
        self._behind: dict[str, tuple[str, int]] = {}

    def drain(self, queue: str, most: int | None = None) -> int:
        """Deliver the records in a queue's outbox to the flows, unless another drainer is active.

        Signals for sub-flows are delivered in the same call. Returns the number of delivered records. Steps that can't
        be started yet are left for the next call. Raises UnavailableError if a server can't be reached; the records
        stay in the outbox. The records of one flow also stay if there is no room for its next steps or, on a Cluster,
        if the flow's node doesn't answer.

        Args:
            most: Stop after about this many records, and leave records that are written during the call.
        """
        taken, left = self._drain(queue, most), self._said_at
        while left and (most is None or taken < most):
            taken += self._drain(left.pop(), most)
        left.clear()
        return taken

    def _drain(self, queue: str, most: int | None) -> int:
        source, taken, after = queue_at(self.client, queue), 0, self._first_after(queue)
        stuck: set[str] = set()
        while most is None or taken < most:
            read_at = self._clock()
            read = source.flow_outbox(BATCH, self._id, after)
            if not read or (stuck and runs_in(read) <= stuck):
                return taken
            stuck |= self._take(source, read, read_at)
            is_rest = len(read) < BATCH
            if (
                stuck
                and is_rest
                and _only_looks(read)
                and runs_in(read) <= stuck - self._unfinished
            ):
                # Leave these entries: a new signal would wake workers, which would repeat this immediately, forever.
                return taken
            entries = self._without_those_away(read)
            if len(entries) < len(read):
                after = self._goes_on_behind(queue, read[-1])
            if not entries:
                continue
            for flow in stuck & runs_in(entries) if stuck else stuck:
                # The drainer that reads this signal continues where this call stopped. If a queue loses the signal in a
                # failover, it still has the entries deleted below.
                announce(self.client, queue, "look", flow, durability="memory")
            taken += len(entries)
            left = source.flow_outbox_drop([entry.entry_id for entry in entries], self._id)
            if not left or (is_rest and most is not None):
                return taken
        return taken

    def _first_after(self, queue: str) -> str:
        after, until = self._behind.get(queue, ("", 0))
        return after if self._clock() < until else ""

    def _goes_on_behind(self, queue: str, entry: OutboxEntry) -> str:
        """Skip entries up to `entry` in the next reads of this queue, for a limited time. Return the entry's id."""
        _, until = self._behind.get(queue, ("", 0))
        now = self._clock()
        self._behind[queue] = (entry.entry_id, until if now < until else now + PASS_OVER_NS)
        return entry.entry_id

    def _without_those_away(self, read: Sequence[OutboxEntry]) -> list[OutboxEntry]:
        if not self._away:
            return list(read)
        return [entry for entry in read if self._away.keys().isdisjoint(runs_in([entry]))]

    def look(self, flow: str) -> bool:
        """Enqueue the flow's pending items; return whether none is left."""
        sender = StepSender(self._sending(self._clock()), flow)
        return sender.send_all(sender.store.apply("q", []))

    def _take(self, queue: Queue, entries: Sequence[OutboxEntry], read_at: int) -> set[str]:
        """Deliver records to their flows; return the flows whose next steps can't be enqueued yet."""
        sending, stuck = self._sending(read_at), set()
        self._unfinished.clear()
        self._kept.clear()
        self._away = {flow: until for flow, until in self._away.items() if read_at < until}
        said = heard(entries)
        for flow in self._sealed_for_others(said):
            _log.warning(
                "results in queue %s for flow %s are sealed, and this process has no key: set JOBQ_CODEC_KEYS, or "
                "leave them to processes that have it", queue.name, flow,
            )  # fmt: skip
            self._pass_over(flow)
        for flow in sorted(said.keys() - self._away.keys()):
            try:
                sender = StepSender(sending, flow)
                applied = self._apply(queue, sender.store, said[flow])
                if not sender.send_all(applied):
                    stuck.add(flow)
                if sender.has_more:
                    self._unfinished.add(flow)
            except (UnavailableError, ServerFullError, NotDurableError) as error:
                # On a full server, other entries are delivered, because that frees memory.
                if self.client.is_lost(error):
                    raise
                _log.warning(
                    "results in queue %s for flow %s can't be delivered yet: %s",
                    queue.name,
                    flow,
                    error,
                )
                self._pass_over(flow)
            except (ScriptError, ConfigError, CodecError) as error:
                # Damaged keys of one flow must not block other flows. People can fix the causes of other errors.
                if not _is_damage(error):
                    raise
                _log.error(
                    "flow %s can't store the results in queue %s: %s", flow, queue.name, error
                )
        self._confirm(queue, sending.confirmation, said)
        return stuck

    def _pass_over(self, flow: str) -> None:
        self._away[flow] = self._clock() + PASS_OVER_NS

    def _confirm(self, queue: Queue, confirmation: SharedConfirmation, said: Heard) -> None:
        """Wait until the flows' changes are durable, and then delete the queue's copies of stored results."""
        if missing := confirmation.missing():
            self.client.look_again()
            for flow in said.keys() - self._away.keys():
                self._pass_over(flow)
            _log.warning(
                "results in queue %s are kept for another delivery, because their flows did not store them with "
                "durability=%r: %s",
                queue.name, self.client.durability, missing,
            )  # fmt: skip
        elif self._kept:
            commands(self.client, queue.wake_key, [("DEL", key) for key in self._kept])

    def _sealed_for_others(self, said: Heard) -> set[str]:
        """Return flows with sealed signals that this process can't open. Processes with the key deliver them.

        Signals older than an hour are deleted, because perhaps no process has their key.
        """
        sealed = [
            (item.entry_id, flow)
            for flow, some in said.items()
            for item in some
            if isinstance(item, Said)
            and item.member is None
            and is_for_others(self.client, item.record.detail)
        ]
        if not sealed:
            return set()
        oldest_ms = self.client.clock_ms() - SEALED_FOR_MS
        return {flow for entry_id, flow in sealed if int(entry_id.partition("-")[0]) > oldest_ms}

    def _sending(self, read_at: int) -> Sending:
        until = read_at + round(GIVE_UP_S * 1e9)
        read = self._clock
        confirmation = SharedConfirmation(self.client)
        return Sending(
            self.client,
            lambda: read() < until,
            self.unapplied,
            confirmation,
            said=self._said_at.add,
            reminder=self._reminder,
        )

    def unapplied(self, queue: str, run: str) -> list[FlowChange]:
        """Return a run's undelivered outcomes from a queue's outbox."""
        changes = list[FlowChange]()
        for source in queue_at(self.client, queue).alone():
            after = ""
            while entries := source.flow_outbox(PER_CALL, after=after):
                after = entries[-1].entry_id
                some = self._changes(source, heard(entries).get(run, ()))
                changes += [change for change in some if change.kind in ENDINGS.values()]
        return changes

    def _apply(self, queue: Queue, store: FlowStore, said: Sequence[Said | Done]) -> Applied:
        applied = None
        for some in in_calls(self._changes(queue, said)):
            applied = store.apply(f"q{base_of(queue.name)}", some)
            # A rejected entry may have a result that the flow needs later, after a check has repaired the flow.
            if not applied.refused:
                self._kept += [
                    queue.result_key(store.member(change.step, change.number).mid)
                    for change in some
                    if change.kind == "done" and change.detail is not None
                ]
        return applied or store.apply(f"q{base_of(queue.name)}", [])

    def _changes(self, queue: Queue, said: Sequence[Said | Done]) -> list[FlowChange]:
        mids = [
            item.record.subject
            for item in said
            if isinstance(item, Said) and item.record.kind == "done+"
        ]
        results, changes = results_at(queue, mids), list[FlowChange]()
        for item in said:
            if isinstance(item, Done):
                numbers = tuple(item.numbers)
                changes.append(FlowChange("done", item.step, entry=item.entry_id, members=numbers))
            elif item.member is not None:
                kind, result = ENDINGS[item.record.kind], results.get(item.record.subject)
                changes.append(ending(item.member, kind, result, item.entry_id))
            else:
                changes += self._said(base_of(queue.name), item.record, item.entry_id)
        return changes

    def _said(self, queue: str, record: OutboxRecord, entry_id: str) -> Iterator[FlowChange]:
        if record.kind == "look":
            # 'look' only requests work that is due, so its sender doesn't need a key.
            yield FlowChange("look", "", 0, None, entry_id)
            return
        text = record.detail.decode("utf-8", "replace")
        try:
            detail = announced(self.client, queue, record.kind, record.subject, text)
        except CodecError as error:
            _log.warning("flow %s rejected a %s: %s", record.subject, record.kind, error)
            return
        if record.kind == "signal":
            step, _, said = detail.partition(SEPARATOR)
            value = said.encode()
            if len(value) > MAX_RESULT_BYTES:
                _log.error(
                    "signal %s of flow %s was dropped, because its value is over 64 KiB",
                    step,
                    record.subject,
                )
            else:
                yield FlowChange("signal", step, 0, value, entry_id)
        else:
            step = detail if record.kind == "retry" else ""
            yield FlowChange(record.kind, step, 0, None, entry_id)


def _is_damage(error: Exception) -> bool:
    """Return whether the error shows that a flow's keys are damaged, rather than that the server can't be reached."""
    if not isinstance(error, ScriptError):
        return not isinstance(error, UnconfirmableError)
    return any(words in str(error) for words in ("WRONGTYPE", " must be "))


def _only_looks(entries: Sequence[OutboxEntry]) -> bool:
    return all(record.kind == "look" for entry in entries for record in entry.records)
