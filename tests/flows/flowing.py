"""Flows for tests without jobs: steps, a person who announces, workers who finish what they are handed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobq.client.connection import Client
from jobq.flows.announcing import announce
from jobq.flows.draining import Drainer
from jobq.flows.rights import refresh
from jobq.flows.state import Edge, FlowFacts, When
from jobq.flows.store import FlowStore
from jobq.flows.types import StoredFlow, StoredStep
from jobq.jobs.codec import encode
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Message

#: The run id of flows that tests store by hand, and of the first one that a test starts.
RUN = "r1"
#: How a message ends: done, dead, or what its attempt returns.
Outcome = str | bytes


def call_of(name: str) -> bytes:
    """The call of a job, as a flow keeps it."""
    return encode(f"job.{name}")


def step(
    name: str, *after: str, queue: str = "low", when: When = "done", **more: Any
) -> StoredStep:
    """A step behind others."""
    edges = tuple(Edge(one, when) for one in after)
    return StoredStep(
        name, queue=queue, after=edges, **{"kind": "step", "call": call_of(name), **more}
    )


class Flowing:
    """One server with flows; each accepted and each started message is counted."""

    def __init__(self, client: Client, *queues: str) -> None:
        self.client = client
        self.queues = {name: Queue(name, client) for name in queues or ("low", "high")}
        self.drainer = Drainer(client)
        #: Mid -> how often it was handed out.
        self.ran: Counter[str] = Counter()

    def start(self, flow: str, *steps: StoredStep, **more: Any) -> FlowStore:
        """Store and announce a flow."""
        store = FlowStore(self.client, flow)
        refresh(self.client, {one.queue for one in steps if one.queue})
        assert (
            store.create(StoredFlow(steps, "hash", "low", 60_000, **{"run_id": RUN, **more}))
            == "created"
        )
        if not more.get("parent"):
            self.say("begin", flow)
        return store

    def say(self, word: Any, flow: str, detail: str = "") -> None:
        announce(self.client, "low", word, flow, detail)

    def drain(self) -> int:
        """Drain all queues until they have nothing to say."""
        taken = 0
        while found := sum(self.drainer.drain(name) for name in self.queues):
            taken += found
        return taken

    def work(self, outcomes: Mapping[str, Outcome] | Callable[[str], Outcome] = {}) -> list[str]:  # noqa: B006
        """Hand out what waits, end it, and drain, until nothing moves; the mids that ran, in order."""
        outcome_of = outcomes if callable(outcomes) else lambda mid: outcomes.get(mid, "done")
        ran: list[str] = []
        self.drain()
        while True:
            before = len(ran)
            for queue in self.queues.values():
                found = queue.dequeue(64).messages
                ran += [one.mid for one in found]
                queue.finish([_ending(one, outcome_of(one.mid)) for one in found])
            if self.drain() == 0 and len(ran) == before:
                self.ran.update(ran)
                return ran

    def facts(self, flow: str) -> FlowFacts:
        found = FlowStore(self.client, flow).facts()
        assert found is not None
        return found

    def left(self) -> list[tuple[str, int]]:
        """Return the number of waiting entries in outboxes."""
        return [
            (name, len(found))
            for name, queue in self.queues.items()
            if (found := queue.flow_outbox())
        ]


def _ending(message: Message, outcome: Outcome) -> Ending:
    if isinstance(outcome, bytes):
        return Ending(mid=message.mid, token=message.token, result=outcome, result_ttl=60)
    return Ending(mid=message.mid, token=message.token, outcome=outcome, reason="why")


def names(mids: Sequence[str]) -> list[str]:
    """`step` or `step.number` of mids."""
    return [".".join(mid.split(".")[2:]).removesuffix(".0") for mid in mids]
