"""Computes the states of a flow's steps, its pending dependencies, its layers and its critical path.

`FlowFacts` is read from the server. Pure functions compute everything else from these facts and never store it, so a
retry needn't undo anything. The functions tolerate unknown steps and cycles of edges, because the server's data may be
damaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from jobq.durations import MAX_NAMES, counted, lasting, listed
from jobq.flows.identity import run_of
from jobq.records import JsonRecord

When = Literal["done", "ended", "failed"]
Kind = Literal["step", "map", "wait", "timer", "flow"]
StepState = Literal["waiting", "ready", "running", "done", "failed", "skipped", "cancelled"]
FlowState = Literal["open", "running", "done", "failed", "cancelled"]

#: States of steps, in the order in which they are shown.
STEP_STATES: tuple[StepState, ...] = (
    "running", "ready", "waiting", "failed", "cancelled", "skipped", "done",
)  # fmt: skip
FLOW_STATES: tuple[FlowState, ...] = ("open", "running", "done", "failed", "cancelled")
#: States of steps that only a retry changes.
STEP_OVER: frozenset[StepState] = frozenset(("done", "failed", "skipped", "cancelled"))
FLOW_OVER: frozenset[FlowState] = frozenset(("done", "failed", "cancelled"))
#: States of a step that satisfy an edge from it, and states in which the edge can no longer be satisfied.
_MET: dict[When, frozenset[StepState]] = {
    "done": frozenset(("done",)),
    "ended": frozenset(("done", "failed")),
    "failed": frozenset(("failed",)),
}
#: If nothing was added to an unsealed map for this long, its producer has stopped.
STOPPED_MS = 60_000


class Edge(JsonRecord):
    """A dependency on `step`.

    Attributes:
        when: How `step` must end.
    """

    step: str
    when: When = "done"


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """Stored facts of a step. Times are epoch ms, 0 if unknown.

    Attributes:
        size: Number of members so far.
        sealed: Whether all members have been added.
        done: Number of successful members.
        ended: Number of members that have ended at least once.
        dead: Number of dead or individually cancelled members.
        cut: Whether the flow was cancelled before the step ended.
        cancelled: Number of members that failed after the flow was cancelled.
        retried: Number of formerly dead members that run again.
        sent: Whether the step was enqueued, or its wait or timer has begun.
        todo: Whether the step has an item that must be sent.
        reviving: Whether a retry is reviving the step's dead members; it has reached the member `revived`.
        due_at: When a timer ends, or when a wait times out.
        flow: The id of its sub-flow.
        added_at: When members were last added.
        ready_at: When its dependencies were satisfied.
        key: The fixed key of its messages; else ''.
    """

    name: str
    kind: Kind = "step"
    queue: str = ""
    job: str = ""
    after: tuple[Edge, ...] = ()
    size: int = 1
    sealed: bool = True
    done: int = 0
    ended: int = 0
    dead: int = 0
    cancelled: int = 0
    cut: bool = False
    retried: int = 0
    sent: bool = False
    todo: bool = False
    reviving: bool = False
    revived: int = 0
    due_at: int = 0
    flow: str = ""
    added_at: int = 0
    ready_at: int = 0
    ended_at: int = 0
    key: str = ""

    @property
    def needs_room(self) -> str:
        return f"when the line of key {self.key} in queue {self.queue} has room" if self.key else ""

    @property
    def has_begun(self) -> bool:
        """Whether the step's dependencies were satisfied, so that its messages were or will be enqueued."""
        return self.sent or self.todo or self.ended > 0

    @property
    def has_ended(self) -> bool:
        """Whether every member has ended, and none runs again."""
        begun = self.has_begun or (not self.after and not self.size)
        is_quiet = not self.retried and not self.reviving
        return begun and self.sealed and self.ended >= self.size and is_quiet

    @property
    def live(self) -> int:
        """The number of known members that haven't ended."""
        return max(0, self.size - self.ended) + self.retried


