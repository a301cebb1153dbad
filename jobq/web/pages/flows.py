"""Flows: what runs and how far it is; the steps of one, drawn, and what it waits for."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from jobq.client.connection import Client
from jobq.errors import ScriptError
from jobq.flows import keys
from jobq.flows.listing import FlowRow, flow_page, flow_view, is_flow, unserved
from jobq.flows.state import FLOW_STATES, FlowView
from jobq.web import flows as shown
from jobq.web.pages.foreign import offset_of
from jobq.web.rendering import render
from jobq.web.routes import nav, page
from jobq.web.site import site_of

LONGEST_SEARCH = 100
#: Flows of one page of the list.
PER_PAGE = 25


def _has_flows(client: Client) -> bool:
    return bool(client.command("EXISTS", keys.flow_names(client.namespace)))


nav(
    "flows", "Flows", section="Now", order=45, key="f",
    shown=lambda site: site.uses("flows", _has_flows),
)  # fmt: skip


@page("/flows")
def flows(request: Request) -> Response:
    """List flows, the newest first."""
    query, offset = request.query_params, offset_of(request)
    name, state = query.get("q", "")[:LONGEST_SEARCH].strip(), query.get("state", "")
    state = state if state in FLOW_STATES else ""

    def wanted(row: FlowRow) -> bool:
        is_named = name.lower() in row.flow.lower()
        return is_named and (not state or (row.view is not None and row.view.state == state))

    client = site_of(request).client
    found = flow_page(client, offset, PER_PAGE, wanted if name or state else None)
    return render(
        request, "flows.html", rows=[shown.listed(row) for row in found.rows], following=found.following, q=name,
        state=state, states=FLOW_STATES, looks=shown.FLOW_LOOKS, offset=offset, has_some=_has_flows(client),
    )  # fmt: skip


@page("/flows/{flow}")
def flow(request: Request) -> Response:
    """Show one flow: its state, what it waits for, its steps drawn and as a list."""
    client, view = site_of(request).client, _known(request)
    rows = shown.step_rows(view)
    drawn = shown.graph_of(view, lambda row: f"#{row.anchor}")
    path = view.critical_path
    return render(
        request, "flow.html", flow=view, facts=view.facts, rows=shown.listed_steps(rows), drawn=drawn, path=path,
        looks=shown.FLOW_LOOKS, timed=any(one.took_ms for one in path), unserved=unserved(client, view),
    )  # fmt: skip


def _known(request: Request) -> FlowView:
    name = request.path_params["flow"]
    try:
        view = flow_view(site_of(request).client, name) if is_flow(name) else None
    except ScriptError as error:  # another program wrote a key of it
        raise HTTPException(502, f"flow {name} can't be read: {error}") from error
    if view is None:
        raise HTTPException(404, f"there is no flow {name!r:.140}, or it is over and was deleted")
    return view
