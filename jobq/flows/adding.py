"""Steps that a running step adds to its flow: `current().flow.map(load, more, name="more")`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from jobq.client.connection import Client
from jobq.client.numbered_calls import BYTES_PER_CALL
from jobq.durations import listed
from jobq.errors import ConfigError, FlowClosedError, FlowConflictError
from jobq.flows.announcing import announce
from jobq.flows.definition import After, FlowStep, MapStep, StepList, checked_graph
from jobq.flows.identity import member_of
from jobq.flows.references import ResultOf
from jobq.flows.rights import refresh
from jobq.flows.run import drain_soon
from jobq.flows.starting import add_members, put_items, stored_step
from jobq.flows.state import FlowFacts, When
from jobq.flows.store import FlowStore
from jobq.flows.types import MAX_STEPS_OF_A_FLOW, StoredStep
from jobq.jobs.context import Context
from jobq.jobs.membership import MemberFlow

S = TypeVar("S", bound=FlowStep)
#: Number of steps per call.
TOGETHER = 250


class RunningFlow(StepList):
    """The flow of a running member. Defining a step adds the step to the flow."""

    names_steps = False
    max_steps = MAX_STEPS_OF_A_FLOW

    def __init__(self, client: Client, context: Context) -> None:
        member = member_of(context.mid)
        if member is None:
            raise ConfigError(f"message {context.mid} is not part of a flow")
        super().__init__(member.flow)
        self._client, self._store = client, FlowStore(client, member.run)
        self.step_name, self.index = member.step, member.number
        # Facts from the latest read, so that a flow isn't read again for each of thousands of steps.
        self._facts: FlowFacts | None = None
        self._known: set[str] = set()
        # Steps to store together later; None outside `together`.
        self._together: list[StoredStep] | None = None

    @property
    def id(self) -> str:
        """The flow's `name:id`."""
        return self.flow_id

    def flow(self, *_: Any, **__: Any) -> NoReturn:
        """Raise ConfigError, because a running step can't add a sub-flow.

        Sub-flows are stored before their parent starts.
        """
        raise ConfigError(
            f"a running step can't add a sub-flow to flow {self.flow_id}; add its steps here with step() and map(), or "
            "define it before the start with Flow.flow(…)"
        )

    @contextmanager
    def together(self) -> Iterator[None]:
        """Add the steps defined in this block together. They begin once the step that adds them is done.

        Each request stores up to TOGETHER steps. If the process dies between two requests, none of the steps begins,
        and the next attempt adds the missing steps.
        """
        if self._together is not None:
            raise ConfigError("together() can't be nested; remove the inner `with`")
        self._together = []
        try:
            yield
            self._store_together()
        finally:
            self._together = None

    def _store_together(self) -> None:
        records, self._together = self._together, []
        if records:
            self._stored(records)

    def _after(self, after: After, when: When) -> dict[str, When]:
        whens = super()._after(after, when)
        if self._together is not None:
            whens.setdefault(self.step_name, "done")
        return whens

    def add_reference(self, ref: ResultOf, after: dict[str, When]) -> None:
        """Record that an argument refers to the result of an existing step; see StepList."""
        if ref.what == "result" and not ref.step.keeps_results:
            raise ConfigError(
                f"{ref!r} isn't stored; to store it, declare the step's job with result_ttl=…"
            )
        super().add_reference(ref, after)

    def _add(self, step: S) -> S:
        facts = self._facts
        if facts is None or not self._known.issuperset(step.after):
            facts = self._facts = self._store.facts()
            if facts is None:
                raise FlowClosedError(f"flow {self.flow_id} was deleted; nothing can be added")
            self._known.update(step.name for step in facts.steps)
        checked_graph({step.name: step}, self._known)
        record = stored_step(self._client, self.flow_id, facts.queue, step)
        if isinstance(step, MapStep) and record.source == "items":
            put_items(self._client, self._store, step)
        super()._add(step)
        self._known.add(step.name)
        if self._together is not None:
            self._together.append(record)
            if len(self._together) >= TOGETHER or _nbytes(self._together) > BYTES_PER_CALL:
                self._store_together()
            return step
        self._stored([record])
        if isinstance(step, MapStep) and record.source == "stream":
            add_members(self._client, facts.run, step, facts.queue)
        else:
            # Otherwise a step without dependencies would begin only when the next member ends.
            announce(self._client, facts.queue, "look", facts.run, durability="memory")
        drain_soon(self._client, facts.queue)
        return step

    def _stored(self, records: Sequence[StoredStep]) -> None:
        refresh(self._client, {record.queue for record in records if record.queue})
        added = self._store.add_steps(records)
        if added == "closed":
            now = self._store.facts()
            state = f"is {now.state}" if now else "is gone"
            raise FlowClosedError(f"flow {self.flow_id} {state}; nothing can be added")
        if added == "conflict":
            names = listed([repr(record.name) for record in records])
            problem = f"flow {self.flow_id} already has a different step"
            if len(records) == 1:
                raise FlowConflictError(f"{problem} named {names}; rename the new step")
            raise FlowConflictError(f"{problem} with one of the names {names}; rename the new step")
        if added == "full":
            raise ConfigError(
                f"flow {self.flow_id} has 10,000 steps, the maximum; add a map instead"
            )


def _nbytes(records: Sequence[StoredStep]) -> int:
    return sum(len(record.call) + len(record.options) for record in records)


def flow_of(client: Client, context: Context) -> MemberFlow:
    """Return the flow of a running member, for use in its job."""
    flow: Any = RunningFlow(client, context)
    return flow  # type: ignore[no-any-return]
