"""Enqueues a flow's ready steps, and sends signals to the flow's sub-flows and parent.

Each item is sent before it is deleted from the flow, so another drainer may send the item again. A second enqueue is
harmless, because a queue rejects a repeated step for an hour. If an item may already have been sent, outcomes in the
queue's outbox are applied first.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from jobq.client.clock import Reminder, wall
from jobq.client.connection import Client
from jobq.client.numbered_calls import is_denied, new_id
from jobq.client.pipelining import run_all
from jobq.errors import (
    CodecError,
    ConfigError,
    KeyFullError,
    NotDurableError,
    ScriptError,
)
from jobq.flows.accepting import LIVE, apply_all, enqueue_members, statuses
from jobq.flows.announcing import Word, announce, queue_at
from jobq.flows.contents import message_of, messages_of_items
from jobq.flows.rights import check_step
from jobq.flows.state import FLOW_OVER, FlowFacts
from jobq.flows.store import MAX_SECONDS, FlowStore
from jobq.flows.types import (
    LONG_LIFE_MS,
    PER_CHUNK,
    PURGED,
    Applied,
    FlowChange,
    Reserved,
    TodoItem,
)
from jobq.jobs.results import decode_result
from jobq.jobs.signing import opened, seal_of
from jobq.queue import keys
from jobq.queue.durability import SharedConfirmation, UnconfirmableError
from jobq.queue.queue import Content, Queue

#: How long the mid of a done step stays taken.
DEDUPE_S = 3_600.0
#: Maximum nesting depth of sub-flows.
DEEPEST = 16
#: How much longer than its failed parent a sub-flow is kept, because a retry of the parent may begin the sub-flow.
LONGER_MS = 86_400_000
#: Maximum pages of members to cancel or revive per call. The next call continues, so a long map doesn't block a
#: worker.
PAGES_PER_CALL = 100
#: Number of sub-flows to read together.
SUBS_TOGETHER = 100
#: Number of members to revive together.
REVIVED_TOGETHER = PER_CHUNK
_log = logging.getLogger("jobq.flows")


class Sending(NamedTuple):
    """Shared parameters for sending the items of a flow.

    Attributes:
        may_go: Returns whether the pending items were read recently enough to be sent.
        unapplied: Returns the changes in a queue's outbox that the flow doesn't have yet.
        confirmation: Confirms the changes of all flows.
        said: Called with the name of each queue through which a signal was sent.
        reminder: Limits how often waiting items are logged.
    """

    client: Client
    may_go: Callable[[], bool]
    unapplied: Callable[[str, str], Sequence[FlowChange]]
    confirmation: SharedConfirmation
    depth: int = 0
    said: Callable[[str], object] = bool
    reminder: Reminder | None = None


class StepSender:
    """Sends the pending items of one flow.

    Args:
        run: The flow with its run id. Without a run id, the run is taken from the first reply.
    """

    def __init__(self, sending: Sending, run: str) -> None:
        self.sending, self.client = sending, sending.client
        self.store = FlowStore(sending.client, run, sending.confirmation)
        self.flow = self.store.flow
        #: Stamps of items that don't need another check of their queues before they are sent.
        self._known: set[int] = set()
        #: Pages of members that this call may still cancel or revive.
        self.pages = PAGES_PER_CALL

    @property
    def has_more(self) -> bool:
        """Whether items are left because one call sends only a limited number. If so, call again soon."""
        return self.pages <= 0

    def send_all(self, applied: Applied) -> bool:
        """Send all pending items; return False if some items must wait."""
        self.store.run_id = self.store.run_id or applied.run_id
        while applied.todo:
            doubts = [item for item in applied.todo if item.again and item.stamp not in self._known]
            self._known.update(item.stamp for item in applied.todo)
            if doubts:
                applied = self._look_for(doubts)
                continue
            sent = [item for item in applied.todo if self.sending.may_go() and self._send(item)]
            if not sent:
                return False
            applied = self.store.sent(sent)
            if {item.stamp for item in sent} & {item.stamp for item in applied.todo}:
                return False
        return True

    def _look_for(self, doubtful: Sequence[TodoItem]) -> Applied:
        """Apply outcomes from the outboxes of the items' queues. Return the items that must still be sent."""
        for queue in sorted({item.queue for item in doubtful if item.queue}):
            try:
                apply_all(self.store, queue, self.sending.unapplied(queue, self.store.run))
            except ScriptError as error:
                # This user can't send to that queue either.
                if not is_denied(error):
                    raise
        return self.store.apply("q", [])

    def _send(self, item: TodoItem) -> bool:
        """Send one item, or fail its step if the item can't be sent; return False if the item must wait."""
        try:
            kinds = _SUB_FLOW_SENDERS if item.kind == "flow" else _SENDERS
            return kinds[item.todo](self, item).send()
        except KeyFullError as error:
            reminder = self.sending.reminder
            if reminder is None or reminder.is_due((self.flow, item.step)):
                _log.warning(
                    "step %s of flow %s is waiting for room: %s", item.step, self.flow, error
                )
            return False
        except UnconfirmableError:
            raise
        except ScriptError as error:
            if not is_denied(error):
                raise
            # This worker may be the only active drainer, so its other flows must continue.
            _log.info(
                "step %s of flow %s is waiting for a worker with the right to write to queue %s: %s",
                item.step, self.flow, item.queue, error,
            )  # fmt: skip
            return False
        except (CodecError, ConfigError) as error:
            _log.error("step %s of flow %s can't be sent: %s", item.step, self.flow, error)
            self.fail(item, str(error))
            return True

    def fail(self, item: TodoItem, why: str = "") -> None:
        """Fail the step of an item that can't be sent, so that later steps don't wait forever.

        `why` is the error that users see.
        """
        source = f"f{item.source}" if item.kind == "flow" else f"q{item.queue}"
        number = self._failing_member(item.step) if item.kind == "map" else 0
        self._fail(source, item.step, number, why)

    def fail_map(self, queue: str, step: str, why: str) -> None:
        """Fail an incomplete map; `why` is the error that users see."""
        self._fail(f"q{queue}", step, self._failing_member(step), why)

    def _fail(self, source: str, step: str, number: int, why: str) -> None:
        detail = why[:200].encode("utf-8", "replace")
        self.store.apply(source, [FlowChange("dead", step, number, detail)])

    def _failing_member(self, step: str) -> int:
        """Close an incomplete map to new members. Return the number of a member that represents the missing members."""
        reserved = self.store.reserve(step, 0, 1)
        for chunk in (reserved.chunks, reserved.chunks - 1):
            if reserved.outcome not in ("added", "other"):
                break
            reserved = self.store.reserve(step, chunk, 1)
        self.store.seal(step, reserved.chunks)
        return reserved.first

    def add_chunk(
        self,
        queue: Queue,
        step: str,
        chunk: int,
        contents: Sequence[Content],
        options: Mapping[str, Any],
    ) -> Reserved:
        """Enqueue one chunk of a map. If it may already be enqueued, enqueue only members that haven't ended."""
        reserved = self.store.reserve(step, chunk, len(contents))
        if reserved.outcome == "new":
            self.accept(queue, contents, **options)
        elif reserved.outcome == "doubt":
            apply_all(self.store, queue.name, self.sending.unapplied(queue.name, self.store.run))
            page = self.store.page(step, "live", reserved.first)
            left = {number - reserved.first for number in page.numbers}
            rows = [content for place, content in enumerate(contents) if place in left]
            self.accept(queue, rows, **options)
        return reserved

    def accept(self, queue: Queue, rows: Sequence[Content], **options: Any) -> None:
        """Enqueue members of the flow."""
        enqueue_members(self.store, queue, rows, self.sending.unapplied, **options)