@dataclass(frozen=True, kw_only=True)
class FlowFacts:
    """Stored facts of a flow. name and id identify it; times are epoch ms, 0 if unknown.

    Attributes:
        state: The stored state.
        queue: The queue for the flow's signals and timers.
        keep_ms: How long the flow is kept after it has ended.
        refused: Number of reports about members that the flow doesn't have.
        parent: The `flow.run_id.step` that runs this flow as a sub-flow; '' if it isn't a sub-flow.
        run_id: Id of the run, which is part of its members' mids.
    """

    name: str
    id: str
    now_ms: int
    steps: tuple[StepFacts, ...]
    state: FlowState = "running"
    queue: str = ""
    created_at: int = 0
    ended_at: int = 0
    keep_ms: int = 0
    refused: int = 0
    parent: str = ""
    run_id: str = ""

    @property
    def flow_id(self) -> str:
        """The flow's identity in keys and mids, `name:id`."""
        return f"{self.name}:{self.id}"

    @property
    def run(self) -> str:
        """Return the flow's id with the run id, in the form used in message ids."""
        return run_of(self.flow_id, self.run_id)


class WaitsFor(JsonRecord):
    """A step or a condition that a flow waits for.

    Attributes:
        code: A short code for programs; `sentence` is for people.
    """

    step: str
    code: str
    sentence: str


class StepView(NamedTuple):
    """A step and its state.

    Attributes:
        waits_for: Dependencies that are not satisfied yet.
        lost: Dependencies that can't be satisfied any longer, so the step is skipped.
    """

    facts: StepFacts
    state: StepState
    waits_for: tuple[Edge, ...] = ()
    lost: tuple[Edge, ...] = ()

    @property
    def name(self) -> str:
        """The step's name."""
        return self.facts.name

    def stopped_ms(self, now_ms: int) -> int:
        """Return how many ms ago an unfinished map last got members; 0 if less than a minute ago."""
        facts = self.facts
        if facts.sealed or not facts.added_at or self.state != "running":
            return 0
        since = now_ms - facts.added_at
        return since if since >= STOPPED_MS else 0


class PathStep(JsonRecord):
    """A step of the critical path.

    Attributes:
        took_ms: Time from the step's ready time to its end, or until now if it hasn't ended.
    """

    step: str
    took_ms: int


@dataclass(frozen=True, repr=False)
class FlowView:
    """A flow with the states of its steps."""

    facts: FlowFacts

    @cached_property
    def by_name(self) -> dict[str, StepView]:
        """The steps by name, in the order in which they were defined."""
        return _views(self.facts)

    @property
    def steps(self) -> tuple[StepView, ...]:
        """The steps in the order in which they were defined."""
        return tuple(self.by_name.values())

    @property
    def state(self) -> FlowState:
        """The flow's state."""
        return flow_state(self.facts, self.by_name)

    @cached_property
    def counts(self) -> dict[StepState, int]:
        """Return how many steps are in each state; states without steps are left out."""
        counts = Counter(view.state for view in self.steps)
        return {state: counts[state] for state in STEP_STATES if counts[state]}

    @property
    def members(self) -> int:
        """The number of members in all started steps."""
        return sum(view.facts.size for view in self.steps if view.facts.has_begun)

    @property
    def ended(self) -> int:
        """The number of ended members, including members that run again."""
        return sum(view.facts.ended for view in self.steps)

    @property
    def dead(self) -> int:
        """Number of dead members."""
        return sum(view.facts.dead for view in self.steps)

    @property
    def cancelled(self) -> int:
        """Number of members that failed because the flow was cancelled."""
        return sum(view.facts.cancelled for view in self.steps)

    @property
    def over(self) -> int:
        """Number of steps that are done, failed, skipped or cancelled."""
        return sum(view.state in STEP_OVER for view in self.steps)

    @cached_property
    def layers(self) -> tuple[tuple[str, ...], ...]:
        """Names of the steps in layers. A step's layer is the length of the longest path to it."""
        return layers(self.facts.steps)

    @cached_property
    def waits_for(self) -> tuple[WaitsFor, ...]:
        """The pending dependencies of the flow; empty once the flow has ended."""
        return tuple(_waits_for(self))

    @cached_property
    def critical_path(self) -> tuple[PathStep, ...]:
        """The chain of steps that decides when the flow ends, first step first; () while nothing has begun."""
        return critical_path(self)

    @property
    def progress(self) -> str:
        """Progress as text: `3 of 5 steps, 1,204 of 2,000 members`."""
        text = f"{self.over:,} of {counted(len(self.facts.steps), 'step')}"
        if self.members > len(self.facts.steps):
            text += f", {self.ended:,} of {counted(self.members, 'member')}"
        return text

    @property
    def remark(self) -> str:
        """A fact about the flow that needs attention, such as `adding, stopped 10 min ago`; '' if there is none."""
        now_ms = self.facts.now_ms
        stopped = max((view.stopped_ms(now_ms) for view in self.steps), default=0)
        if stopped:
            return f"adding, stopped {lasting(stopped / 1000)} ago"
        if any(not view.facts.sealed and view.state == "running" for view in self.steps):
            return "adding"
        return f"{self.dead:,} dead" if self.dead else ""

    def __str__(self) -> str:
        """Describe the flow for people: its state, its progress and its pending dependencies."""
        lines = [f"{self.facts.flow_id}: {self.state}, {self.progress}"]
        if self.remark:
            lines[0] += f" ({self.remark})"
        lines += [f"waits for {wait.sentence}" for wait in self.waits_for[:MAX_NAMES]]
        if len(self.waits_for) > MAX_NAMES:
            lines.append(f"and {len(self.waits_for) - MAX_NAMES:,} more")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<FlowView {self.facts.flow_id}: {self.state}, {self.progress}>"


