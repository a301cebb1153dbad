"""The overview page: figures, charts and problems that need attention."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jobq.web import charts
from jobq.web.findings import findings
from jobq.web.live import sampler_of, snapshot_of
from jobq.web.newest_actions import newest_acts
from jobq.web.preferences import preferences, zone_of
from jobq.web.rendering import render
from jobq.web.routes import nav, page
from jobq.web.sampler import DEAD, DEQUEUED, RUNNING
from jobq.web.site import site_of
from jobq.web.words import headline

nav("overview", "Overview", section="Now", order=10, key="o")

#: Rows of the list of newest dead messages.
NEWEST_DEAD = 6
#: Lines of the list of newest actions.
NEWEST_ACTS = 6


@page("/")
def overview(request: Request) -> Response:
    """Show figures, charts and problems of the whole installation."""
    site = site_of(request)
    sampler, snapshot = sampler_of(site), snapshot_of(request)
    zone = zone_of(preferences(request.cookies).zone, request.cookies)
    has_lake = bool(site.settings.lake)
    span = charts.span_of(request.query_params.get("range", ""), snapshot, zone, has_lake)
    span, past = charts.with_past(site, sampler, span)
    listed = findings(site, snapshot)
    known_ms = [
        since for name in snapshot.queues if (since := sampler.tail.since_ms(name)) is not None
    ]
    return render(
        request, "overview.html",
        snapshot=snapshot,
        headline=headline(snapshot, len(listed)),
        findings=listed,
        spark=lambda figure: charts.spark(sampler, snapshot, figure=figure),
        DEAD=DEAD, DEQUEUED=DEQUEUED, RUNNING=RUNNING,
        span=span, ranges=charts.ranges_of(has_lake), past=past,
        charts=[
            charts.times(sampler, span, past=past) if span.is_long else charts.backlog(sampler, span),
            charts.outcomes(sampler, span, past=past),
        ],
        newest_dead=sampler.outcomes.newest_dead(NEWEST_DEAD),
        newest_acts=newest_acts(site.client, NEWEST_ACTS),
        known_ms=max(known_ms, default=None),
    )  # fmt: skip