class ItemSender:
    """Sends one item of a flow. `send` may be interrupted at any point and called again."""

    def __init__(self, sender: StepSender, item: TodoItem) -> None:
        self.sender, self.item = sender, item
        self.sending, self.client, self.store = sender.sending, sender.client, sender.store

    def send(self) -> bool:
        """Send the item; return False if it must wait."""
        raise NotImplementedError

    def say(self, child: FlowFacts, word: Word) -> None:
        """Send a signal to a sub-flow, through the outbox of its queue."""
        announce(self.client, child.queue, word, child.run)
        self.sending.said(child.queue)

    def is_durable(self, missing: str) -> bool:
        """Return True if `missing` is empty. Otherwise, log that messages aren't durable."""
        if missing:
            _log.warning("flow %s sent messages that are not durable: %s", self.store.flow, missing)
        return not missing


class EnqueueStep(ItemSender):
    """Enqueues a step whose dependencies have ended."""

    def send(self) -> bool:
        """Enqueue the step; return False if it must wait."""
        return self.enqueue()

    def enqueue(self, is_retry: bool = False) -> bool:
        """Enqueue the step; return False if it must wait."""
        options = _options(self.item.options)
        check_step(self.client, self.store.flow, self.item)
        queue, member = queue_at(self.client, self.item.queue), self.store.member(self.item.step)
        due_ms = 0.0
        if "at" in options:
            due_ms = options["at"] * 1000
        elif "delay" in options:
            due_ms = wall.ms() + options["delay"] * 1000
        content = message_of(self.client, self.item.queue, member, self.item.call, due_ms)
        if not self.sending.may_go():
            return False
        options |= {"until": DEDUPE_S, "is_retry": is_retry}
        self.sender.accept(queue, [(member.mid, content)], **options)
        return True


