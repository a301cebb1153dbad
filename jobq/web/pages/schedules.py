"""Pages of schedules and their ticks, and actions on schedules."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, get_args

from msgspec import structs
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobq.client.connection import Client
from jobq.client.numbered_calls import ScriptCall
from jobq.client.pipelining import run_each
from jobq.durations import counted
from jobq.errors import ConfigError, JobqError, ScriptError
from jobq.jobs.job import Job
from jobq.jobs.registry import default_registry
from jobq.jobs.states import state_word
from jobq.jobs.ticks import moment
from jobq.queue.directory import listed_queues, queue_names
from jobq.queue.queue import Queue
from jobq.queue.types import LoggedTick, Schedules, Status
from jobq.schedules import listing
from jobq.schedules.definition import Missed, Overlap, Schedule, checked_schedule, encoded
from jobq.schedules.listing import (
    ScheduleRow,
    WorkerCode,
    names_of,
    schedule_row,
    schedules_of_queues,
)
from jobq.schedules.words import in_words
from jobq.web.access.identity import UserRole
from jobq.web.acting import performing
from jobq.web.messages import StateShown, state_of
from jobq.web.pages.editing import arguments_in, merged, shown_arguments, typable
from jobq.web.paging import PER_PAGE, page_number
from jobq.web.rendering import render
from jobq.web.routes import action, form_of, identity_of, nav, page, path_to
from jobq.web.site import Site, site_of
from jobq.web.viewer import redactor_of

#: Queue -> what the code of its live workers declares; None if unknown.
Known = Mapping[str, Sequence[WorkerCode]] | None
#: A tick that is due for longer than this shows as late.
LATE_MS = 60_000
#: Above this number of schedules, only the page's schedules are read, sorted by name.
MAX_SORTED = 2_000
#: Number of ticks in the strip and in the table, and number of next times.
STRIP, NEWEST, COMING = 50, 10, 5
#: Number of entries that a list reads from the tick log of each queue.
LOG = 200
#: State -> its rank in the list. '' is the state of a schedule without problems.
STATES = {
    "late": 0, "undeclared": 0, "no worker": 0, "unknown job": 0, "unreadable": 1, "no definition": 2,
    "queue paused": 3, "": 4, "paused": 5,
}  # fmt: skip
MAX_SEARCH_LENGTH = 200
MAX_VALUE_LENGTH = 300
#: Outcome of a tick -> name of its glyph and colour, and a text.
OUTCOMES = {
    "enqueued": ("done", "enqueued"), "waits": ("ready", "waits for the previous run"),
    "replaced": ("retry", "replaced the previous run"), "skipped": ("paused", "skipped: the previous run was "
                                                                              "unfinished"),
    "missed": ("dead", "missed"), "full": ("dead", "not enqueued: its key's queue was full"),
    "clock": ("retry", "the server's clock was set back"),
}  # fmt: skip


def _has_schedules(client: Client) -> bool:
    return bool(listing.queues_with(client, listed_queues(client).names, "schedules", "ticks"))


nav(
    "schedules", "Schedules", section="Control", order=10, key="s",
    shown=lambda site: site.uses("schedules", _has_schedules),
)  # fmt: skip


class ListedSchedule(NamedTuple):
    """A schedule's row in the list.

    Attributes:
        state: A key of STATES.
        outcome: Log entry of the latest tick.
    """

    row: ScheduleRow
    words: str
    state: str
    outcome: LoggedTick | None


@page("/schedules")
def schedules(request: Request) -> Response:
    """List the schedules of all queues, sorted by need for attention, and then by next tick."""
    client, query = site_of(request).client, request.query_params
    replies = schedules_of_queues(client, listed_queues(client).names, LOG)
    known = listing.known_if_readable(client)
    paused = listing.paused_queues(client, replies)
    unread = {name: str(reply) for name, reply in replies.items() if isinstance(reply, JobqError)}
    read = {name: reply for name, reply in replies.items() if isinstance(reply, Schedules)}
    wanted = query.get("q", "")[:MAX_SEARCH_LENGTH].strip()
    named = [(queue, name) for queue, stored in read.items() for name in names_of(stored)]
    total, state = len(named), query.get("state", "")
    if total > MAX_SORTED:
        named = [pair for pair in named if wanted.lower() in f"{pair[1]} {pair[0]}".lower()]
        number, shown, matching = _part(
            sorted(named, key=lambda pair: pair[1]), query.get("page", "")
        )
        rows: Sequence[ListedSchedule] = [
            _listed(queue, name, read[queue], known, paused) for queue, name in shown
        ]
    else:
        every = [_listed(queue, name, read[queue], known, paused) for queue, name in named]
        chosen = [row for row in every if _matches(row, wanted) and state in ("", row.state)]
        chosen.sort(key=_trouble)
        number, rows, matching = _part(chosen, query.get("page", ""))
    return render(
        request, "schedules.html", rows=rows, total=total, matching=matching, number_of_page=number,
        pages=-(-matching // PER_PAGE), q=wanted, state=state, all_states=[*filter(None, STATES)], unread=unread,
        workers_unread=known is None,
        outcomes=OUTCOMES, sorted_whole=total <= MAX_SORTED,
    )  # fmt: skip


def _part(rows: Sequence[Any], text: str) -> tuple[int, Sequence[Any], int]:
    number = page_number(text, len(rows))
    return number, rows[(number - 1) * PER_PAGE : number * PER_PAGE], len(rows)


def _listed(
    queue: str, name: str, stored: Schedules, known: Known, paused: Collection[str]
) -> ListedSchedule:
    row = schedule_row(queue, name, stored)
    state = _state_of(row, known, paused)
    newest = next((tick for tick in stored.log if tick.name == name), None)
    return ListedSchedule(row, in_words(row.schedule) if row.schedule else "", state, newest)


def _state_of(row: ScheduleRow, known: Known, paused: Collection[str]) -> str:
    state = listing.state_of(row, listing.of_queue(known, row.queue), row.queue in paused)
    is_late = row.late_ms > LATE_MS and state in ("", "queue paused")
    return "late" if is_late else state


def _matches(listed_schedule: ListedSchedule, wanted: str) -> bool:
    job = listed_schedule.row.schedule.job if listed_schedule.row.schedule else ""
    texts = (listed_schedule.row.name, listed_schedule.row.queue, job)
    return not wanted or any(wanted.lower() in text.lower() for text in texts)


def _trouble(listed_schedule: ListedSchedule) -> tuple[Any, ...]:
    coming = listed_schedule.row.next_ms
    return (
        STATES[listed_schedule.state],
        coming is None,
        coming or 0,
        listed_schedule.row.name,
        listed_schedule.row.queue,
    )


@page("/schedules/{schedule}")
def schedule(request: Request) -> Response:
    """Show one schedule. `?queue=` selects a queue if several have a schedule with this name."""
    site, name = site_of(request), request.path_params["schedule"]
    queue, stored, others = _home(request, name)
    row = schedule_row(queue.name, name, stored)
    ticks = [tick for tick in stored.log if tick.name == name]
    definition, known = row.schedule, listing.known_if_readable(site.client)
    paused = listing.paused_queues(site.client, [queue.name])
    return render(
        request, "schedule.html", row=row, definition=definition, words=in_words(definition) if definition else "",
        others=others, trouble=_state_of(row, known, paused), workers_unread=known is None,
        coming=_coming(definition, queue.name, stored.now_ms) if definition else [],
        strip=ticks[:STRIP][::-1], counts=Counter(tick.outcome for tick in ticks[:STRIP]), ticks=ticks[:NEWEST],
        outcomes=OUTCOMES, late_median=_median(ticks[:STRIP]), runs=_runs(queue, ticks[:NEWEST]),
        arguments=_arguments(site, definition) if definition else [], ran=request.query_params.get("ran", ""),
        may_see=identity_of(request).arguments,
    )  # fmt: skip


def _home(request: Request, name: str) -> tuple[Queue, Schedules, list[str]]:
    """Return the queue of a schedule, that queue's schedules, and other queues with a schedule of this name."""
    client, wanted = site_of(request).client, request.query_params.get("queue", "")
    names = listed_queues(client).names
    names = [name for name in names if name == wanted] if wanted else names
    replies = schedules_of_queues(client, names)
    homes = [
        queue for queue, reply in replies.items()
        if isinstance(reply, Schedules) and (name in reply.definitions or name in reply.ticks)
    ]  # fmt: skip
    if not homes:
        broken = [str(reply) for reply in replies.values() if isinstance(reply, JobqError)]
        why = f"; {counted(len(broken), 'queue')} can't be read" if broken else ""
        raise HTTPException(404, f"no schedule {name!r:.120}{why}")
    queue = Queue(homes[0], client)
    return queue, queue.admin.schedules(1_000), homes[1:]


