"""Dead messages of all queues, in groups by queue, job and error, and as a list."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext

from starlette.requests import Request
from starlette.responses import Response

from jobq.events import in_utc
from jobq.queue.directory import listed_queues
from jobq.web import dead as dead_messages
from jobq.web import search
from jobq.web.filters import Filter
from jobq.web.pages.messages import PLACE_WORDS, more_of, refused, state_of_row
from jobq.web.rendering import render
from jobq.web.routes import nav, page
from jobq.web.search import FoundRows, SearchLimits
from jobq.web.site import site_of
from jobq.web.viewer import contents_of, filter_of

nav("dead", "Dead", section="Now", order=30, key="d")
#: Maximum number of rows in an export.
MAX_EXPORTED = 5_000


@page("/dead")
def dead(request: Request) -> Response:
    """Show dead messages grouped by error, then one by one."""
    asked = filter_of(request, search.DEAD_KEYS)
    client, contents = site_of(request).client, contents_of(request)
    names = listed_queues(client).names
    grouped = rows = None
    if not asked.error:
        if "cursor" not in request.query_params:
            grouped = dead_messages.groups(client, contents, asked.filter, names)
        rows = _rows(request, asked.filter, names)
    return render(
        request, "dead.html", asked=asked, grouped=grouped, listed=rows, keys=search.DEAD_KEYS,
        more=more_of(request, rows), words=PLACE_WORDS, state=state_of_row,
    )  # fmt: skip


@page("/dead.jsonl", name="dead_export")
def dead_export(request: Request) -> Response:
    """Return dead messages as JSON lines, without parts that this user may not see."""
    asked = filter_of(request, search.DEAD_KEYS)
    with refused():
        asked.check()
        rows = _rows(
            request, asked.filter, listed_queues(site_of(request).client).names,
            SearchLimits(rows=MAX_EXPORTED),
        )  # fmt: skip
    headers = {"content-disposition": 'attachment; filename="dead.jsonl"'}
    text = "".join(f"{line}\n" for line in _lines(rows))
    return Response(text, 200, headers, "application/jsonl; charset=utf-8")


def _rows(
    request: Request, asked: Filter, names: list[str], limits: SearchLimits | None = None
) -> FoundRows:
    cursor = request.query_params.get("cursor", "")
    slots = site_of(request).guard.scans
    with refused(), slots.taken() if asked or limits else nullcontext():
        return search.messages(
            site_of(request).client, contents_of(request), asked, names, ["dead"], cursor, limits
        )


def _lines(rows: FoundRows) -> Iterator[str]:
    for listed in rows.rows:
        row, arguments = listed.row, listed.call.arguments
        yield json.dumps({
            "queue": row.queue, "dead_id": listed.dead_id, "mid": row.mid, "job": row.job,
            "died_at": in_utc(listed.at_ms), "attempts": row.attempt, "crashes": row.crashes, "reason": row.error,
            "args": arguments.args if arguments else None, "kwargs": arguments.kwargs if arguments else None,
        })  # fmt: skip
    if rows.cursor:
        yield json.dumps({"next": rows.cursor, "looked_at": rows.looked_at, "total": rows.total})