class ExpandMap(ItemSender):
    """Enqueues the members of a map after the map's dependencies are done."""

    def send(self) -> bool:
        """Enqueue the members in chunks, starting where an earlier call stopped."""
        options, queue = _options(self.item.options), queue_at(self.client, self.item.queue)
        check_step(self.client, self.store.flow, self.item)
        chunks, chunk = self._chunks(), 0
        while True:
            contents = chunks(chunk)
            if not contents:
                sealed = self.store.seal(self.item.step, chunk)
                if sealed == "other":
                    raise ConfigError(
                        f"map {self.item.step} was already expanded to different members; start the flow with another "
                        f"id"
                    )
                return True
            if not self.sending.may_go():
                return False
            reserved = self.sender.add_chunk(queue, self.item.step, chunk, contents, options)
            if reserved.outcome in ("sealed", "closed"):
                return True
            # Continue where an earlier call stopped, if that call found no room.
            chunk = max(chunk + 1, reserved.chunks - 1)

    def _chunks(self) -> Callable[[int], Sequence[Content]]:
        client, step, queue = self.client, self.item.step, self.item.queue
        if self.item.source == "items":

            def stored(chunk: int) -> list[Content]:
                items = self.store.items(step, queue, chunk)
                members = [
                    self.store.member(step, number)
                    for number in range(chunk * PER_CHUNK, chunk * PER_CHUNK + len(items))
                ]
                return [
                    (member.mid, message_of(client, queue, member, call))
                    for member, call in zip(members, items, strict=True)
                ]

            return stored
        values = self._listed(self.item.source.removeprefix("="))

        def made(chunk: int) -> list[Content]:
            first = chunk * PER_CHUNK
            some = values[first : first + PER_CHUNK]
            member = self.store.member(step, first)
            return list(messages_of_items(client, queue, member, self.item.call, some))

        return made

    def _listed(self, step: str) -> list[Any]:
        """Return a step's result. Raises CodecError if it isn't a list."""
        name, mid = f"{step}:0", self.store.member(step).mid
        raw, facts = self.store.results([name]).get(name), self.store.facts()
        queue = next((node.queue for node in facts.steps if node.name == step), "") if facts else ""
        if raw is None:
            raise CodecError(f"step {step} of flow {self.store.flow} has no stored result")
        seal = seal_of(self.client)
        value = decode_result(opened(seal and seal.of("result"), queue, mid, raw), step, mid)
        if not isinstance(value, list):
            raise CodecError(f"step {step} returned {type(value).__name__}, but a map needs a list")
        return value


class CancelMembers(ItemSender):
    """Cancels the messages of a step."""

    def send(self) -> bool:
        """Cancel the step's running and waiting messages in batches."""
        queue, cursor = queue_at(self.client, self.item.queue), 0
        while cursor >= 0:
            if self.sender.has_more or not self.sending.may_go():
                return False
            page = self.store.page(self.item.step, "live", cursor)
            cursor = page.cursor
            mids = [self.store.member(self.item.step, number).mid for number in page.numbers]
            if mids:
                self.sender.pages -= 1
                queue.cancel(*mids)
                # These changes include members that had already ended; such changes have no effect.
                gone = [FlowChange("cancelled", self.item.step, number) for number in page.numbers]
                self.store.apply(f"q{self.item.queue}", gone)
        return True


class DropTimer(EnqueueStep):
    """Cancels a timer that is no longer needed."""

    def send(self) -> bool:
        """Enqueue the timer before cancelling it, so that its queue rejects the same timer from another drainer."""
        if not self.enqueue():
            return False
        queue_at(self.client, self.item.queue).cancel(self.store.member(self.item.step).mid)
        return True