def _coming(definition: Schedule, queue: str, now_ms: int) -> list[tuple[int, str]]:
    shift_ms = definition.shift_ms(queue)
    ticks = islice(definition.ticks.after(now_ms - shift_ms), COMING)
    return [
        (tick + shift_ms, f"{moment(tick + shift_ms, definition.zone):%a %d %b %Y %H:%M:%S %Z}")
        for tick in ticks
    ]


def _median(ticks: Sequence[LoggedTick]) -> float | None:
    late = sorted(
        tick.late_ms for tick in ticks if tick.outcome in ("enqueued", "replaced", "waits")
    )
    return late[len(late) // 2] / 1000 if late else None


def _runs(queue: Queue, ticks: Sequence[LoggedTick]) -> dict[str, StateShown | None]:
    """Return message id -> state of the run that a tick enqueued. The state of an ended run is None."""
    mids, calls, places = list[str](), list[ScriptCall[Status]](), [queue]
    with suppress(ScriptError):  # the map of partitions may be damaged
        places = queue.alone()
    for place in places:
        for mid in {tick.mid for tick in ticks if tick.mid}:
            with suppress(ConfigError):  # another program wrote that entry
                calls.append(place.status_call(mid))
                mids.append(mid)
    runs: dict[str, StateShown | None] = {}
    for mid, reply in zip(mids, run_each(queue.client, calls), strict=True):
        if not isinstance(reply, JobqError):
            known = None if state_word(reply) in ("done", "unknown") else state_of(reply)
            runs[mid] = runs.get(mid) or known
    return runs


def _arguments(site: Site, definition: Schedule) -> list[tuple[str, str]]:
    shown = redactor_of(site).call(definition.job, definition.args, definition.kwargs)
    named = [
        (name or str(at), value)
        for at, (name, value) in enumerate(zip(shown.names, shown.args, strict=True))
    ]
    return [(name, _short(value)) for name, value in (*named, *shown.kwargs.items())]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}…"


