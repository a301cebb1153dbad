"""What a flow has to send: its steps to their queues, words to its sub-flows and to its parent.

Each item is sent before the flow forgets it, so it may be sent again by another drainer. That does no harm: a queue
notes for an hour that it has accepted a step, and the mid of a step is taken while its message lives, for
an hour after it is done, and while it is dead. An item that was answered before is looked for first: what its queue
has to say about it may not have reached the flow yet.
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
from jobq.flows.store import MOST_SECONDS, FlowStore
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

#: How long the mid of a step that is done stays taken.
DEDUPE_S = 3_600.0
#: Sub-flows in sub-flows, at most.
DEEPEST = 16
#: How much longer a sub-flow waits for its begin than its parent is kept, whose retry begins it.
LONGER_MS = 86_400_000
#: Pages of members that one call cancels or revives. The next one goes on, so that a long map stops no worker.
PAGES_PER_CALL = 100
#: Sub-flows that are looked at together.
SUBS_TOGETHER = 100
#: Members that are revived together.
REVIVED_TOGETHER = PER_CHUNK
_log = logging.getLogger("jobq.flows")


class Sending(NamedTuple):
    """How to send. may_go: False once too long ago was read what is sent. unapplied: what a queue has to say.

    confirmation: of what flows take in and forget. said: called with the queue where something was said to another
    flow. reminder: of what waits.
    """

    client: Client
    may_go: Callable[[], bool]
    unapplied: Callable[[str, str], Sequence[FlowChange]]
    confirmation: SharedConfirmation
    depth: int = 0
    said: Callable[[str], object] = bool
    reminder: Reminder | None = None


class StepSender:
    """Sends what one flow answers. run: the flow and its run id; of the flow alone, the run that answers first."""

    def __init__(self, sending: Sending, run: str) -> None:
        self._sending, self._client = sending, sending.client
        self.store = FlowStore(sending.client, run, sending.confirmation)
        self.flow = self.store.flow
        #: Stamps of what no other drainer has sent without a trace.
        self._known: set[int] = set()
        self._pages = PAGES_PER_CALL

    @property
    def has_more(self) -> bool:
        """Whether it stopped because it did enough for one call: the next one should come soon."""
        return self._pages <= 0

    def send_all(self, applied: Applied) -> bool:
        """Send what is to be sent, until nothing is; whether all was."""
        self.store.run_id = self.store.run_id or applied.run_id
        while applied.todo:
            doubtful = [one for one in applied.todo if one.again and one.stamp not in self._known]
            self._known.update(one.stamp for one in applied.todo)
            if doubtful:
                applied = self._look_for(doubtful)
                continue
            sent = [one for one in applied.todo if self._sending.may_go() and self._send(one)]
            if not sent:
                return False
            applied = self.store.sent(sent)
            if {one.stamp for one in sent} & {one.stamp for one in applied.todo}:
                return False
        return True

    def _look_for(self, doubtful: Sequence[TodoItem]) -> Applied:
        """Apply what the queues of these items have to say; what is still to be sent."""
        for queue in sorted({one.queue for one in doubtful if one.queue}):
            try:
                apply_all(self.store, queue, self._sending.unapplied(queue, self.store.run))
            except ScriptError as error:
                # Nothing is sent there either, by this user.
                if not is_denied(error):
                    raise
        return self.store.apply("q", [])

    def _send(self, item: TodoItem) -> bool:
        """Send one item; False if that must wait."""
        try:
            return _SENDING[item.todo](self, item)
        except KeyFullError as error:
            reminder = self._sending.reminder
            if reminder is None or reminder.is_due((self.flow, item.step)):
                _log.warning("step %s of flow %s waits for room: %s", item.step, self.flow, error)
            return False
        except UnconfirmableError:
            raise
        except ScriptError as error:
            if not is_denied(error):
                raise
            # A worker of other queues alone, which may be the only one that is asked: its other flows go on.
            _log.info(
                "step %s of flow %s waits for a worker that may write to queue %s: %s",
                item.step, self.flow, item.queue, error,
            )  # fmt: skip
            return False
        except (CodecError, ConfigError) as error:
            _log.error("step %s of flow %s can't be sent: %s", item.step, self.flow, error)
            self._failed(item, str(error))
            return True

    def _failed(self, item: TodoItem, why: str = "") -> None:
        """What can't be sent has failed, so that nothing waits for it without end. why: for people."""
        source = f"f{item.source}" if item.kind == "flow" else f"q{item.queue}"
        number = self._failing_member(item.step) if item.kind == "map" else 0
        self._fail(source, item.step, number, why)

    def fail_map(self, queue: str, step: str, why: str) -> None:
        """End a map that its producer can't complete. why: for people."""
        self._fail(f"q{queue}", step, self._failing_member(step), why)

    def _fail(self, source: str, step: str, number: int, why: str) -> None:
        detail = why[:200].encode("utf-8", "replace")
        self.store.apply(source, [FlowChange("dead", step, number, detail)])

    def _failing_member(self, step: str) -> int:
        """Seal a map that can't be expanded any further; the number of a member that stands for the rest."""
        found = self.store.reserve(step, 0, 1)
        for chunk in (found.chunks, found.chunks - 1):
            if found.outcome not in ("added", "other"):
                break
            found = self.store.reserve(step, chunk, 1)
        self.store.seal(step, found.chunks)
        return found.first

    # One function for each kind of item. Each may be interrupted anywhere, and called again.

    def _enqueue(self, item: TodoItem, *, is_retry: bool = False) -> bool:
        options = _options(item.options)
        check_step(self._client, self.flow, item)
        queue, member = queue_at(self._client, item.queue), self.store.member(item.step)
        due_ms = 0.0
        if "at" in options:
            due_ms = options["at"] * 1000
        elif "delay" in options:
            due_ms = wall.ms() + options["delay"] * 1000
        content = message_of(self._client, item.queue, member, item.call, due_ms)
        if not self._sending.may_go():
            return False
        options |= {"until": DEDUPE_S, "is_retry": is_retry}
        self._accept(queue, [(member.mid, content)], **options)
        return True

    def _expand(self, item: TodoItem) -> bool:
        """Enqueue the members of a map that waited."""
        options, queue = _options(item.options), queue_at(self._client, item.queue)
        check_step(self._client, self.flow, item)
        chunks, chunk = self._chunks_of(item), 0
        while True:
            contents = chunks(chunk)
            if not contents:
                sealed = self.store.seal(item.step, chunk)
                if sealed == "other":
                    raise ConfigError(
                        f"map {item.step} was expanded to other members before; retry its flow under another id"
                    )
                return True
            if not self._sending.may_go():
                return False
            found = self.add_chunk(queue, item.step, chunk, contents, options)
            if found.outcome in ("sealed", "closed"):
                return True
            # Where an earlier call stopped, if it found no room.
            chunk = max(chunk + 1, found.chunks - 1)

    def _chunks_of(self, item: TodoItem) -> Callable[[int], Sequence[Content]]:
        client, step, queue = self._client, item.step, item.queue
        if item.source == "items":

            def stored(chunk: int) -> list[Content]:
                found = self.store.items(step, queue, chunk)
                members = [
                    self.store.member(step, number)
                    for number in range(chunk * PER_CHUNK, chunk * PER_CHUNK + len(found))
                ]
                return [
                    (member.mid, message_of(client, queue, member, call))
                    for member, call in zip(members, found, strict=True)
                ]

            return stored
        values = self._listed(item.source.removeprefix("="))

        def made(chunk: int) -> list[Content]:
            first = chunk * PER_CHUNK
            some = values[first : first + PER_CHUNK]
            member = self.store.member(step, first)
            return list(messages_of_items(client, queue, member, item.call, some))

        return made

    def _listed(self, step: str) -> list[Any]:
        """What a step returned, which must be a list."""
        name, mid = f"{step}:0", self.store.member(step).mid
        raw, facts = self.store.results([name]).get(name), self.store.facts()
        queue = next((one.queue for one in facts.steps if one.name == step), "") if facts else ""
        if raw is None:
            raise CodecError(f"no result of step {step} of flow {self.flow} is kept")
        seal = seal_of(self._client)
        value = decode_result(opened(seal and seal.of("result"), queue, mid, raw), step, mid)
        if not isinstance(value, list):
            raise CodecError(f"step {step} returned {type(value).__name__}, and a map takes a list")
        return value

    def add_chunk(
        self,
        queue: Queue,
        step: str,
        chunk: int,
        contents: Sequence[Content],
        options: Mapping[str, Any],
    ) -> Reserved:
        """Enqueue one chunk of a map; of one in doubt the members that haven't ended."""
        found = self.store.reserve(step, chunk, len(contents))
        if found.outcome == "new":
            self._accept(queue, contents, **options)
        elif found.outcome == "doubt":
            apply_all(self.store, queue.name, self._sending.unapplied(queue.name, self.store.run))
            page = self.store.page(step, "live", found.first)
            left = {number - found.first for number in page.numbers}
            rows = [one for place, one in enumerate(contents) if place in left]
            self._accept(queue, rows, **options)
        return found

    def _accept(self, queue: Queue, rows: Sequence[Content], **options: Any) -> None:
        enqueue_members(self.store, queue, rows, self._sending.unapplied, **options)

    def _begin(self, item: TodoItem) -> bool:
        """Begin a sub-flow, which was stored with its parent."""
        child = self._child(item)
        if child is None:
            self._failed(item, f"flow {item.source} is gone, or was stored for another flow")
        else:
            self._say(child, "begin")
        return True

    def _child(self, item: TodoItem) -> FlowFacts | None:
        """The flow that a step is; None if it is gone, or of another flow."""
        child = FlowStore(self._client, item.source).facts()
        return child if child and child.parent == f"{self.store.run}.{item.step}" else None

    def _cancel(self, item: TodoItem) -> bool:
        if item.kind == "flow":
            child = self._child(item)
            if child is None or child.ended_at:
                self.store.apply(f"f{item.source}", [FlowChange("cancelled", item.step)])
                return True
            self._say(child, "cancel")
            return True
        queue, cursor = queue_at(self._client, item.queue), 0
        while cursor >= 0:
            if self.has_more or not self._sending.may_go():
                return False
            page = self.store.page(item.step, "live", cursor)
            cursor = page.cursor
            mids = [self.store.member(item.step, one).mid for one in page.numbers]
            if mids:
                self._pages -= 1
                queue.cancel(*mids)
                # Those that had ended before are among them, and change nothing then.
                gone = [FlowChange("cancelled", item.step, one) for one in page.numbers]
                self.store.apply(f"q{item.queue}", gone)
        return True

    def _drop(self, item: TodoItem) -> bool:
        # Another drainer may be about to enqueue this timer: once it was accepted, its queue refuses it.
        if not self._enqueue(item):
            return False
        queue_at(self._client, item.queue).cancel(self.store.member(item.step).mid)
        return True

    def _revive(self, item: TodoItem) -> bool:
        if item.kind == "flow":
            return self._retry_child(item)
        # What ended before this must not end what runs again: not even if a drainer that stood still says it later.
        queue = queue_at(self._client, item.queue)
        mark = queue.announce("look", self.store.run, durability="memory")
        apply_all(self.store, item.queue, self._sending.unapplied(item.queue, self.store.run))
        cursor = 0
        while cursor >= 0:
            if self.has_more or not self._sending.may_go():
                return False
            page = self.store.page(item.step, "revive", cursor, REVIVED_TOGETHER)
            cursor = page.cursor
            if page.numbers:
                self._pages -= 1
                if self._is_taken_over(item, page.numbers, mark):
                    return True
                self._revive_some(item, page.numbers)
        return True

    def _is_taken_over(self, item: TodoItem, numbers: Sequence[int], mark: str) -> bool:
        """Note that these members run again; whether another drainer has revived all of the item.

        The next drainer begins with them, if this one dies.
        """
        first, stamp = numbers[0], item.stamp
        return self.store.retried(item.step, numbers, stamp=stamp, cursor=first, mark=mark) < 0

    def _revive_some(self, item: TodoItem, numbers: Sequence[int]) -> None:
        queue = queue_at(self._client, item.queue)
        mids = {self.store.member(item.step, one).mid: one for one in numbers}
        where = keys.key(queue.prefix, "last_dead")
        dead_ids = self._client.command("HMGET", where, *mids)
        found = {mid: raw.decode() for mid, raw in zip(mids, dead_ids, strict=True) if raw}
        revived = dict(zip(found, queue.admin.revive(*found.values()), strict=True))
        if found and (
            missing := self._sending.confirmation.missing_at(f"{queue.prefix}call:{new_id()}~")
        ):
            raise NotDurableError(f"{len(found)} members were revived, but not durably: {missing}")
        others = [mid for mid in mids if revived.get(mid) not in ("revived", "exists")]
        if not others:
            return
        # One that a person revived may be done since, and the flow may not know it yet.
        apply_all(self.store, item.queue, self._sending.unapplied(item.queue, self.store.run))
        failed = set(self.store.page(item.step, "failed", min(numbers)).numbers)
        others = [mid for mid in others if mids[mid] in failed]
        if item.kind != "map" and others:
            # Its message is gone: it was cancelled, or a person purged it.
            self._enqueue(item, is_retry=True)
        gone = [
            FlowChange("dead", item.step, mids[mid], PURGED.encode())
            for mid, word in statuses(queue, others).items()
            if word not in LIVE
        ]
        if gone:
            self.store.apply(f"q{item.queue}", gone)

    def _say(self, child: FlowFacts, word: Word) -> None:
        """Say it to a sub-flow."""
        announce(self._client, child.queue, word, child.run)
        self._sending.said(child.queue)

    def _retry_child(self, item: TodoItem) -> bool:
        child = self._child(item)
        below = FlowStore(self._client, child.run) if child else None
        # How it ended before must not reach this flow again behind the mark: it would end the retry here.
        if below and (told := [one for one in below.apply("q", []).todo if one.todo == "parent"]):
            self.store.apply(f"f{item.source}", _ends_told(told[0], item.step))
            if not self._is_durable(self._sending.confirmation.missing()):
                return False
            below.sent(told)
        self.store.retried(item.step, [0])
        child = below.facts() if below else None
        if child is None or child.state in ("cancelled", "open"):
            self._failed(item)
        elif child.state == "done":
            self.store.apply(f"f{item.source}", [FlowChange("done", item.step)])
        else:
            self._say(child, "retry")
        return True

    def _tell_parent(self, item: TodoItem) -> bool:
        """Say to the flow that this one is a step of how it ended, and send what that brings."""
        parent, _, step = item.source.rpartition(".")
        changes = _ends_told(item, step)
        if not changes or not parent or self._sending.depth >= DEEPEST:
            return True
        above = StepSender(self._sending._replace(depth=self._sending.depth + 1), parent)
        if not above.send_all(above.store.apply(f"f{self.flow}", changes)):
            return False
        # This flow forgets that it has said so, and the parent may be at another node.
        return self._is_durable(self._sending.confirmation.missing())

    def _tell_subs(self, item: TodoItem) -> bool:
        """End sub-flows whose steps never begin. Those that a retry may begin wait while one may come."""
        state, facts = item.options.decode("utf-8", "replace"), self.store.facts()
        if facts is None:
            return True
        life_ms = facts.keep_ms + LONGER_MS if state == "failed" else LONG_LIFE_MS
        for child in self._not_begun(facts):
            if not self._sending.may_go():
                return False
            if state in ("running", "failed"):
                self._set_life(child, item.stamp, life_ms)
            elif not child.ended_at:
                self._say(child, "cancel")
        return True

    def _not_begun(self, facts: FlowFacts) -> Iterator[FlowFacts]:
        """The flows that were stored for steps of a flow and have not begun."""
        left = (one for one in facts.steps if one.kind == "flow" and not one.ready_at)
        while some := list(islice(left, SUBS_TOGETHER)):
            calls = [FlowStore(self._client, one.flow).facts_call() for one in some]
            for step, child in zip(some, run_all(self._client, calls), strict=True):
                # Another flow may have stored one under this id.
                if child is not None and child.parent == f"{facts.run}.{step.name}":
                    yield child

    def _set_life(self, child: FlowFacts, stamp: int, life_ms: int, depth: int = 0) -> None:
        """Let a sub-flow, and those in it, wait so long for their begin."""
        store = FlowStore(self._client, child.run, self._sending.confirmation)
        if store.set_life(child.parent, stamp, life_ms) == "ok" and depth < DEEPEST:
            for below in self._not_begun(child):
                self._set_life(below, stamp, life_ms, depth + 1)

    def _is_durable(self, missing: str) -> bool:
        if missing:
            _log.warning("what flow %s sent is not durable: %s", self.flow, missing)
        return not missing


