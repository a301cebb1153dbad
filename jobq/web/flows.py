"""Flows on pages and in the API: rows of steps, the drawing, errors of dead members, and findings."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple

from starlette.requests import Request

from jobq.client.connection import Client
from jobq.durations import MAX_NAMES, counted, lasting
from jobq.errors import JobqError
from jobq.flows.identity import MAX_NUMBER_LENGTH, member_mid
from jobq.flows.listing import FlowRow, flow_page
from jobq.flows.run import FlowRun
from jobq.flows.state import (
    Edge,
    FlowView,
    StepState,
    StepView,
    step_sentence,
)
from jobq.flows.store import FlowStore
from jobq.observe.chart import ChartFrame
from jobq.observe.graph import DrawnGraph, GraphEdge, GraphNode, draw
from jobq.queue.queue import Queue
from jobq.web.acting import audited
from jobq.web.contents import Contents
from jobq.web.filters import quoted
from jobq.web.findings import MAX_COUNT, PageFinding
from jobq.web.formats import duration, number
from jobq.web.search import dead_row
from jobq.web.site import site_of

#: State of a step -> the message state whose colour and glyph it uses.
LOOKS: dict[StepState, str] = {
    "waiting": "waiting", "ready": "ready", "running": "running", "done": "done", "failed": "dead",
    "skipped": "skipped", "cancelled": "skipped",
}  # fmt: skip
#: State of a flow -> the message state whose colour and glyph it uses.
FLOW_LOOKS = {
    "open": "waiting", "running": "running", "done": "done", "failed": "dead", "cancelled": "skipped",
}  # fmt: skip
GLYPHS = {
    "waiting": "◌", "ready": "○", "running": "●", "delayed": "◷", "done": "✓", "dead": "✕", "skipped": "–",
}  # fmt: skip
#: A folded node looks like its most urgent step.
URGENCY = ("dead", "running", "delayed", "ready", "waiting", "skipped", "done")
#: Maximum rows in a table of steps, and maximum dead members whose reasons are read, with one call for each.
MAX_ROWS, MAX_REASONS = 100, 6
#: Interval between searches for the first page, in seconds, and number of latest flows to search.
LOOK_EVERY_S, MAX_LOOKED_AT = 15.0, 100


class StepRow(NamedTuple):
    """A step's row on a page.

    Attributes:
        look: Name of the glyph and colour for the step's state.
        share: Finished share of a map's members; None for other steps, and for a map that hasn't begun.
        sentence: Why the step was skipped, or ''.
        took_ms: Time since the step was ready, up to its end or until now.
        mid: Id of the step's message, if the step has a single message.
        messages: Filter that lists the messages of a map, or ''.
        dead: Filter that lists the step's dead messages, or ''.
    """

    view: StepView
    look: str
    progress: str
    share: float | None
    sentence: str
    took_ms: int | None
    on_path: bool
    mid: str = ""
    messages: str = ""
    dead: str = ""

    @property
    def name(self) -> str:
        """The step's name."""
        return self.view.name

    @property
    def anchor(self) -> str:
        """The id of the step's row, to which the drawing links."""
        return f"step-{self.view.name}"

    @property
    def after(self) -> tuple[Edge, ...]:
        """The edges from the steps that this step waits for."""
        return self.view.facts.after


def look_of(view: StepView) -> str:
    """Return the name of the glyph and colour for a step's state. A running wait or timer is shown as delayed."""
    if view.state == "running" and view.facts.kind in ("wait", "timer"):
        return "delayed"
    return LOOKS[view.state]


def step_rows(flow: FlowView) -> list[StepRow]:
    """Return a row for each step, in the order in which the steps are defined."""
    path = {path_step.step for path_step in flow.critical_path}
    return [_row(flow, view, view.name in path) for view in flow.steps]


def listed_steps(rows: Sequence[StepRow]) -> list[StepRow]:
    """Return all rows, or only the MAX_ROWS most urgent rows if there are more."""
    if len(rows) <= MAX_ROWS:
        return list(rows)
    return sorted(rows, key=lambda row: URGENCY.index(row.look))[:MAX_ROWS]


