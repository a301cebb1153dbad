"""Steps that a running step adds to its flow: `current().flow.map(load, more, name="more")`."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from jobq.client.connection import Client
from jobq.errors import ConfigError, FlowClosedError, FlowConflictError
from jobq.flows.definition import FlowStep, MapStep, StepList, checked_graph
from jobq.flows.identity import member_of
from jobq.flows.references import ResultOf
from jobq.flows.run import drain_soon
from jobq.flows.starting import add_members, put_items, stored_step
from jobq.flows.state import FlowFacts, When
from jobq.flows.store import FlowStore
from jobq.jobs.context import Context
from jobq.jobs.membership import MemberFlow

S = TypeVar("S", bound=FlowStep)


class RunningFlow(StepList):
    """The flow of a member that runs. Each step is added when it is defined."""

    names_steps = False

    def __init__(self, client: Client, context: Context) -> None:
        member = member_of(context.mid)
        if member is None:
            raise ConfigError(f"message {context.mid} is not part of a flow")
        super().__init__(member.flow)
        self._client, self._store = client, FlowStore(client, member.flow)
        self.step_name, self.index = member.step, member.number
        # As they were read last: a flow that gets thousands of steps isn't read for each.
        self._facts: FlowFacts | None = None
        self._known: set[str] = set()

    @property
    def id(self) -> str:
        """`name:id` of the flow."""
        return self.flow_id

    def flow(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: sub-flows are stored together with their parent, before it starts."""
        raise ConfigError(
            f"a running step can't add a sub-flow to flow {self.flow_id}; add its steps here with step() and map(), or "
            "define it before the start with Flow.flow(…)"
        )

    def refer(self, one: ResultOf, after: dict[str, When]) -> None:
        """As in StepList, for a step that is there already."""
        if one.what == "result" and not one.step.keeps_results:
            raise ConfigError(
                f"{one!r} isn't kept, since the step is there already; declare its job with result_ttl=…"
            )
        super().refer(one, after)

    def _add(self, step: S) -> S:
        facts = self._facts
        if facts is None or not self._known.issuperset(step.after):
            facts = self._facts = self._store.facts()
            if facts is None:
                raise FlowClosedError(f"flow {self.flow_id} is gone; nothing can be added")
            self._known.update(one.name for one in facts.steps)
        checked_graph({step.name: step}, self._known)
        record = stored_step(self._client, self.flow_id, facts.queue, step)
        if isinstance(step, MapStep) and record.source == "items":
            put_items(self._client, self._store, step)
        added = self._store.add_steps([record])
        if added == "closed":
            now = self._store.facts()
            state = f"is {now.state}" if now else "is gone"
            raise FlowClosedError(f"flow {self.flow_id} {state}; nothing can be added")
        if added == "conflict":
            raise FlowConflictError(
                f"flow {self.flow_id} has another step named {step.name!r}; rename this one"
            )
        if added == "full":
            raise ConfigError(f"flow {self.flow_id} has 10,000 steps, its most; add a map instead")
        super()._add(step)
        self._known.add(step.name)
        if isinstance(step, MapStep) and record.source == "stream":
            add_members(self._client, self.flow_id, step, facts.queue)
        drain_soon(self._client, facts.queue)
        return step


def flow_of(client: Client, context: Context) -> MemberFlow:
    """The flow of a member that runs, as jobs see it."""
    flow: Any = RunningFlow(client, context)
    return flow  # type: ignore[no-any-return]