@action("/schedules/{schedule}/steer", role=UserRole.OPERATE)
def steer_schedule(request: Request) -> Response:
    """Pause or resume a schedule, or enqueue its call now."""
    form, name = form_of(request), request.path_params["schedule"]
    verb, home = str(form.get("verb", "")), str(form.get("queue", ""))
    if verb not in ("pause", "resume", "run-now"):
        raise HTTPException(400, f"unknown verb {verb!r:.40}; use pause, resume or run-now")
    if home not in queue_names(site_of(request).client):
        raise HTTPException(404, f"no queue {home!r:.120}")
    ran = ""
    with performing(request, f"schedule-{verb}", queue=home, filter=f"schedule:{name}") as client:
        queue = Queue(home, client)
        if verb == "run-now":
            ran = listing.run_now(queue, name, queue.admin.schedules()).detail
        elif queue.admin.schedule(verb, name)[0] == "unknown":
            raise HTTPException(404, f"no schedule {name!r:.120}")
    where = path_to(request, "schedule", schedule=name, queue=home, ran=ran or None)
    return RedirectResponse(where, 303)


@page("/schedules/{schedule}/edit", role=UserRole.OPERATE)
def edit_schedule(request: Request) -> Response:
    """Show a form for a schedule added on the server."""
    queue, definition = _added(request)
    shown = shown_arguments(site_of(request), definition.job, definition.args, definition.kwargs)
    text = typable(json.dumps(shown, ensure_ascii=False, indent=2))
    return render(
        request, "schedule-edit.html", queue=queue.name, definition=definition, text=text, missed=get_args(Missed),
        overlaps=get_args(Overlap), every=f"{definition.every_ms / 1000:g}s" if definition.every_ms else "",
        spread=f"{definition.spread_ms / 1000:g}s" if definition.spread_ms else "", live=0,
    )  # fmt: skip


@action("/schedules/{schedule}/edit", role=UserRole.OPERATE)
def change_schedule(request: Request) -> Response:
    """Replace the definition of a schedule added on the server."""
    queue, old = _added(request)
    form = {key: str(value).strip() for key, value in form_of(request).items()}
    given = {key: form.get(key) or None for key in ("every", "tz", "missed", "overlap", "spread")}
    name = f"schedule:{old.name}"
    with performing(request, "schedule-edit", queue=queue.name, filter=name) as client:
        shown = shown_arguments(site_of(request), old.job, old.args, old.kwargs)
        stored = {"args": list(old.args), "kwargs": old.kwargs}
        call = merged(arguments_in(form.get("call", "")), shown, stored)
        known = default_registry.find(old.job)
        if known is not None:
            _check_call(known, call)
        made = checked_schedule(
            old.name, old.job, form.get("cron") or None, given, call["args"], call["kwargs"]
        )
        made = structs.replace(made, start_ms=old.start_ms, end_ms=old.end_ms, times=old.times)
        word, _ = Queue(queue.name, client).admin.schedule("add", old.name, encoded(made))
        if word not in ("added", "same"):
            why = {
                "taken": "a worker declares it in code",
                "full": "it is gone, and the queue is full",
            }
            raise ConfigError(f"the schedule was not changed: {why.get(word, word)}")
    return RedirectResponse(path_to(request, "schedule", schedule=old.name, queue=queue.name), 303)


def _check_call(job: Job[..., Any], call: dict[str, Any]) -> None:
    try:
        job.check_arguments(call["args"], call["kwargs"])
    except TypeError as error:
        raise ConfigError(f"{job.name} can't be called like this: {error}") from error


def _added(request: Request) -> tuple[Queue, Schedule]:
    """Return a schedule added on the server, and its queue, if this user may change the schedule."""
    if not identity_of(request).arguments:
        raise HTTPException(403, "this needs the 'arguments' right, which this login does not have")
    name = request.path_params["schedule"]
    queue, stored, _ = _home(request, name)
    row = schedule_row(queue.name, name, stored)
    if row.schedule is None:
        raise HTTPException(409, f"schedule {name!r:.120} has no readable definition")
    if row.origin == "code":
        raise HTTPException(
            409, f"schedule {name} is declared in code; pause the schedule, or change the code"
        )
    return queue, row.schedule
