"""Flows: their progress, steps and waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobq.errors import ConfigError, FlowClosedError
from jobq.flows.listing import (
    FlowHead,
    FlowRecord,
    FlowRow,
    flow_page,
    flow_record,
    flow_view,
    is_flow,
    unserved,
)
from jobq.flows.run import FlowRun
from jobq.flows.state import FLOW_STATES, FlowView
from jobq.records import JsonRecord
from jobq.web.access.identity import UserRole
from jobq.web.api.resource import (
    PAGING,
    ApiCall,
    ConflictError,
    NotThereError,
    Parameter,
    cursor_text,
    offset_of,
    resource,
)
from jobq.web.api.schema import ListPage
from jobq.web.flows import steer


class FlowRowReply(FlowHead, kw_only=True):
    """A flow in the list of flows.

    Attributes:
        over: Number of done, failed, skipped and cancelled steps.
        problem: Why the flow can't be read. An unreadable flow has an empty `state`.
    """

    members: int = 0
    ended: int = 0
    dead: int = 0
    over: int = 0
    nsteps: int = 0
    remark: str = ""
    problem: str = ""


class FlowReply(FlowRecord):
    """A flow and its steps.

    Attributes:
        over: Number of done, failed, skipped and cancelled steps.
        problem: Always empty, because unreadable flows appear only in lists.
    """

    over: int
    nsteps: int
    problem: str


class SentReply(JsonRecord):
    """Confirmation of a request to a flow.

    Attributes:
        sent: The requested action. A worker performs it within seconds.
    """

    flow: str
    sent: str


class SignalBody(JsonRecord):
    """A signal to a flow.

    Attributes:
        step: Name of the waiting step that the signal ends.
        value: Value to pass to the flow.
    """

    step: str
    value: Any = None


class RetryBody(JsonRecord):
    """The dead messages to run again.

    Attributes:
        step: Retry only the dead messages of this step.
    """

    step: str | None = None


class CancelBody(JsonRecord):
    """Confirmation that a flow should be cancelled.

    Attributes:
        confirm: The flow's id, which is required because a cancel can't be undone.
    """

    confirm: str | None = None


@resource(
    "/flows", Parameter("state", "Only flows in this state.", values=("", *FLOW_STATES)),
    Parameter("name", "Only flows with this name."), *PAGING,
)  # fmt: skip
def flows(call: ApiCall) -> ListPage[FlowRowReply]:
    """List flows, latest first. A request searches at most 1,000 flows."""
    page = flow_page(
        call.site.client, offset_of(call), call["limit"], name=call["name"], state=call["state"]
    )
    following = None if page.next_offset is None else cursor_text(page.next_offset)
    return ListPage(items=[_row(row) for row in page.rows], next=following)


@resource("/flows/{flow}")
def flow(call: ApiCall) -> FlowReply:
    """Show one flow and its steps."""
    view = _known(call)
    record = flow_record(view, unserved(call.site.client, view))
    return FlowReply.of(record, over=view.over, nsteps=len(view.steps), problem="")


@resource("/flows/{flow}/signal", method="POST", role=UserRole.OPERATE, status=202)
def signal_flow(call: ApiCall, body: SignalBody) -> SentReply:
    """Send a signal to a waiting step of a flow."""
    return _sent(call, "signal", lambda run: run.signal(body.step, body.value), body.step)


@resource("/flows/{flow}/retry", method="POST", role=UserRole.OPERATE, status=202)
def retry_flow(call: ApiCall, body: RetryBody) -> SentReply:
    """Retry dead members of a flow, and then run the following steps."""
    return _sent(call, "retry", lambda run: run.retry(body.step or None), body.step or "")


@resource("/flows/{flow}/cancel", method="POST", role=UserRole.ADMIN, status=202)
def cancel_flow(call: ApiCall, body: CancelBody) -> SentReply:
    """Cancel a flow."""
    if body.confirm != call["flow"]:
        raise ConfigError("this can't be undone; pass the flow's id as confirm")
    return _sent(call, "cancel", FlowRun.cancel)


def _sent(call: ApiCall, verb: str, say: Callable[[FlowRun], None], step: str = "") -> SentReply:
    view = _known(call)
    try:
        steer(call.request, view, verb, say, step)
    except FlowClosedError as error:
        raise ConflictError(str(error)) from error
    return SentReply(view.facts.flow_id, verb)


def _known(call: ApiCall) -> FlowView:
    name = call["flow"]
    view = flow_view(call.site.client, name) if is_flow(name) else None
    if view is None:
        raise NotThereError(f"no flow {name!r:.140}, or it ended and was deleted")
    return view


def _row(row: FlowRow) -> FlowRowReply:
    view = row.view
    if view is None:
        name, _, given = row.flow.partition(":")
        return FlowRowReply(
            row.flow, name, given, "", "", created_at=row.started_ms, ended_at=0, keep_ms=0, problem=row.problem
        )  # fmt: skip
    facts = view.facts
    return FlowRowReply.of(
        facts, flow=facts.flow_id, state=view.state, created_at=facts.created_at or row.started_ms,
        members=view.members, ended=view.ended, dead=view.dead, over=view.over, nsteps=len(facts.steps),
        remark=view.remark, problem="",
    )  # fmt: skip