def _views(facts: FlowFacts) -> dict[str, StepView]:
    by_name = {step.name: step for step in facts.steps}
    views: dict[str, StepView] = {}
    for names in layers(facts.steps):
        for name in names:
            views[name] = _view(facts, by_name[name], views)
    return {name: views[name] for name in by_name}


def _view(facts: FlowFacts, step: StepFacts, before: Mapping[str, StepView]) -> StepView:
    states = [(edge, before[edge.step].state) for edge in step.after if edge.step in before]
    unknown = tuple(edge for edge in step.after if edge.step not in before)
    open_ = tuple(edge for edge, state in states if state not in STEP_OVER) + unknown
    lost = tuple(
        edge for edge, state in states if state in STEP_OVER and state not in _MET[edge.when]
    )
    # If the flow's cancellation ended a step, it also cancelled the following steps.
    is_lost = any(before[edge.step].state != "cancelled" for edge in lost)
    state = _state(facts, step, is_lost)
    if state in ("skipped", "waiting"):
        return StepView(step, state, open_, lost)
    return StepView(step, state)


def _state(facts: FlowFacts, step: StepFacts, is_lost: bool) -> StepState:
    is_cancelled = facts.state == "cancelled"
    if step.has_ended:
        if step.done >= step.size:
            return "done"
        return "cancelled" if step.cut else "failed"
    if step.sent or step.ended or step.retried:
        return "running"
    if step.todo and not is_cancelled:
        return "ready"
    if is_lost:
        return "skipped"
    return "cancelled" if is_cancelled else "waiting"


def flow_state(facts: FlowFacts, views: Mapping[str, StepView] | None = None) -> FlowState:
    """Return the flow's state. 'open' and 'cancelled' are stored; the other states are computed from the steps."""
    if facts.state in ("open", "cancelled"):
        return facts.state
    states = {view.state for view in (_views(facts) if views is None else views).values()}
    if not states <= STEP_OVER:
        return "running"
    return "failed" if states & {"failed", "cancelled"} else "done"


def layers(steps: tuple[StepFacts, ...]) -> tuple[tuple[str, ...], ...]:
    """Group the steps into layers, so that all dependencies of a step are in earlier layers.

    Steps that depend on a cycle form the last layer.
    """
    known = {step.name for step in steps}
    before = {step.name: {edge.step for edge in step.after if edge.step in known} for step in steps}
    behind: dict[str, list[str]] = {name: [] for name in before}
    for name, sources in before.items():
        for source in sources:
            behind[source].append(name)
    missing = {name: len(sources) for name, sources in before.items()}
    groups, layer = [], [name for name, number in missing.items() if not number]
    left = set(before)
    while layer:
        groups.append(tuple(layer))
        left.difference_update(layer)
        following = []
        for name in layer:
            for target in behind[name]:
                missing[target] -= 1
                if not missing[target]:
                    following.append(target)
        layer = following
    in_circles = tuple(name for name in before if name in left)
    return (*groups, in_circles) if in_circles else tuple(groups)