class ReviveMembers(EnqueueStep):
    """Revives the failed members of a step, for a retry of the flow."""

    def send(self) -> bool:
        """Revive the dead members in batches."""
        # Earlier ends must not end the new run, even if a stalled drainer delivers them later.
        queue = queue_at(self.client, self.item.queue)
        # Partitions on nodes with different clocks have different ids. An end of the new run must never come before the
        # mark.
        marks = [
            place.announce("look", self.store.run, durability="memory") for place in queue.alone()
        ]
        mark = min(marks, key=_order_of)
        apply_all(
            self.store, self.item.queue, self.sending.unapplied(self.item.queue, self.store.run)
        )
        cursor = 0
        while cursor >= 0:
            if self.sender.has_more or not self.sending.may_go():
                return False
            page = self.store.page(self.item.step, "revive", cursor, REVIVED_TOGETHER)
            cursor = page.cursor
            if page.numbers:
                self.sender.pages -= 1
                if self._is_taken_over(page.numbers, mark):
                    return True
                self._revive_some(page.numbers)
        return True

    def _is_taken_over(self, numbers: Sequence[int], mark: str) -> bool:
        """Record that these members run again; return True if another drainer has already revived them all.

        If this drainer dies, the next drainer begins with these members.
        """
        first, stamp = numbers[0], self.item.stamp
        return self.store.retried(self.item.step, numbers, stamp=stamp, cursor=first, mark=mark) < 0

    def _revive_some(self, numbers: Sequence[int]) -> None:
        queue = queue_at(self.client, self.item.queue)
        mids = {self.store.member(self.item.step, number).mid: number for number in numbers}
        dead, prefixes = dict[str, str](), list[str]()
        for place in queue.alone():
            where = keys.key(place.prefix, "last_dead")
            dead_ids = self.client.command("HMGET", where, *mids)
            if any(dead_ids):
                prefixes.append(place.prefix)
            dead |= {mid: raw.decode() for mid, raw in zip(mids, dead_ids, strict=True) if raw}
        revived = dict(zip(dead, queue.admin.revive(*dead.values()), strict=True))
        # Partitions may be on different nodes.
        for prefix in prefixes:
            if missing := self.sending.confirmation.missing_at(f"{prefix}call:{new_id()}~"):
                raise NotDurableError(
                    f"{len(dead)} members were revived, but not durably: {missing}"
                )
        others = [mid for mid in mids if revived.get(mid) not in ("revived", "exists")]
        if not others:
            return
        # A member that a person revived may already be done, and the flow may not know it yet.
        apply_all(
            self.store, self.item.queue, self.sending.unapplied(self.item.queue, self.store.run)
        )
        failed = set(self.store.page(self.item.step, "failed", min(numbers)).numbers)
        others = [mid for mid in others if mids[mid] in failed]
        if self.item.kind != "map" and others:
            # Its message is gone: it was cancelled, or a person purged it.
            self.enqueue(is_retry=True)
        gone = [
            FlowChange("dead", self.item.step, mids[mid], PURGED.encode())
            for mid, word in statuses(queue, others).items()
            if word not in LIVE
        ]
        if gone:
            self.store.apply(f"q{self.item.queue}", gone)


class SubFlowSender(ItemSender):
    """Sends signals to the sub-flow of a step."""

    def child(self) -> FlowFacts | None:
        """Return the step's sub-flow; None if it is missing or belongs to another flow."""
        child = FlowStore(self.client, self.item.source).facts()
        return child if child and child.parent == f"{self.store.run}.{self.item.step}" else None


class BeginSubFlow(SubFlowSender):
    """Begins a sub-flow, which is stored before its parent begins."""

    def send(self) -> bool:
        """Send the signal 'begin' to the sub-flow. If the sub-flow is missing, fail the step."""
        child = self.child()
        if child is None:
            self.sender.fail(
                self.item, f"flow {self.item.source} was deleted, or belongs to another flow"
            )
        else:
            self.say(child, "begin")
        return True


class CancelSubFlow(SubFlowSender):
    """Cancels a sub-flow."""

    def send(self) -> bool:
        """Send 'cancel' to the sub-flow. If the sub-flow has ended or is missing, record its step as cancelled."""
        child = self.child()
        if child is None or child.ended_at:
            self.store.apply(f"f{self.item.source}", [FlowChange("cancelled", self.item.step)])
            return True
        self.say(child, "cancel")
        return True


class RetrySubFlow(SubFlowSender):
    """Retries the failed steps of a sub-flow, for a retry of its parent."""

    def send(self) -> bool:
        """Record the sub-flow's previous outcome in this flow, and then send 'retry' to the sub-flow."""
        child = self.child()
        below = FlowStore(self.client, child.run) if child else None
        # The sub-flow's earlier end must not reach this flow after the mark, because it would end the retry.
        if below and (told := [end for end in below.apply("q", []).todo if end.todo == "parent"]):
            self.store.apply(f"f{self.item.source}", _ends_told(told[0], self.item.step))
            if not self.is_durable(self.sending.confirmation.missing()):
                return False
            below.sent(told)
        self.store.retried(self.item.step, [0])
        child = below.facts() if below else None
        if child is None or child.state in ("cancelled", "open"):
            self.sender.fail(self.item)
        elif child.state == "done":
            self.store.apply(f"f{self.item.source}", [FlowChange("done", self.item.step)])
        else:
            self.say(child, "retry")
        return True


