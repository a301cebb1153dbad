"""All running messages, longest-running or latest first."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jobq.observe.situation import running as running_messages
from jobq.web.paging import PER_PAGE, page_number
from jobq.web.rendering import render
from jobq.web.routes import nav, page
from jobq.web.site import site_of

MAX_SEARCH_LENGTH = 200

nav("running", "Running", section="Now", order=25)


@page("/running")
def running(request: Request) -> Response:
    """List running messages, with the usual run time of their jobs."""
    client, query = site_of(request).client, request.query_params
    wanted = query.get("q", "")[:MAX_SEARCH_LENGTH].strip()
    newest = query.get("sort") == "newest"
    runs = [
        run
        for run in running_messages(client)
        if any(wanted.lower() in text.lower() for text in (run.queue, run.job, run.mid, run.worker))
    ]
    ordered = runs[::-1] if newest else runs
    number = page_number(query.get("page", ""), len(ordered))
    part = slice((number - 1) * PER_PAGE, number * PER_PAGE)
    return render(
        request, "running.html", rows=ordered[part], total=len(ordered), q=wanted, newest=newest,
        now_ms=client.clock_ms(), number_of_page=number, pages=max(1, -(-len(ordered) // PER_PAGE)),
    )  # fmt: skip
