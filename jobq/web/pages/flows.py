"""The list of flows, and the page of a flow with its steps and waits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobq.client.connection import Client
from jobq.errors import CodecError, ConfigError, FlowClosedError, ScriptError
from jobq.flows import keys
from jobq.flows.listing import flow_page, flow_view, is_flow, unserved
from jobq.flows.run import FlowRun
from jobq.flows.state import FLOW_STATES, FlowView
from jobq.web import flows as shown
from jobq.web.access.identity import UserRole
from jobq.web.findings import PageFinding, finder
from jobq.web.pages.foreign import offset_of
from jobq.web.rendering import render
from jobq.web.routes import action, form_of, nav, page, path_to
from jobq.web.sampler import Snapshot
from jobq.web.site import Site, site_of
from jobq.web.viewer import contents_of

MAX_SEARCH_LENGTH = 100
#: Number of flows on a page of the list.
PER_PAGE = 25
#: Messages shown after an action.
SAID = {
    "signal": "The signal was sent.", "retry": "The retry was sent: dead members run again.",
    "cancel": "Cancelled: no more steps will start, and running members stop at the next lease renewal.",
}  # fmt: skip


def _has_flows(client: Client) -> bool:
    return bool(client.command("EXISTS", keys.flow_names(client.namespace)))


nav(
    "flows", "Flows", section="Now", order=45, key="f",
    shown=lambda site: site.uses("flows", _has_flows),
)  # fmt: skip


@finder
def flows_in_need(site: Site, snapshot: Snapshot) -> list[PageFinding]:
    """Find failed flows, and flows with a stopped producer."""
    if snapshot.broken or not site.uses("flows", _has_flows):
        return []
    needs = site.part(shown.FlowsInNeed, lambda site: shown.FlowsInNeed(site.client))
    return needs.findings()


@page("/flows")
def flows(request: Request) -> Response:
    """List flows, latest first."""
    query, offset = request.query_params, offset_of(request)
    name, state = query.get("q", "")[:MAX_SEARCH_LENGTH].strip(), query.get("state", "")
    state = state if state in FLOW_STATES else ""

    client = site_of(request).client
    listed = flow_page(client, offset, PER_PAGE, part=name, state=state)
    return render(
        request, "flows.html", rows=[shown.listed(row) for row in listed.rows], following=listed.next_offset, q=name,
        state=state, states=FLOW_STATES, looks=shown.FLOW_LOOKS, offset=offset, has_some=_has_flows(client),
    )  # fmt: skip


def _unserved(client: Client, view: FlowView) -> dict[str, str]:
    try:
        return unserved(client, view)
    except ScriptError as error:
        return {"": f"the list of workers can't be read: {error}"}


@page("/flows/{flow}")
def flow(request: Request) -> Response:
    """Show a flow's state, the reasons for waiting, and its steps as a graph and a list."""
    client, view = site_of(request).client, _known(request)
    rows = shown.step_rows(view)
    drawn = shown.graph_of(view, lambda row: f"#{row.anchor}")
    path = view.critical_path
    return render(
        request, "flow.html", flow=view, facts=view.facts, rows=shown.listed_steps(rows), drawn=drawn, path=path,
        looks=shown.FLOW_LOOKS, timed=any(path_step.took_ms for path_step in path), unserved=_unserved(client, view),
        dead=shown.dead_members(client, contents_of(request), view),
        said=SAID.get(request.query_params.get("said", ""), ""),
    )  # fmt: skip


def _known(request: Request) -> FlowView:
    name = request.path_params["flow"]
    try:
        view = flow_view(site_of(request).client, name) if is_flow(name) else None
    except ScriptError as error:  # another program wrote a key of it
        raise HTTPException(502, f"flow {name} can't be read: {error}") from error
    if view is None:
        raise HTTPException(404, f"no flow {name!r:.140}, or it ended and was deleted")
    return view


@action("/flows/{flow}/steer", role=UserRole.OPERATE)
def steer_flow(request: Request) -> Response:
    """Send a signal to a flow, or retry its dead members."""
    form = {key: str(value) for key, value in form_of(request).items()}
    verb, step = form.get("verb", ""), form.get("step", "")
    if verb == "signal":
        value = _value(form.get("value", ""))
        return _say(request, verb, lambda run: run.signal(step, value), step)
    if verb == "retry":
        return _say(request, verb, lambda run: run.retry(step or None), step)
    raise HTTPException(400, f"unknown verb {verb!r:.40}; use signal or retry")


@page("/flows/{flow}/cancel", role=UserRole.ADMIN)
def confirm_cancel(request: Request) -> Response:
    """Ask the user to type the id of a flow before the flow is cancelled."""
    view = _known(request)
    return render(request, "flow-cancel.html", live=0, flow=view, facts=view.facts)


@action("/flows/{flow}/cancel", role=UserRole.ADMIN)
def cancel_flow(request: Request) -> Response:
    """Cancel a flow if the user typed its id."""
    if str(form_of(request).get("typed", "")).strip() != request.path_params["flow"]:
        raise HTTPException(
            409, "the typed text isn't the flow's id, so nothing was changed; try again"
        )
    return _say(request, "cancel", FlowRun.cancel)


def _say(request: Request, verb: str, say: Callable[[FlowRun], None], step: str = "") -> Response:
    """Send a command to a flow, write it to the audit log, and show the flow."""
    view = _known(request)
    try:
        shown.steer(request, view, verb, say, step)
    except (ConfigError, FlowClosedError, CodecError) as error:
        raise HTTPException(409, str(error)) from error
    return RedirectResponse(path_to(request, "flow", flow=view.facts.flow_id, said=verb), 303)


def _value(text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError) as error:
        raise HTTPException(
            409, f"the value can't be read as JSON: {error}; put a text in quotes"
        ) from error