_SENDING: dict[str, Callable[[StepSender, TodoItem], bool]] = {
    "send": StepSender._enqueue,
    "map": StepSender._expand,
    "flow": StepSender._begin,
    "cancel": StepSender._cancel,
    "drop": StepSender._drop,
    "revive": StepSender._revive,
    "parent": StepSender._tell_parent,
    "subs": StepSender._tell_subs,
}


def _ends_told(item: TodoItem, step: str) -> list[FlowChange]:
    """How the step ended that is the flow which has this word for its parent; [] if it goes on."""
    state = item.options.decode("utf-8", "replace")
    return [FlowChange("done" if state == "done" else "dead", step)] if state in FLOW_OVER else []


def _options(raw: bytes) -> dict[str, Any]:
    """How a step's messages are enqueued. Raises CodecError for bytes that no definition makes."""
    try:
        given = json.loads(raw)
        found = {
            name: given[name]
            for name in ("delay", "at", "lease", "key", "ordered")
            if given.get(name) is not None
        }
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CodecError(f"options of a step can't be read: {raw!r:.80}") from error
    numbers = [found.get(name) for name in ("delay", "at", "lease")]
    known = [one for one in numbers if one is not None]
    if not all(isinstance(one, int | float) and 0 <= one < MOST_SECONDS for one in known):
        raise CodecError(f"options of a step can't be used: {raw!r:.80}")
    return found