def _row(flow: FlowView, view: StepView, on_path: bool) -> StepRow:
    facts, state = view.facts, view.state
    sentence = (
        step_sentence(flow, view.name).removeprefix("skipped, ") if state == "skipped" else ""
    )
    row = StepRow(
        view, look_of(view), _progress(flow, view), _share(view), sentence, _took(flow, view), on_path
    )  # fmt: skip
    if facts.kind == "flow" or not facts.has_begun or state == "skipped" or not facts.queue:
        return row
    if facts.kind == "wait" and not facts.due_at:
        return row  # its timeout has no message
    mid = member_mid(flow.facts.run, facts.name)
    named = quoted(mid) if facts.kind != "map" else f"{quoted(mid.removesuffix('0'))}*"
    dead = f"queue:{quoted(facts.queue)} mid:{named}" if facts.dead else ""
    if facts.kind == "map":
        return row._replace(messages=f"mid:{named}", dead=dead)
    return row._replace(mid=mid, dead=dead)


def _share(view: StepView) -> float | None:
    facts = view.facts
    if facts.kind != "map" or not facts.has_begun:
        return None
    return min(1.0, facts.ended / facts.size) if facts.size else float(view.state == "done")


def _took(flow: FlowView, view: StepView) -> int | None:
    facts = view.facts
    end = facts.ended_at if view.state in ("done", "failed", "cancelled") else flow.facts.now_ms
    if not facts.ready_at or not end or view.state in ("waiting", "skipped"):
        return None
    return max(0, end - facts.ready_at)


def _progress(flow: FlowView, view: StepView) -> str:
    """Return the second line of text in a step's box."""
    facts, state = view.facts, view.state
    if state == "waiting":
        open_ = len(view.waits_for)
        return f"waiting for {counted(open_, 'step')}" if open_ else "waiting for the flow to start"
    if facts.kind == "map" and facts.has_begun:
        more = "" if facts.sealed else ", adding"
        dead = f", {number(facts.dead)} dead" if facts.dead else ""
        dead += f", {number(facts.cancelled)} cancelled" if facts.cancelled else ""
        return f"{number(facts.ended)} of {number(facts.size)}{more}{dead}"
    if state == "running":
        left_ms = facts.due_at - flow.facts.now_ms
        left = duration(left_ms / 1000) if left_ms > 0 else ""
        if facts.kind == "wait":
            return f"signal, or {left}" if left else "waiting for a signal"
        if facts.kind == "timer":
            return f"in {left}" if left else "due now"
    took = _took(flow, view)
    return state if took is None else f"{state}, {duration(took / 1000)}"


def graph_of(flow: FlowView, href: Callable[[StepRow], str]) -> DrawnGraph:
    """Draw the steps and their edges.

    Args:
        href: Returns the link for a step in the drawing.
    """
    rows, path = step_rows(flow), [path_step.step for path_step in flow.critical_path]
    following = set(itertools.pairwise(path))
    nodes = [
        GraphNode(
            row.name, row.view.state, row.look, GLYPHS[row.look], row.progress, row.view.facts.job, row.share,
            row.on_path, href(row),
        )
        for row in rows
    ]  # fmt: skip
    edges = [
        GraphEdge(edge.step, row.name, edge.when, (edge.step, row.name) in following)
        for row in rows for edge in row.after
    ]  # fmt: skip
    frame = ChartFrame("flow", f"Steps of {flow.facts.flow_id}", says(flow))
    return draw(frame, nodes, edges, URGENCY)


def says(flow: FlowView) -> str:
    """Describe a flow in words, for users who can't see its drawing."""
    states = ", ".join(f"{count:,} {state}" for state, count in flow.counts.items())
    path = ", ".join(path_step.step for path_step in flow.critical_path[:20])
    number_of = counted(len(flow.facts.steps), "step")
    return f"{number_of}: {states}." + (f" The critical path: {path}." if path else "")


class ListedFlow(NamedTuple):
    """A flow's row in the list of flows.

    Attributes:
        share: Finished share of the flow's steps. A running map counts in proportion to its finished members.
    """

    row: FlowRow
    share: float


def listed(row: FlowRow) -> ListedFlow:
    """Return a flow's row for the list of flows."""
    if row.view is None or not row.view.facts.steps:
        return ListedFlow(row, 0.0)
    steps = step_rows(row.view)
    running = sum(step.share or 0.0 for step in steps if step.view.state == "running")
    return ListedFlow(row, min(1.0, (row.view.over + running) / len(steps)))


