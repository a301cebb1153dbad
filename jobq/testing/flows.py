"""Assertions about flows and their steps, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypedDict

from jobq.client.connection import Client
from jobq.errors import ConfigError
from jobq.flows.definition import FlowStep
from jobq.flows.listing import failed_members, known_flow
from jobq.flows.state import (
    FLOW_STATES,
    STEP_STATES,
    FlowState,
    FlowView,
    StepState,
    StepView,
    step_sentence,
)

#: Maximum number of dead members whose reasons an error lists.
MAX_LISTED = 5


class StartedFlow(Protocol):
    """A started flow."""

    @property
    def flow_id(self) -> str:
        """Return the flow's name and id, `name:id`."""
        ...


class StepCounts(TypedDict, total=False):
    """Expected numbers of a step's members: all members so far, done, dead, and cancelled members."""

    members: int
    done: int
    dead: int
    cancelled: int


def assert_flow(client: Client, run: StartedFlow | str, state: FlowState | None) -> FlowView:
    """Assert that a flow exists and, unless `state` is None, that it is in this state. Return the flow."""
    if state is not None and state not in FLOW_STATES:
        raise ConfigError(f"state {state!r} is unknown; use {', '.join(FLOW_STATES)}")
    view = known_flow(client, run if isinstance(run, str) else run.flow_id)
    if state is not None and view.state != state:
        raise AssertionError(
            f"flow {view.facts.flow_id} is {view.state}, not {state}\n{_shown(client, view)}"
        )
    return view


def assert_step(
    client: Client,
    run: StartedFlow | str,
    step: FlowStep | str,
    state: StepState | None,
    counts: StepCounts,
) -> StepView:
    """Assert that a step is in this state and has these numbers of members. Return the step."""
    if state is not None and state not in STEP_STATES:
        raise ConfigError(f"state {state!r} is unknown; use {', '.join(STEP_STATES)}")
    view = assert_flow(client, run, None)
    name = step if isinstance(step, str) else step.name
    step_view = view.by_name.get(name)
    if step_view is None:
        raise ConfigError(
            f"flow {view.facts.flow_id} has no step {name!r}; it has {', '.join(view.by_name)}"
        )
    wrong = list(_differences(step_view, state, counts))
    if wrong:
        text = f"step {name} of flow {view.facts.flow_id} {'; '.join(wrong)}"
        raise AssertionError(f"{text}\n{_shown(client, view)}")
    return step_view


def _differences(view: StepView, state: StepState | None, counts: StepCounts) -> Iterator[str]:
    if state is not None and view.state != state:
        yield f"is {view.state}, not {state}"
    facts = view.facts
    present = {
        "members": facts.size,
        "done": facts.done,
        "dead": facts.dead,
        "cancelled": facts.cancelled,
    }
    for what, expected in counts.items():
        if what not in present:
            raise ConfigError(f"a step has no {what!r}; pass {', '.join(present)}")
        if present[what] != expected:
            yield f"has {present[what]:,} {what}, not {expected}"


def _shown(client: Client, view: FlowView) -> str:
    lines = [f"{view.facts.flow_id}: {view.state}, {view.progress}"]
    for step in view.steps:
        facts: Any = step.facts
        said = step_sentence(view, step.name)
        lines.append(
            f"  {step.name}: {step.state}, {facts.ended:,} of {facts.size:,} ended"
            + (f"; {said}" if said else "")
        )
    lines += [f"  waits for {wait.sentence}" for wait in view.waits_for]
    lines += [
        f"  {failed_member.mid}: {failed_member.reason}"
        for failed_member in failed_members(client, view, MAX_LISTED)
    ]
    return "\n".join(lines)
