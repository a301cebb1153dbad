"""Lists of messages and events, one message, and the find box."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobq.errors import ConfigError
from jobq.flows.identity import member_of
from jobq.flows.listing import flow_view, is_flow
from jobq.observe.why import Reason
from jobq.queue import presence
from jobq.queue.directory import listed_queues, queue_names
from jobq.queue.queue import Queue
from jobq.queue.types import Status
from jobq.web import search, values
from jobq.web.access.bounds import TooManyScansError
from jobq.web.filters import PLACES, FilterError, parse, quoted
from jobq.web.messages import (
    MessageShown,
    StateShown,
    find_mid,
    read_message,
    state_of,
    state_of_kind,
)
from jobq.web.past import earlier_lives
from jobq.web.rendering import LIVE_S, render
from jobq.web.routes import ROUTES, identity_of, page, path_to
from jobq.web.search import FoundRows, ListedRow
from jobq.web.site import site_of
from jobq.web.viewer import AskedFilter, contents_of, filter_of

#: Maximum number of search results to list.
MAX_HITS = 100
PLACE_WORDS = {
    "": "Messages",
    "ready": "Queued",
    "due": "Scheduled",
    "running": "Running",
    "done": "Done",
    "dead": "Dead",
}
_NOTHING = {
    "": ("No messages", "This queue is empty.", "jobq enqueue JOB --queue"),
    "ready": ("No queued messages", "Messages appear here while they are ready to run.",
              "jobq enqueue JOB --queue"),
    "due": ("No scheduled messages", "Messages waiting for their start time or a retry appear here.",
            "jobq enqueue JOB --delay 5m --queue"),
    "running": ("Nothing runs", "Messages appear here once a worker fetches them, until the attempt ends.",
                "jobq worker --import MODULE --queues"),
    "done": ("No finished messages", "Finished messages are soon removed; until=1h keeps their ids for an hour.",
             "jobq enqueue JOB --mid ID --until 1h --queue"),
    "dead": ("No dead messages", "Messages land here after their last failed attempt.", ""),
}  # fmt: skip


class ReasonShown(Reason):
    """A reason for a message's state, with a link to a page that helps. `href` may be empty."""

    label: str = ""
    href: str = ""


@page("/queues/{queue}/messages", name="queue_messages")
def queue_messages(request: Request) -> Response:
    """List a queue's messages, either in all states or in one state."""
    queue, place = known_queue(request), request.query_params.get("place", "")
    if place not in (*PLACES, ""):
        raise HTTPException(404, f"unknown place {place!r}; use one of {', '.join(PLACES)}")
    keys = search.DEAD_KEYS if place == "dead" else search.LIVE_KEYS
    asked = filter_of(request, keys if place else LISTED_KEYS)
    listed = _messages(request, asked, [queue], [place] if place else PLACES)
    if listed and place == "running":
        listed = listed._replace(rows=search.running(site_of(request).client, queue, listed.rows))
    title, text, command = _NOTHING[place]
    return render(
        request, "messages.html", title=queue, queue=queue, place=place, asked=asked, listed=listed, keys=keys,
        nothing_title=title, nothing_text=text, words=PLACE_WORDS, state=state_of_row, more=more_of(request, listed),
        nothing_command=f"{command} {shlex.quote(queue)}" if command else "",
    )  # fmt: skip


#: Keys that a filter supports in lists of messages in all places.
LISTED_KEYS = tuple(dict.fromkeys((*search.LIVE_KEYS, *search.DEAD_KEYS)))


@page("/messages", name="messages")
def messages(request: Request) -> Response:
    """Search the messages of all queues."""
    asked = filter_of(request, LISTED_KEYS)
    names = listed_queues(site_of(request).client).names
    listed = _messages(request, asked, names, PLACES) if asked.filter else None
    return render(
        request, "messages.html", live=0, title="Messages", queue="", place="", asked=asked, listed=listed,
        keys=LISTED_KEYS, nothing_title="No messages match", nothing_text="", words=PLACE_WORDS, state=state_of_row,
        more=more_of(request, listed), nothing_command="",
    )  # fmt: skip


@page("/queues/{queue}/events", name="queue_events")
def queue_events(request: Request) -> Response:
    """List a queue's events, latest first."""
    name = known_queue(request)
    queue, asked = Queue(name, site_of(request).client), filter_of(request, search.EVENT_KEYS)
    cursor = request.query_params.get("cursor", "")
    events = None
    if not asked.error:
        with refused():
            events = search.events(queue, contents_of(request), asked.filter, cursor)
    return render(
        request, "events.html", queue=name, asked=asked, listed=events, more=more_of(request, events),
        keys=search.EVENT_KEYS, state=state_of_kind,
    )  # fmt: skip


@page("/queues/{queue}/messages/{mid}")
def message(request: Request) -> Response:
    """Show one message: its state with the reasons, its attempts, its content and its result."""
    site, contents = site_of(request), contents_of(request)
    try:
        shown = read_message(
            site.client, contents, request.path_params["queue"], request.path_params["mid"]
        )
    except ConfigError as error:
        raise HTTPException(404, str(error)) from error
    call = shown.call
    parts = values.arguments(*call.arguments[:2], call.arguments.names) if call.arguments else []
    result = shown.result
    asks = "past" in request.query_params or not shown.is_known
    lives = earlier_lives(site, contents, shown.facts) if asks else None
    return render(
        request, "message.html", lives=lives, live=0 if lives else LIVE_S,
        status=200 if shown.is_known else 404, shown=shown, facts=shown.facts, call=call,
        reasons=[_linked(request, shown, reason) for reason in shown.reasons], parts=parts,
        headers=values.tree("", dict(call.headers)).parts, may_see=identity_of(request).arguments,
        result=values.tree("", result.value) if result and not result.note else None,
        checkpoint=None if shown.checkpoint is None else values.tree("", shown.checkpoint),
        member=member_of(shown.facts.mid), edited=request.query_params.get("edited", "")[:64],
        copied=request.query_params.get("copied", "")[:256],
    )  # fmt: skip