def critical_path(flow: FlowView) -> tuple[PathStep, ...]:
    """Return the chain of steps that decides when the flow ends.

    The chain is followed backwards: from the step that ended last, to its dependency that ended last, and so on. While
    the flow runs, it is followed from a running step. If times are unknown, the step of the deepest layer counts as the
    last.
    """
    depth = {name: at for at, names in enumerate(flow.layers) for name in names}
    begun = {view.name: view for view in flow.steps if view.facts.has_begun}
    if not begun:
        return ()
    now_ms = flow.facts.now_ms
    ends = {name: _ended_at(view, now_ms) for name, view in begun.items()}

    def latest(names: list[str]) -> str:
        return max(names, key=lambda name: (ends[name], depth[name], -_ready_at(begun[name])))

    live = [name for name, view in begun.items() if view.state not in STEP_OVER]
    at = latest(live or list(begun))
    chain = [at]
    while sources := [
        edge.step
        for edge in begun[at].facts.after
        if edge.step in begun and depth[edge.step] < depth[at]
    ]:
        at = latest(sources)
        chain.append(at)
    return tuple(_path(flow, ends, chain[::-1]))


def _path(flow: FlowView, ends: Mapping[str, int], chain: list[str]) -> Iterator[PathStep]:
    previous = flow.facts.created_at
    for name in chain:
        began = _ready_at(flow.by_name[name]) or previous
        yield PathStep(name, max(0, ends[name] - began) if began and ends[name] else 0)
        previous = ends[name]


def _ready_at(view: StepView) -> int:
    return view.facts.ready_at


def _ended_at(view: StepView, now_ms: int) -> int:
    return view.facts.ended_at if view.state in STEP_OVER else now_ms


def _waits_for(flow: FlowView) -> Iterator[WaitsFor]:
    facts = flow.facts
    if facts.state == "open":
        yield WaitsFor("", "open", "the flow is stored but not started; call start() again")
        return
    for view in flow.steps:
        if view.state == "ready":
            text = f"step {view.name} is ready; the next worker that ends a member or renews leases sends it"
            text += view.facts.needs_room and f", {view.facts.needs_room}"
            yield WaitsFor(view.name, "ready", text)
        elif view.state == "running":
            yield _running(view, facts.now_ms)


def _running(view: StepView, now_ms: int) -> WaitsFor:
    step = view.facts
    left = step.due_at - now_ms
    until = lasting(left / 1000) if left > 0 else ""
    if step.kind == "wait":
        text = f"a signal for {step.name}" + (f", or {until} more" if until else "")
        return WaitsFor(step.name, "signal", text)
    if step.kind == "timer":
        return WaitsFor(step.name, "timer", f"the timeout of {step.name}, in {until or 'a moment'}")
    if step.kind == "flow":
        return WaitsFor(step.name, "flow", f"flow {step.flow or step.name}")
    where = f"step {step.name}" + (f" (queue {step.queue})" if step.queue else "")
    if stopped := view.stopped_ms(now_ms):
        text = f"the producer of {where}: {counted(step.size, 'member')}, the last added {lasting(stopped / 1000)} ago"
        return WaitsFor(step.name, "adding", text)
    if step.reviving and step.kind == "map":
        text = f"workers to revive the dead members of {where}: {step.revived:,} of {step.size:,} so far"
        return WaitsFor(step.name, "reviving", text)
    more = "" if step.sealed else "; more are being added"
    if more and step.todo and step.needs_room:
        more += f" {step.needs_room}"
    if step.kind == "step" and step.size <= 1:
        return WaitsFor(step.name, "member", where + more)
    text = f"{step.live:,} of {counted(step.size, 'member')} of {where}{more}"
    return WaitsFor(step.name, "member", text)


def step_sentence(flow: FlowView, name: str) -> str:
    """Return the pending dependencies of a step, or why the step is skipped; '' if the step has begun."""
    view = flow.by_name.get(name)
    if view is None or view.state not in ("waiting", "skipped"):
        return ""
    if view.state == "skipped":
        whys = (f"{edge.step} is {flow.by_name[edge.step].state}" for edge in view.lost)
        return f"skipped, because {listed(list(whys))}"
    if not view.waits_for:
        return "waits for the flow to begin" if flow.facts.state == "open" else "becomes ready next"
    number = f"{len(view.waits_for):,} of {counted(len(view.facts.after), 'step')}"
    names = listed([edge.step for edge in view.waits_for])
    return f"waits for {number} of flow {flow.facts.flow_id}: {names}"
