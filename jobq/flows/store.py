"""A flow's own slot: one method per script of lua/flow."""

from __future__ import annotations

from collections.abc import Sequence

from jobq.client.connection import Client
from jobq.flows import keys
from jobq.flows.identity import checked_flow
from jobq.flows.state import FlowFacts
from jobq.flows.types import (
    Applied,
    FlowEntry,
    FlowRecord,
    MemberPage,
    Reserved,
    StepRecord,
    TodoItem,
)


class FlowStore:
    """The flow `flow`, a `name:id`, on `client`. Threads may share it. Each call is harmless to repeat.

    Every method takes `now`, epoch ms, in place of the server's clock: for tests.
    """

    def __init__(self, client: Client, flow: str) -> None:
        self.client, self.flow = client, checked_flow(flow)
        self.prefix = keys.base(client.namespace, flow)

    def create(self, record: FlowRecord, *, now: int | None = None) -> str:
        """Store a flow; 'created', 'same', 'conflict' (another definition) or 'over'. It waits for its begin."""
        raise NotImplementedError

    def add_steps(self, steps: Sequence[StepRecord], *, now: int | None = None) -> str:
        """Add steps to a flow that runs; 'added', 'same', 'conflict' (one is there and is another) or 'closed'."""
        raise NotImplementedError

    def put_items(self, step: str, chunk: int, contents: Sequence[bytes]) -> str:
        """Store the calls of one chunk of a map that waits for other steps; 'ok' or 'closed'."""
        raise NotImplementedError

    def items(self, step: str, chunk: int) -> list[bytes]:
        """Return the stored calls of one chunk; [] behind the last one."""
        raise NotImplementedError

    def reserve(self, step: str, chunk: int, count: int, *, now: int | None = None) -> Reserved:
        """Give numbers to the members of the next chunk, and note that all chunks before it are enqueued."""
        raise NotImplementedError

    def seal(self, step: str, chunks: int, *, now: int | None = None) -> str:
        """Say that a map has so many chunks, all enqueued, and no more; 'ok', 'other' or 'closed'. `look` follows."""
        raise NotImplementedError

    def apply(
        self, source: str, entries: Sequence[FlowEntry], *, now: int | None = None
    ) -> Applied:
        """Take in what happened. source: `q` and the queue that it was read from, or `f` and the flow that says it."""
        raise NotImplementedError

    def sent(self, items: Sequence[TodoItem], *, now: int | None = None) -> Applied:
        """Take off what was sent."""
        raise NotImplementedError

    def page(self, step: str, what: str, cursor: int = 0, limit: int = 250) -> MemberPage:
        """Return numbers of members that are `unended`, or `failed`: ended, not done, not retried."""
        raise NotImplementedError

    def retried(self, step: str, numbers: Sequence[int], *, now: int | None = None) -> int:
        """Note that these members are about to be revived; how many of them had ended without being done."""
        raise NotImplementedError

    def results(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the results by `step:number`, those that there are."""
        raise NotImplementedError

    def calls(self, steps: Sequence[str]) -> dict[str, bytes]:
        """Return the calls of these steps."""
        raise NotImplementedError

    def failures(self) -> dict[str, str]:
        """Return why members aren't done, by `step:number`; of 1,000 at most."""
        raise NotImplementedError

    def facts(self) -> FlowFacts | None:
        """Return what is stored; None for a flow that is gone."""
        raise NotImplementedError

    def remove(self, *, now: int | None = None) -> str:
        """Delete a flow that is over, or was never begun; 'removed', 'running' or 'gone'."""
        raise NotImplementedError
