"""Render pages with Jinja2: everything is escaped, and an undefined name in a template is an error.

In addition to the facts of their page, templates can use `url(route, **values)`, `has(route)`, `asset(name)`, the
functions of `formats` (`number`, `duration`, `size`, `share`, `rate`, `whole`), `ago(time)`, `moment(time)`, `me`,
`view` and `site`.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import jinja2
from starlette.requests import Request
from starlette.responses import Response

from jobq.durations import counted
from jobq.errors import JobqError, masked
from jobq.observe.escape import escaped
from jobq.queue.audit_log import without_values
from jobq.web import formats
from jobq.web.access.identity import NOBODY, Identity, UserRole
from jobq.web.assets import Asset, accent_sheet, assets
from jobq.web.filters import quoted
from jobq.web.operations.service import OperationView, operations_of
from jobq.web.operations.verbs import VERBS
from jobq.web.preferences import CHOICES, Preferences, preferences, zone_of
from jobq.web.routes import ROUTES, NavEntry, path_to
from jobq.web.site import Site, site_of

#: The header with which app.js asks for the changing part of a page.
LIVE_HEADER = "x-jobq-live"
#: How often a page refreshes itself, in seconds.
LIVE_S = 2.0
SECTIONS = ("Now", "Control", "Protocols", "Records")
FORMATS = {
    "number": formats.number, "whole": formats.whole, "rate": formats.rate, "duration": formats.duration,
    "size": formats.size, "share": formats.share, "UserRole": UserRole, "CHOICES": CHOICES, "VERBS": VERBS,
    "quoted": quoted, "counted": counted,
}  # fmt: skip


@cache
def environment() -> jinja2.Environment:
    """Return the Jinja environment of the package's templates."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("jobq.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(FORMATS)
    made.filters["printable"] = _printable
    made.filters["lines"] = _lines
    made.filters["without_values"] = without_values
    return made


def _printable(value: object) -> str:
    """Escape untrusted text for display on one line."""
    return escaped(str(value))


def _lines(value: object) -> str:
    """Escape untrusted text for display, but keep its line breaks."""
    return "\n".join(map(escaped, str(value).expandtabs(4).split("\n")))


class Times:
    """Formats the times of a page in the viewer's time zone, all relative to the same moment."""

    def __init__(self, zone: ZoneInfo, now: datetime) -> None:
        self.zone, self.now = zone, now

    def ago(self, at: datetime | float | None) -> str:
        """Format a time, or epoch milliseconds: `12 s ago`, `14:02`, `22 Nov 14:02`."""
        if at is None:
            return formats.UNKNOWN
        return formats.time(_time(at), self.now, self.zone)

    def moment(self, at: datetime | float | None) -> str:
        """Format a time with its date and time zone."""
        return formats.UNKNOWN if at is None else formats.moment(_time(at), self.zone)

    def machine(self, at: datetime | float) -> str:
        """Format a time for the `datetime` attribute of `<time>`."""
        return _time(at).isoformat(timespec="milliseconds")


def render(
    request: Request, template: str, *, status: int = 200, live: float = LIVE_S, **facts: Any
) -> Response:
    """Return a page.

    When app.js refreshes the page, return only the refreshed part, or 304 if that part is unchanged.

    Args:
        live: Seconds until the page refreshes itself, 0 for never.
    """
    part = LIVE_HEADER in request.headers
    text = environment().get_template(template).render(
        {**_frame(request, live), "layout": "live.html" if part else "base.html", **facts}
    )  # fmt: skip
    content = text.encode("utf-8", "replace")
    headers = {"vary": LIVE_HEADER}
    if part:
        tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
        headers["etag"] = tag
        if status == 200 and request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
    return Response(content, status, headers, "text/html; charset=utf-8")


def _frame(request: Request, live: float) -> dict[str, Any]:
    site = site_of(request)
    view = preferences(request.cookies)
    times = Times(zone_of(view.zone, request.cookies), datetime.now(UTC))
    me = getattr(request.state, "identity", NOBODY)

    def asset(name: str) -> Asset:
        return accent_sheet(site.settings.accent) if name == "accent.css" else assets()[name]

    def url(route: str, **values: Any) -> str:
        return path_to(request, route, **values)

    return {
        "url": url, "has": ROUTES.declared.__contains__, "asset": asset, "ago": times.ago,
        "moment": times.moment, "machine": times.machine, "zone": times.zone.key, "now": times.now,
        "me": me, "view": view, "site": site.settings, "live": live, "here": _here(request),
        "exports": _exports(site), "note": _note(request, me, view),
        "route": _route_name(request), "section_route": _section(request),
        "rail": rail(site) if me.may(UserRole.READ) else [],
    }  # fmt: skip


def _note(request: Request, me: Identity, view: Preferences) -> OperationView | None:
    """Return this user's latest operation, for a note on every page. Return None after the user has read the note."""
    site = site_of(request)
    if not me.may(UserRole.OPERATE) or site.settings.read_only:
        return None
    try:
        newest = operations_of(site).newest_of(me)
    except JobqError:  # unreadable parts are reported on the page
        return None
    is_read = newest is not None and newest.state.id == view.read
    return None if is_read or _route_name(request) in ("operation", "operations") else newest


def _exports(site: Site) -> list[str]:
    """Return environment variables that make commands use this dashboard's server."""
    client = site.client
    lines = [f"JOBQ_URL={masked(client.url)}"] if client.settings.url else []
    return lines + ([f"JOBQ_NAMESPACE={client.namespace}"] if client.namespace != "jobq" else [])


def rail(site: Site) -> list[tuple[str, list[NavEntry]]]:
    """Return the links of the sidebar by section, without features that this installation doesn't use."""
    entries = sorted(ROUTES.entries, key=lambda entry: entry.order)
    shown = [entry for entry in entries if entry.shown(site)]
    sections = [
        (section, [entry for entry in shown if entry.section == section]) for section in SECTIONS
    ]
    return [(section, links) for section, links in sections if links]


def _here(request: Request) -> str:
    query, path = request.url.query, quote(request.url.path, safe="/%~:@,;=+$&!*'()")
    return f"{path}?{query}" if query else path


def _route_name(request: Request) -> str:
    route = request.scope.get("route")
    return str(getattr(route, "name", ""))


def _section(request: Request) -> str:
    """Return the sidebar route whose path is the longest prefix of the page's path; '' if there is none."""
    path = str(getattr(request.scope.get("route"), "path", "")) + "/"
    above = {
        entry.route: ROUTES.declared[entry.route].path.rstrip("/") + "/"
        for entry in ROUTES.entries
        if entry.route in ROUTES.declared
    }
    routes = [route for route, start in above.items() if start != "/" and path.startswith(start)]
    return max(routes, key=lambda route: len(above[route]), default="")


def _time(at: datetime | float) -> datetime:
    return at if isinstance(at, datetime) else formats.at_ms(at)
