"""Topics, and the queues of RSMQ, RELIABLEQ, Sidekiq and Resque."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobq.config import parse_time
from jobq.errors import ConfigError, EmptyKeyError
from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.reliable.listing import find_queues
from jobq.protocols.rsmq import Rsmq
from jobq.protocols.rsmq.errors import QueueNotFoundError
from jobq.protocols.ruby.queue_records import queues_of
from jobq.topics.calls import topic_names
from jobq.topics.group import TopicGroup
from jobq.web import foreign
from jobq.web.access.identity import UserRole
from jobq.web.acting import audited
from jobq.web.foreign import MAX_ROWS, RELIABLE_PLACES, SYSTEMS, ShownBytes
from jobq.web.rendering import render
from jobq.web.routes import action, form_of, identity_of, nav, page, path_to
from jobq.web.site import SCANNED_S, Site, site_of
from jobq.web.viewer import redactor_of

RSMQ_PLACES = ("visible", "hidden", "all")


def _uses_topics(site: Site) -> bool:
    return site.uses("topics", lambda client: bool(topic_names(client)))


def _uses_rsmq(site: Site) -> bool:
    return site.uses("rsmq", lambda client: bool(Rsmq(client).list_queues()))


def _uses_reliable(site: Site) -> bool:
    return site.uses("reliable", lambda client: bool(find_queues(client).names), SCANNED_S)


def _uses_ruby(site: Site) -> bool:
    return site.uses("ruby", lambda client: any(queues_of(client, system) for system in SYSTEMS))


nav("topics", "Topics", section="Protocols", order=50, key="t", shown=_uses_topics)
nav("rsmq", "RSMQ", section="Protocols", order=51, shown=_uses_rsmq)
nav("reliable", "RELIABLEQ", section="Protocols", order=52, shown=_uses_reliable)
nav("ruby", "Sidekiq and Resque", section="Protocols", order=53, shown=_uses_ruby)


def offset_of(request: Request) -> int:
    """Return the number of the first row to show, from the query parameter `offset`."""
    text = request.query_params.get("offset", "0")
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise HTTPException(
            400, f"offset={text!r:.40} is invalid; use a number of up to 9 digits, or leave it out"
        )
    return int(text)


def shown_bytes(request: Request) -> ShownBytes:
    """Return a renderer that hides contents which the request's sender may not see."""
    site = site_of(request)
    return ShownBytes(redactor_of(site), identity_of(request).arguments)


@page("/topics")
def topics(request: Request) -> Response:
    """List the topics."""
    offset = offset_of(request)
    listed = foreign.topics(site_of(request).client, offset)
    return render(request, "topics.html", listed=listed, offset=offset, step=MAX_ROWS)


@page("/topics/{topic}")
def topic(request: Request) -> Response:
    """Show a topic: its retention, its groups, and its latest messages or the messages at an index."""
    name, client = request.path_params["topic"], site_of(request).client
    if name not in topic_names(client):
        raise HTTPException(404, f"no topic {name!r:.100}")
    asked = request.query_params.get("from", "")
    start = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 16 else None
    shown = shown_bytes(request)
    messages = foreign.topic_messages(client, name, shown, start)
    return render(
        request, "topic.html", topic=foreign.topic(client, name), messages=messages, start=start,
        may_see=shown.may_see,
    )  # fmt: skip


def _group(request: Request) -> TopicGroup:
    names = request.path_params
    return TopicGroup(names["topic"], names["group"], site_of(request).operate)


def _to_topic(request: Request) -> Response:
    return RedirectResponse(path_to(request, "topic", topic=request.path_params["topic"]), 303)


def _on_group(request: Request, verb: str) -> Response:
    group = _group(request)
    with audited(request, f"topic-{verb}", queue=group.topic.name, filter=f"group:{group.name}"):
        (group.pause if verb == "pause" else group.resume)()
    return _to_topic(request)


@action("/topics/{topic}/groups/{group}/pause", role=UserRole.OPERATE)
def pause_group(request: Request) -> Response:
    """Pause a group until it is resumed."""
    return _on_group(request, "pause")


@action("/topics/{topic}/groups/{group}/resume", role=UserRole.OPERATE)
def resume_group(request: Request) -> Response:
    """Resume a paused group."""
    return _on_group(request, "resume")


@action("/topics/{topic}/groups/{group}/seek", role=UserRole.ADMIN)
def seek_group(request: Request) -> Response:
    """Move a group to another position. This can't be undone, so the user must type the group's name."""
    group, form = _group(request), form_of(request)
    text = str(form.get("to", ""))
    if form.get("name") != group.name:
        raise HTTPException(400, f"type the name of the group, {group.name}, to move it")
    try:
        place = int(text) if text.isascii() and text.isdigit() else _moment(text)
    except ConfigError as error:
        raise HTTPException(400, str(error)) from error
    with audited(
        request, "topic-seek", queue=group.topic.name, filter=f"group:{group.name} to:{text}"
    ):
        group.seek(place)
    return _to_topic(request)


def _moment(text: str) -> str | datetime:
    return text if text in ("earliest", "latest") else parse_time(text, now=datetime.now(UTC))


