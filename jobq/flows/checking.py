"""Repairs flows after a failover in which a server lost writes.

A flow may then lack outcomes that its queues still have. The check applies these outcomes again, which is harmless. If
a queue has also lost the message of a member, the check reports the member, and a person chooses the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

from jobq.client.connection import Client
from jobq.errors import BadRecordError
from jobq.events import decode
from jobq.flows.accepting import OVER, ending, results_at, statuses
from jobq.flows.draining import Drainer
from jobq.flows.identity import Member, member_mid
from jobq.flows.listing import flow_view, is_flow, take_off_list
from jobq.flows.state import FLOW_OVER, FlowView, StepView
from jobq.flows.store import FlowStore
from jobq.flows.types import PER_CHUNK, FlowChange
from jobq.queue import keys
from jobq.queue.queue import Queue

T = TypeVar("T")
Lost = Literal["done", "cancelled"]
#: Maximum number of members to report by id.
MAX_NAMED = 10
#: Maximum number of latest events to search for members' ends, and number of events per read.
MAX_EVENTS, EVENTS_PER_CALL = 20_000, 500
_ENDED = {
    "done": "done", "dead": "dead", "cancelled": "cancelled", "expired": "cancelled", "evicted": "cancelled",
    "purged": "cancelled",
}  # fmt: skip


class CheckedFlow(NamedTuple):
    """Result of a check.

    Attributes:
        ended: Number of ended members that this check reported to the flow.
        lost: Mids of the first lost members, which have neither a message nor an outcome.
        nlost: Number of lost members.
        state: State of the flow; '' if it is missing.
    """

    flow: str
    state: str
    ended: int = 0
    lost: tuple[str, ...] = ()
    nlost: int = 0


class FlowCheck:
    """Checks the flows of one server.

    Args:
        lost: Outcome to set for lost members; None only reports them.
    """

    def __init__(self, client: Client, lost: Lost | None = None) -> None:
        self._client, self._lost = client, lost
        self._drainer = Drainer(client)

    def drain(self, queue: str) -> int:
        """Deliver the records in a queue's outbox to its flows; return their number."""
        return self._drainer.drain(queue)

    def flow(self, flow: str) -> CheckedFlow:
        """Check a flow and its sub-flows, and apply missing outcomes from their queues."""
        return self._flow(flow, frozenset())

    def _flow(self, flow: str, within: frozenset[str], parent: str = "") -> CheckedFlow:
        """Check a flow.

        Args:
            parent: The `flow.run_id.step` for which the flow must have been stored; '' to check any flow.
        """
        view = flow_view(self._client, flow) if is_flow(flow) else None
        if view is None:
            take_off_list(self._client, flow)
        if view is None or parent not in ("", view.facts.parent):
            return CheckedFlow(flow, "")
        ended, lost = 0, list[str]()
        if view.facts.state != "open":
            for step in view.steps:
                if step.facts.kind == "flow" and step.facts.flow not in within:
                    number, gone = self._sub_flow(view, step, within | {flow})
                else:
                    number, gone = self._step(view, step)
                ended += number
                lost += gone
            self._drainer.look(flow)
        after = flow_view(self._client, flow)
        state = "" if after is None else after.state
        return CheckedFlow(flow, state, ended, tuple(lost[:MAX_NAMED]), len(lost))

    def _sub_flow(
        self, view: FlowView, step: StepView, within: frozenset[str]
    ) -> tuple[int, list[str]]:
        """Check a step that is a sub-flow. Returns the number of applied outcomes, and the mids of lost members."""
        if step.state != "running" or not is_flow(step.facts.flow):
            return 0, []
        checked = self._flow(step.facts.flow, within, f"{view.facts.run}.{step.name}")
        end: str | None = None if checked.state else self._lost
        if checked.state in FLOW_OVER:
            end = "done" if checked.state == "done" else "dead"
        ended, lost = checked.ended, list(checked.lost)
        if end is not None:
            store = FlowStore(self._client, view.facts.run)
            before = store.facts()
            store.apply(f"f{step.facts.flow}", [FlowChange(end, step.name)])
            ended += before != store.facts()
        elif not checked.state:
            lost.append(member_mid(view.facts.run, step.name))
        return ended, lost

    def _step(self, view: FlowView, step: StepView) -> tuple[int, list[str]]:
        """Apply missing outcomes of a step's members.

        Returns the number of applied outcomes, and the mids of members that no longer exist.
        """
        facts = step.facts
        if step.state != "running" or facts.todo or not facts.queue or facts.kind == "wait":
            return 0, []
        queue, store = Queue(facts.queue, self._client), FlowStore(self._client, view.facts.run)
        states, absent = self._compared(queue, store, step)
        if absent:
            # Their ends may have arrived between the two reads.
            mids, ends = {member.mid for member in absent}, dict[str, str]()
            for place in queue.alone():
                self._drainer.drain(place.name)
                ends |= ends_in(place, mids - ends.keys())
            left = set(self._live(store, step))
            for member in [member for member in absent if member.number in left]:
                states[member] = ends.get(member.mid, self._lost) or ""
        results = results_at(queue, [member.mid for member, end in states.items() if end == "done"])
        changes = [
            ending(member, end, results.get(member.mid)) for member, end in states.items() if end
        ]
        for some in _parts(changes, 1_000):
            store.apply(f"q{queue.name}", some)
        gone = [member.mid for member, end in states.items() if not end]
        return len(changes), gone

    def _compared(
        self, queue: Queue, store: FlowStore, step: StepView
    ) -> tuple[dict[Member, str], list[Member]]:
        """Look up the messages of all members that the flow considers live.

        Return the outcomes of ended messages by member, and the members whose messages the queue doesn't have.
        """
        states, absent = dict[Member, str](), list[Member]()
        for numbers in _parts(self._live(store, step), PER_CHUNK):
            members = {
                member.mid: member
                for member in (store.member(step.name, number) for number in numbers)
            }
            for mid, word in statuses(queue, list(members)).items():
                if word in OVER:
                    states[members[mid]] = OVER[word]
                elif word == "nil":
                    absent.append(members[mid])
        return states, absent

    def _live(self, store: FlowStore, step: StepView) -> Iterator[int]:
        """Yield the numbers of members that haven't ended.

        The last chunk of an unsealed map is left out, because its members might not be enqueued yet.
        """
        until = step.facts.size - (0 if step.facts.sealed else PER_CHUNK)
        cursor = 0
        while cursor >= 0:
            page = store.page(step.name, "live", cursor)
            yield from (number for number in page.numbers if number < until)
            cursor = page.cursor


def ends_in(queue: Queue, mids: set[str]) -> dict[str, str]:
    """Look up the outcomes of these messages in the latest events of their queue; return the outcome by mid."""
    outcomes: dict[str, str] = {}
    for _, fields in _newest(queue):
        try:
            event = decode(fields[1], fields[0])
        except (BadRecordError, IndexError):
            continue
        if event.mid in mids and event.kind in _ENDED:
            outcomes.setdefault(event.mid, _ENDED[event.kind])
            if len(outcomes) == len(mids):
                break
    return outcomes


def _newest(queue: Queue) -> Iterator[Any]:
    where, before, left = keys.key(queue.prefix, "events"), "+", MAX_EVENTS
    while left > 0:
        reply = queue.client.command("XREVRANGE", where, before, "-", "COUNT", EVENTS_PER_CALL)
        yield from reply
        if len(reply) < EVENTS_PER_CALL:
            return
        before, left = f"({reply[-1][0].decode()}", left - len(reply)


def _parts(some: Iterable[T], size: int) -> Iterator[list[T]]:
    left = iter(some)
    while part := list(islice(left, size)):
        yield part
