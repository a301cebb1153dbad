"""The list of queues, and the page of a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from jobq.client.names import base_of
from jobq.observe.chart import Drawing
from jobq.observe.escape import escaped
from jobq.queue.directory import queue_names
from jobq.web import charts, formats
from jobq.web.live import sampler_of, snapshot_of
from jobq.web.names import encoded
from jobq.web.newest_actions import paused_by
from jobq.web.preferences import preferences, zone_of
from jobq.web.rendering import render
from jobq.web.routes import nav, page, path_to
from jobq.web.site import site_of
from jobq.web.trouble import QueueFigures
from jobq.web.words import StateLabel, emptied, emptying, remedy, sentence, state_label

nav("queues", "Queues", section="Now", order=20, key="q")

#: Order named in the URL -> sort key of a row. The first order is the default.
_ORDERS: dict[str, Callable[[QueueFigures], Any]] = {
    "trouble": lambda figures: figures.trouble,
    "name": lambda figures: figures.queue,
    "ready": lambda figures: (-figures.ready, figures.queue),
    "oldest": lambda figures: (-(figures.oldest_ms or 0), figures.queue),
    "running": lambda figures: (-figures.running, figures.queue),
    "delayed": lambda figures: (-figures.delayed, figures.queue),
    "dead": lambda figures: (-figures.dead, figures.queue),
    "dequeued": lambda figures: (-(figures.dequeued_per_s or 0), figures.queue),
    "p95": lambda figures: (-(figures.recent.run_p95_ms or 0), figures.queue),
}
#: Maximum number of rows; most installations have fewer queues.
MAX_ROWS = 1_000


@page("/queues")
def queues(request: Request) -> Response:
    """List all queues, starting with queues that have problems."""
    snapshot, sampler = snapshot_of(request), sampler_of(site_of(request))
    sort = request.query_params.get("sort", "")
    sort = sort if sort in _ORDERS else "trouble"
    part = request.query_params.get("f", "")[:200]
    named = [row for row in snapshot.queues.values() if part.lower() in row.queue.lower()]
    named.sort(key=_ORDERS[sort])
    root = path_to(request, "queues")
    rows = [_row(row, root, charts.spark(sampler, snapshot, row.queue)) for row in named[:MAX_ROWS]]
    return render(
        request, "queues.html", snapshot=snapshot, rows=rows, count=len(named), left_out=len(named[MAX_ROWS:]),
        part=part, sort=sort,
    )  # fmt: skip


class QueueRow(NamedTuple):
    """A queue's row as formatted texts. A page may have 500 rows, so its template only joins the texts."""

    href: str
    queue: str
    state: StateLabel
    broken: str
    ready: str
    ready_whole: str
    spark: Drawing
    oldest: str
    running: str
    slots: str
    delayed: str
    dead: str
    dequeued: str
    p95: str
    empty: str


def _row(figures: QueueFigures, root: str, spark: Drawing) -> QueueRow:
    oldest = "" if figures.oldest_ms is None else formats.duration(figures.oldest_ms / 1000)
    p95 = figures.recent.run_p95_ms
    return QueueRow(
        f"{root}/{encoded(figures.queue)}", escaped(figures.queue), state_label(figures), escaped(figures.broken),
        formats.number(figures.ready), formats.whole(figures.ready), spark,
        f"≥ {oldest}" if figures.at_least else oldest,
        formats.number(figures.busy), f"/{formats.number(figures.slots)}" if figures.slots else "",
        formats.number(figures.delayed),
        formats.number(figures.dead), formats.rate(figures.dequeued_per_s),
        "" if p95 is None else formats.duration(p95 / 1000), emptied(figures),
    )  # fmt: skip


@page("/queues/{queue}")
def queue(request: Request) -> Response:
    """Show one queue: its problem, figures and charts."""
    name = request.path_params["queue"]
    site = site_of(request)
    sampler = sampler_of(site)
    snapshot = sampler.look()
    if snapshot.of(name) is None and name in queue_names(site.client):
        snapshot = sampler.look(after=snapshot.number)  # it is new
    figures = snapshot.of(name)
    if figures is None:
        raise HTTPException(404, f"queue {name} does not exist")
    zone = zone_of(preferences(request.cookies).zone, request.cookies)
    has_lake = bool(site.settings.lake)
    span = charts.span_of(request.query_params.get("range", ""), snapshot, zone, has_lake)
    span, past = charts.with_past(site, sampler, span, name)
    shown = [charts.outcomes(sampler, span, name, past), charts.times(sampler, span, name, past)]
    if not span.is_long:
        shown = [charts.backlog(sampler, span, name), charts.dequeued(sampler, span, name), *shown]
    known_ms = sampler.tail.since_ms(name)
    cause = next((cause for cause in snapshot.incidents_of(name) if cause in snapshot.causes), None)
    return render(
        request, "queue.html", snapshot=snapshot, queue=name, figures=figures, word=state_label(figures),
        why=cause.sentence if cause else sentence(figures), remedy=cause.remedy if cause else remedy(figures),
        longest=snapshot.longest.get(name), charts=shown, span=span, past=past,
        ranges=charts.ranges_of(has_lake),
        unread=sampler.tail.unread.get(name, ""), known_ms=known_ms, empty_in=_empty_in(figures),
        paused_by=paused_by(site.client, name) if figures.paused else None,
        partitions=[row for row in snapshot.partitions.values() if name != row.queue and base_of(row.queue) == name],
    )  # fmt: skip


def _empty_in(figures: QueueFigures) -> str:
    return emptying(figures) if figures.ready else ""