def steer(
    request: Request, view: FlowView, verb: str, say: Callable[[FlowRun], None], step: str = ""
) -> None:
    """Signal, retry or cancel a flow. Write an audit log entry before and after the action."""
    facts = view.facts
    what = f"flow:{facts.flow_id}" + (f" step:{step[:40]}" if step else "")
    with audited(request, f"flow-{verb}", queue=facts.queue, filter=what):
        say(FlowRun(facts.name, facts.id, client=site_of(request).operate))


class DeadMember(NamedTuple):
    """A dead member of a flow.

    Attributes:
        error: First line of its error, as this user may see it.
        died_at: Epoch ms, 0 if unknown.
    """

    step: str
    queue: str
    mid: str
    error: str
    died_at: int = 0


def dead_members(client: Client, contents: Contents, view: FlowView) -> list[DeadMember]:
    """Return up to MAX_REASONS dead members of a flow, each with its error."""
    if not view.dead:
        return []
    members: list[DeadMember] = []
    for name, word in FlowStore(client, view.facts.flow_id).failures().items():
        step, _, at = name.rpartition(":")
        step_view = view.by_name.get(step)
        if (
            word == "dead"
            and step_view is not None
            and step_view.facts.queue
            and at.isdecimal()
            and len(at) <= MAX_NUMBER_LENGTH
        ):
            mid = member_mid(view.facts.run, step, int(at))
            members.append(_dead_member(client, contents, step, step_view.facts.queue, mid, view))
        if len(members) == MAX_REASONS:
            break
    return members


def _dead_member(
    client: Client, contents: Contents, step: str, queue: str, mid: str, view: FlowView
) -> DeadMember:
    try:
        dead = Queue(queue, client).admin.dead(mid=mid)
    except JobqError as error:
        return DeadMember(step, queue, mid, f"its reason can't be read: {error}")
    if not dead:
        return DeadMember(step, queue, mid, "its reason is no longer kept")
    row = dead_row(contents, queue, dead[0], view.facts.now_ms)
    return DeadMember(step, queue, mid, row.row.error.partition("\n")[0], row.at_ms)


class FlowsInNeed:
    """Finds failed flows, and flows whose producer stopped. The server is queried at most every LOOK_EVERY_S."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = Lock()
        self._until = 0.0
        self._findings: list[PageFinding] = []

    def findings(self) -> list[PageFinding]:
        """Return findings about the latest flows. If there are more than MAX_COUNT, the last finding counts the other
        flows.
        """
        with self._lock:
            if time.monotonic() >= self._until:
                self._findings = self._read()
                self._until = time.monotonic() + LOOK_EVERY_S
            return self._findings

    def _read(self) -> list[PageFinding]:
        try:
            rows = flow_page(self._client, 0, MAX_LOOKED_AT).rows
        except JobqError:  # reported elsewhere on the page
            return []
        shown = [need for row in rows if row.view is not None and (need := _in_need(row.view))]
        if len(shown) > MAX_COUNT:
            more = f"{len(shown) - MAX_COUNT + 1:,} more flows"
            shown = [*shown[: MAX_COUNT - 1], PageFinding("unknown", "more", more, "", "flows")]
        return shown


def _in_need(view: FlowView) -> PageFinding | None:
    facts = view.facts
    where = {"flow": facts.flow_id}
    if view.state == "failed":
        failed = [step.name for step in view.steps if step.state in ("failed", "cancelled")]
        dead = f", {counted(view.dead, 'member')} dead" if view.dead else ""
        names = ", ".join(failed[:MAX_NAMES]) + " …" * (len(failed) > MAX_NAMES)
        text = f"{names} failed{dead}. Retry or delete the flow: jobq flow delete {facts.flow_id}"
        return PageFinding(
            "dead", "failed", facts.flow_id, text, "flow", where, facts.ended_at or None
        )
    if view.state != "running":
        return None
    stopped = [(step.stopped_ms(facts.now_ms), step) for step in view.steps]
    ago_ms, step = max(stopped, key=lambda pair: pair[0], default=(0, None))
    if not ago_ms or step is None:
        return None
    text = (
        f"Step {step.name} is still open, but its producer has stopped: {counted(step.facts.size, 'member')}, the last "
        f"added {lasting(ago_ms / 1000)} ago. Start the flow again with the same id and items to continue."
    )
    return PageFinding("retry", "stopped", facts.flow_id, text, "flow", where)
