"""Flows: how far each is, its steps, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jobq.errors import ConfigError, FlowClosedError
from jobq.flows.listing import FlowRow, flow_page, flow_view, is_flow, unserved
from jobq.flows.run import FlowRun
from jobq.flows.state import FLOW_STATES, STEP_STATES, FlowView, StepView, step_sentence
from jobq.web.access.identity import UserRole
from jobq.web.api.resource import (
    PAGING,
    ApiCall,
    ConflictError,
    NotThereError,
    Parameter,
    cursor_text,
    read_cursor,
    resource,
)
from jobq.web.api.shapes import (
    FLAG,
    MOMENT,
    TEXT,
    WHOLE,
    ByName,
    Items,
    Maybe,
    Optional,
    RecordShape,
    Text,
    Whole,
    listed,
)
from jobq.web.flows import steer

_AT = Maybe(MOMENT, zero=True)
FLOW = RecordShape(
    flow=Text("`name:id`."), name=TEXT, id=TEXT, state=Text(values=("", *FLOW_STATES)), queue=TEXT, created_at=_AT,
    ended_at=_AT, keep_ms=WHOLE, members=WHOLE, ended=WHOLE, dead=WHOLE,
    over=Whole("Steps that are done, failed, skipped or cancelled."), nsteps=WHOLE, remark=TEXT,
    problem=Text("Why it can't be read; then its state is empty."),
)  # fmt: skip
STEP = RecordShape(
    step=TEXT, state=Text(values=STEP_STATES), kind=TEXT, queue=TEXT, job=TEXT, size=WHOLE, sealed=FLAG, done=WHOLE,
    ended=WHOLE, dead=WHOLE, retried=WHOLE, due_at=_AT, flow=TEXT, added_at=_AT, ready_at=_AT, ended_at=_AT,
    after=Items(RecordShape(step=TEXT, when=TEXT)), waits=Text("What it waits for, or why it is skipped."),
)  # fmt: skip


@dataclass(frozen=True)
class JsonShape:
    """Any JSON value."""

    says: str = ""

    def written(self, value: Any) -> Any:
        """Return the value itself."""
        return value

    def described(self) -> dict[str, Any]:
        """Return the JSON schema, which allows everything."""
        return {"description": self.says}


SENT = RecordShape(
    flow=TEXT, sent=Text("What was sent to the flow. A worker does it within seconds.")
)


@resource(
    "/flows", listed(FLOW), Parameter("state", "Only in this state.", values=("", *FLOW_STATES)),
    Parameter("name", "Only of this name."), *PAGING,
)  # fmt: skip
def flows(call: ApiCall) -> Any:
    """List flows, the newest first. A request looks at 1,000 of them at most."""
    at, name, state = read_cursor(call["cursor"]) or 0, call["name"], call["state"]
    if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at < 10**9:
        raise ConfigError("cursor= is not one that this list gave; leave it out")

    def wanted(row: FlowRow) -> bool:
        is_named = not name or row.flow.startswith(f"{name}:")
        return is_named and (not state or (row.view is not None and row.view.state == state))

    found = flow_page(call.site.client, at, call["limit"], wanted)
    following = None if found.following is None else cursor_text(found.following)
    return {"items": [_row(one) for one in found.rows], "next": following}


@resource(
    "/flows/{flow}",
    FLOW.with_fields(
        refused=Whole("Reports about members that it does not have."), steps=Items(STEP),
        unserved=ByName(TEXT, "Queues that no worker serves and that steps wait for."),
        waits_for=Items(RecordShape(step=TEXT, code=TEXT, sentence=TEXT)),
        critical_path=Items(RecordShape(step=TEXT, took_ms=WHOLE)),
    ),
)  # fmt: skip
def flow(call: ApiCall) -> Any:
    """Show one flow and its steps."""
    client, view = call.site.client, _known(call)
    return _record(view) | {
        "refused": view.facts.refused, "steps": [_step(view, one) for one in view.steps],
        "unserved": unserved(client, view), "waits_for": [one._asdict() for one in view.waits_for],
        "critical_path": [one._asdict() for one in view.critical_path],
    }  # fmt: skip


@resource(
    "/flows/{flow}/signal", SENT, method="POST", role=UserRole.OPERATE, status=202,
    body=RecordShape(step=Text("The wait that it ends."), value=Optional(JsonShape("What comes with it."))),
)  # fmt: skip
def signal_flow(call: ApiCall) -> Any:
    """End a wait of a flow."""
    step, value = _step_of(call), call.body.get("value")
    return _sent(call, "signal", lambda run: run.signal(step, value), step)


@resource(
    "/flows/{flow}/retry", SENT, method="POST", role=UserRole.OPERATE, status=202,
    body=RecordShape(step=Optional(Text("Only the dead of this step."))),
)  # fmt: skip
def retry_flow(call: ApiCall) -> Any:
    """Run again what is dead, and then the steps behind it."""
    step = _step_of(call)
    return _sent(call, "retry", lambda run: run.retry(step or None), step)


@resource(
    "/flows/{flow}/cancel", SENT, method="POST", role=UserRole.ADMIN, status=202,
    body=RecordShape(confirm=Text("The flow's id, since this can't be undone.")),
)  # fmt: skip
def cancel_flow(call: ApiCall) -> Any:
    """Cancel a flow."""
    if call.body.get("confirm") != call["flow"]:
        raise ConfigError("this can't be undone; give the flow's id as confirm")
    return _sent(call, "cancel", FlowRun.cancel)


def _sent(call: ApiCall, verb: str, say: Callable[[FlowRun], None], step: str = "") -> Any:
    view = _known(call)
    try:
        steer(call.request, view, verb, say, step)
    except FlowClosedError as error:
        raise ConflictError(str(error)) from error
    return {"flow": view.facts.flow_id, "sent": verb}


def _step_of(call: ApiCall) -> str:
    step = call.body.get("step") or ""
    if not isinstance(step, str):
        raise ConfigError(f"step={step!r:.80} is not the name of a step")
    return step


def _known(call: ApiCall) -> FlowView:
    name = call["flow"]
    view = flow_view(call.site.client, name) if is_flow(name) else None
    if view is None:
        raise NotThereError(f"there is no flow {name!r:.140}, or it is over and was deleted")
    return view


def _row(row: FlowRow) -> dict[str, Any]:
    if row.view is not None:
        return _record(row.view) | {"created_at": row.view.facts.created_at or row.started_ms}
    name, _, given = row.flow.partition(":")
    return {
        "flow": row.flow, "name": name, "id": given, "state": "", "queue": "", "created_at": row.started_ms,
        "ended_at": 0, "keep_ms": 0, "members": 0, "ended": 0, "dead": 0, "over": 0, "nsteps": 0, "remark": "",
        "problem": row.problem,
    }  # fmt: skip


def _record(view: FlowView) -> dict[str, Any]:
    facts = view.facts
    return {
        "flow": facts.flow_id, "name": facts.name, "id": facts.id, "state": view.state, "queue": facts.queue,
        "created_at": facts.created_at, "ended_at": facts.ended_at, "keep_ms": facts.keep_ms, "members": view.members,
        "ended": view.ended, "dead": view.dead, "over": view.over, "nsteps": len(facts.steps), "remark": view.remark,
        "problem": "",
    }  # fmt: skip


def _step(view: FlowView, one: StepView) -> dict[str, Any]:
    names = (
        "kind", "queue", "job", "size", "sealed", "done", "ended", "dead", "cancelled", "retried", "due_at", "flow",
        "added_at", "ready_at", "ended_at",
    )  # fmt: skip
    return {
        "step": one.name, "state": one.state, **{name: getattr(one.facts, name) for name in names},
        "after": [edge._asdict() for edge in one.facts.after], "waits": step_sentence(view, one.name),
    }  # fmt: skip