@page("/find")
def find(request: Request) -> Response:
    """Look up a text: a message id, the name of a queue, flow or job, or a filter."""
    text = request.query_params.get("q", "").strip()
    client = site_of(request).client
    names = listed_queues(client).names
    try:
        hits = find_mid(client, names, text) if text else []
    except ConfigError:
        hits = []
    if len(hits) == 1:
        return _see(request, "message", queue=hits[0].queue, mid=text)
    if not hits and text:
        elsewhere = _named(request, text, names)
        if elsewhere is not None:
            return elsewhere
    return render(
        request, "find.html", live=0, text=text, hits=hits[:MAX_HITS], more=len(hits) - MAX_HITS,
        state=state_of, example=f"job:{quoted(text)}" if text else "job:shop.*",
    )  # fmt: skip


def known_queue(request: Request) -> str:
    """Return the queue in the path. Raises HTTPException if the queue was never used."""
    name: str = request.path_params["queue"]
    if name not in queue_names(site_of(request).client):
        raise HTTPException(404, f"queue {name!r} does not exist")
    return name


def state_of_row(listed: ListedRow) -> StateShown:
    """Return the state that a list shows for a message."""
    row = listed.row
    if row.place == "dead":
        return state_of(Status("dead"))
    return state_of(
        Status(listed.status, max(0, row.attempt), lock_expires_at=listed.lock_expires_at)
    )


def _messages(
    request: Request, asked: AskedFilter, queues: Sequence[str], places: Sequence[str]
) -> FoundRows | None:
    if asked.error:
        return None
    cursor = request.query_params.get("cursor", "")
    site = site_of(request)
    with refused(), site.guard.scans.taken() if asked.filter else nullcontext():
        return search.messages(
            site.client, contents_of(request), asked.filter, queues, places, cursor
        )


@contextmanager
def refused() -> Iterator[None]:
    """Convert errors to replies: 400 for an invalid address, and 503 for too many searches."""
    try:
        yield
    except TooManyScansError as error:
        raise HTTPException(503, str(error), {"retry-after": "2"}) from error
    except ConfigError as error:
        raise HTTPException(400, str(error)) from error


def more_of(request: Request, rows: FoundRows | None) -> str:
    """Return the address of the next page, '' at the end."""
    if rows is None or not rows.cursor:
        return ""
    query = urlencode({**request.query_params, "cursor": rows.cursor})
    return f"{request.url.path}?{query}"


def _named(request: Request, text: str, names: Sequence[str]) -> Response | None:
    """Redirect to the queue, flow, job or filtered list that the text names. Return None if nothing matches."""
    if text in names and "queue" in ROUTES.declared:
        return _see(request, "queue", queue=text)
    if text in names:
        return _see(request, "queue_messages", queue=text)
    if is_flow(text) and flow_view(site_of(request).client, text) is not None:
        return _see(request, "flow", flow=text)
    if "job" in ROUTES.declared and text in _jobs(request):
        return _see(request, "job", job=text)
    try:
        parse(text, may_see_arguments=identity_of(request).arguments, keys=LISTED_KEYS)
    except FilterError:
        return None
    return _see(request, "messages", f=text)


def _jobs(request: Request) -> set[str]:
    client = site_of(request).client
    known = presence.job_names(client, (worker.jobs for worker in presence.workers(client)))
    return {name for names in known.values() for name in names or ()}


def _see(request: Request, route: str, **parts: str) -> Response:
    return RedirectResponse(path_to(request, route, **parts), 303)


def _linked(request: Request, shown: MessageShown, reason: Reason) -> ReasonShown:
    facts = shown.facts
    queue = facts.queue
    pages: dict[str, tuple[str, str, dict[str, str]]] = {
        "paused": ("Open the queue", "queue", {"queue": queue}),
        "no_worker": ("See the workers", "workers", {}),
        "all_quiet": ("See the workers", "workers", {}),
        "unknown_job": ("See workers with this job", "job", {"job": facts.job}),
        "unknown_job_partly": ("See workers with this job", "job", {"job": facts.job}),
        "unknown_backoff": ("See workers with this job", "job", {"job": facts.job}),
        "limited": ("See the limits", "limits", {}),
        "busy": ("See the workers", "workers", {}),
        "server_full": ("See the server", "settings", {}),
        "server_read_only": ("See the server", "settings", {}),
        "not_found": ("Search the history", "history", {"mid": facts.mid, "range": "30d"}),
        "running": ("See the worker", "worker", {"worker": facts.run.worker if facts.run else ""}),
    }
    pages |= dict.fromkeys(
        ("key_held", "key_rate", "key_max", "line", "turns", "queue_max"), ("See the keys", "keys", {})
    )  # fmt: skip
    label, route, parts = pages.get(reason.code, ("", "", {}))
    if reason.code.startswith("flow_") and (member := member_of(facts.mid)):
        label, route, parts = "See the flow", "flow", {"flow": member.flow}
    if route not in ROUTES.declared or "" in parts.values():
        return ReasonShown.of(reason, label="", href="")
    return ReasonShown.of(reason, label=label, href=path_to(request, route, **parts))