@page("/rsmq")
def rsmq(request: Request) -> Response:
    """List RSMQ's queues."""
    offset = offset_of(request)
    listed = foreign.rsmq_queues(Rsmq(site_of(request).client), offset)
    return render(request, "rsmq.html", listed=listed, offset=offset, step=MAX_ROWS)


@page("/rsmq/{rsmq}")
def rsmq_queue(request: Request) -> Response:
    """Show a queue of RSMQ and its messages."""
    name, offset, opened = (
        request.path_params["rsmq"],
        offset_of(request),
        Rsmq(site_of(request).client),
    )
    place = _place(request, RSMQ_PLACES)
    shown = shown_bytes(request)
    try:
        facts = opened.get_queue_attributes(name).as_dict()
        messages = foreign.rsmq_messages(opened, name, place, offset, shown)
    except QueueNotFoundError as error:
        raise HTTPException(404, f"RSMQ has no queue {name!r:.100}") from error
    others = [queue for queue in opened.list_queues() if queue != name][:MAX_ROWS]
    return render(
        request, "rsmq_queue.html", name=name, facts=facts, messages=messages, place=place, offset=offset,
        step=MAX_ROWS, others=others, may_see=shown.may_see,
    )  # fmt: skip


@action("/rsmq/{rsmq}/move", role=UserRole.OPERATE)
def move_rsmq(request: Request) -> Response:
    """Move visible messages to another queue, for example back from a dead-letter queue."""
    name, form = request.path_params["rsmq"], form_of(request)
    target, limit = str(form.get("to", "")), str(form.get("limit", ""))
    if not (limit.isascii() and limit.isdigit() and 0 < int(limit[:9]) <= 10_000):
        raise HTTPException(
            400, f"can't move {limit!r:.40} messages; use a whole number from 1 to 10,000"
        )
    opened = Rsmq(site_of(request).operate)
    with audited(request, "rsmq-redrive", queue=name, filter=f"to:{target}") as under_way:
        under_way.set(number=opened.redrive(name, target, int(limit)))
    return RedirectResponse(path_to(request, "rsmq_queue", rsmq=name), 303)


def _place(request: Request, places: tuple[str, ...]) -> str:
    place = request.query_params.get("place", places[0])
    if place not in places:
        raise HTTPException(400, f"place={place!r:.40} is unknown; use one of {', '.join(places)}")
    return place


@page("/reliable")
def reliable(request: Request) -> Response:
    """List RELIABLEQ's queues."""
    offset = offset_of(request)
    listed = foreign.reliable_queues(ReliableQueue(site_of(request).client), offset)
    return render(request, "reliable.html", listed=listed, offset=offset, step=MAX_ROWS)


@page("/reliable/{reliable}")
def reliable_queue(request: Request) -> Response:
    """Show a queue of RELIABLEQ: waiting, delivered and dead messages."""
    key, offset = request.path_params["reliable"], offset_of(request)
    opened, place = ReliableQueue(site_of(request).client), _place(request, RELIABLE_PLACES)
    shown = shown_bytes(request)
    try:
        facts = opened.info(key)
        messages = foreign.reliable_messages(opened, key, place, offset, shown)
    except (EmptyKeyError, ConfigError) as error:
        raise HTTPException(404, f"RELIABLEQ has no queue {key!r:.100}") from error
    return render(
        request, "reliable_queue.html", key=key, facts=facts, messages=messages, place=place, offset=offset,
        step=MAX_ROWS, may_see=shown.may_see,
    )  # fmt: skip


@action("/reliable/{reliable}/revive", role=UserRole.OPERATE)
def revive_reliable(request: Request) -> Response:
    """Move the chosen dead messages back to their queue."""
    key = request.path_params["reliable"]
    ids = [str(id_) for id_ in form_of(request).getlist("id")]
    if ids:
        opened = ReliableQueue(site_of(request).operate)
        with audited(
            request, "reliable-revive", queue=key, filter=f"{len(ids)} chosen"
        ) as under_way:
            revived = opened.revive(key, *ids)
            if revived is None:
                raise EmptyKeyError(f"RELIABLEQ has no queue {key!r:.100}")
            under_way.set(number=len(revived))
    return RedirectResponse(path_to(request, "reliable_queue", reliable=key, place="dead"), 303)


@page("/ruby")
def ruby(request: Request) -> Response:
    """List the queues and workers of Sidekiq and Resque."""
    client = site_of(request).client
    return render(
        request,
        "ruby.html",
        listed=foreign.ruby_queues(client),
        workers=foreign.ruby_workers(client),
    )


@page("/ruby/{system}/{ruby}")
def ruby_queue(request: Request) -> Response:
    """Show a queue of Sidekiq or Resque."""
    system, name, offset = (
        request.path_params["system"],
        request.path_params["ruby"],
        offset_of(request),
    )
    if system not in [known.system for known in SYSTEMS]:
        raise HTTPException(404, f"unknown system {system!r:.40}; use sidekiq or resque")
    shown = shown_bytes(request)
    queue = foreign.ruby_queue(site_of(request).client, system, name, shown, offset)
    return render(
        request,
        "ruby_queue.html",
        facts=queue,
        offset=offset,
        step=MAX_ROWS,
        may_see=shown.may_see,
    )