class TellParent(ItemSender):
    """Reports the outcome of a sub-flow to its parent."""

    def send(self) -> bool:
        """Report the outcome to the parent flow, and enqueue the parent's newly ready steps."""
        parent, _, step = self.item.source.rpartition(".")
        changes = _ends_told(self.item, step)
        if not changes or not parent or self.sending.depth >= DEEPEST:
            return True
        above = StepSender(self.sending._replace(depth=self.sending.depth + 1), parent)
        if not above.send_all(above.store.apply(f"f{self.store.flow}", changes)):
            return False
        # The report is deleted from this flow next, and the parent may be on another node.
        return self.is_durable(self.sending.confirmation.missing())


class TellSubFlows(ItemSender):
    """Cancels sub-flows that will never begin."""

    def send(self) -> bool:
        """Cancel sub-flows that will never begin. Extend the expiry of sub-flows that may still begin."""
        state, facts = self.item.options.decode("utf-8", "replace"), self.store.facts()
        if facts is None:
            return True
        life_ms = facts.keep_ms + LONGER_MS if state == "failed" else LONG_LIFE_MS
        for child in self._not_begun(facts):
            if not self.sending.may_go():
                return False
            if state in ("running", "failed"):
                self._set_life(child, self.item.stamp, life_ms)
            elif not child.ended_at:
                self.say(child, "cancel")
        return True

    def _not_begun(self, facts: FlowFacts) -> Iterator[FlowFacts]:
        """Yield the sub-flows that haven't begun."""
        left = (step for step in facts.steps if step.kind == "flow" and not step.ready_at)
        while some := list(islice(left, SUBS_TOGETHER)):
            calls = [FlowStore(self.client, step.flow).facts_call() for step in some]
            for step, child in zip(some, run_all(self.client, calls), strict=True):
                # Another flow may have stored a sub-flow under this id.
                if child is not None and child.parent == f"{facts.run}.{step.name}":
                    yield child

    def _set_life(self, child: FlowFacts, stamp: int, life_ms: int, depth: int = 0) -> None:
        """Set how long a sub-flow and its own sub-flows are kept while they haven't begun."""
        store = FlowStore(self.client, child.run, self.sending.confirmation)
        if store.set_life(child.parent, stamp, life_ms) == "ok" and depth < DEEPEST:
            for below in self._not_begun(child):
                self._set_life(below, stamp, life_ms, depth + 1)


_SENDERS: dict[str, type[ItemSender]] = {
    "send": EnqueueStep, "map": ExpandMap, "cancel": CancelMembers, "drop": DropTimer, "revive": ReviveMembers,
    "parent": TellParent, "subs": TellSubFlows,
}  # fmt: skip
#: Senders for steps that are sub-flows.
_SUB_FLOW_SENDERS: dict[str, type[ItemSender]] = _SENDERS | {
    "flow": BeginSubFlow, "cancel": CancelSubFlow, "revive": RetrySubFlow,
}  # fmt: skip


def _ends_told(item: TodoItem, step: str) -> list[FlowChange]:
    """Return the change that ends a sub-flow's step; [] if the sub-flow hasn't ended."""
    state = item.options.decode("utf-8", "replace")
    return [FlowChange("done" if state == "done" else "dead", step)] if state in FLOW_OVER else []


def _options(raw: bytes) -> dict[str, Any]:
    """Parse the options for enqueueing a step's messages; raise CodecError if they are invalid."""
    try:
        given = json.loads(raw)
        options = {
            name: given[name]
            for name in ("delay", "at", "lease", "key", "ordered")
            if given.get(name) is not None
        }
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CodecError(f"options of a step can't be read: {raw!r:.80}") from error
    numbers = [options.get(name) for name in ("delay", "at", "lease")]
    known = [number for number in numbers if number is not None]
    if not all(isinstance(number, int | float) and 0 <= number < MAX_SECONDS for number in known):
        raise CodecError(f"delay, at and lease of a step must be numbers of seconds: {raw!r:.80}")
    return options


def _order_of(entry_id: str) -> tuple[int, int]:
    """Parse the id of an entry into numbers that compare in the order of the stream."""
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number)
