"""The first page."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jobq.queue.directory import queue_names
from jobq.web.rendering import render
from jobq.web.routes import nav, page
from jobq.web.site import site_of

nav("overview", "Overview", section="Now", order=10, key="o")


@page("/")
def overview(request: Request) -> Response:
    """Show what needs a look."""
    return render(request, "overview.html", names=queue_names(site_of(request).client))
