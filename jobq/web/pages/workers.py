"""The list of workers, the page of a worker, and commands to workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec import structs
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobq.client.connection import Client
from jobq.client.numbered_calls import is_denied
from jobq.errors import ConfigError, ScriptError
from jobq.observe.workers import (
    STATES,
    WorkerRecord,
    state_of,
    worker_record,
    worker_records,
    workers_of,
)
from jobq.queue import orders, presence
from jobq.queue.presence import WorkerEntry
from jobq.web.access.identity import UserRole
from jobq.web.acting import performing
from jobq.web.newest_actions import quieted_by
from jobq.web.paging import PER_PAGE, page_number
from jobq.web.rendering import render
from jobq.web.routes import action, form_of, identity_of, nav, page, path_to
from jobq.web.site import site_of

nav("workers", "Workers", section="Now", order=50, key="w")

#: State -> name of its colour and glyph.
LOOKS = {"working": "running", "quiet": "paused", "leaving": "retry", "lost": "dead", "damaged": "dead"}  # fmt: skip
UNDOABLE = ("quiet", "resume", "dump")
FINAL = {
    "drain": "The worker finishes running jobs, returns other messages, and exits. A process manager may restart it.",
    "restart": "The worker replaces its children one by one after their jobs. To load new code, start a new worker.",
}
MAX_SEARCH_LENGTH = 200


@page("/workers")
def workers(request: Request) -> Response:
    """List the workers, starting with workers that need attention."""
    client, query = site_of(request).client, request.query_params
    wanted, state = query.get("q", "")[:MAX_SEARCH_LENGTH].strip(), query.get("state", "")
    now_ms = client.clock_ms()
    everyone, unread = _everyone(client)
    states = {entry.name: state_of(entry, now_ms) for entry in everyone}
    kept = [
        entry for entry in everyone if _matches(entry, wanted) and state in ("", states[entry.name])
    ]  # fmt: skip
    by = query.get("sort", "trouble")
    kept.sort(key=lambda entry: _order(entry, by, states[entry.name]))
    number = page_number(query.get("page", ""), len(kept))
    shown = kept[(number - 1) * PER_PAGE : number * PER_PAGE]
    rows, unread = _rows(client, shown, now_ms, unread)
    live = [entry for entry in everyone if states[entry.name] in ("working", "quiet", "leaving")]
    versions = Counter(entry.version or "unknown" for entry in live)
    return render(
        request, "workers.html", rows=rows, looks=LOOKS, sort=by, q=wanted,
        state=state, states=Counter(states.values()), all_states=STATES, matching=len(kept), total=len(everyone),
        live_count=len(live), number_of_page=number, pages=-(-len(kept) // PER_PAGE), versions=versions.most_common(4),
        busy=sum(entry.running for entry in live), slots=sum(entry.slots for entry in live), ordered=_ordered(request),
        unread=unread,
        quieted=quieted_by(client) if any(states[entry.name] == "quiet" for entry in shown) else {},
    )  # fmt: skip


def _everyone(client: Client) -> tuple[list[WorkerEntry], str]:
    try:
        return workers_of(client), ""
    except ScriptError as error:
        if is_denied(error):
            raise
        return [], str(error)


def _rows(
    client: Client, shown: Sequence[WorkerEntry], now_ms: int, unread: str
) -> tuple[list[WorkerRecord], str]:
    try:
        return worker_records(client, shown, now_ms), unread
    except ScriptError as error:
        if is_denied(error):
            raise
        return [worker_record(entry, None, now_ms) for entry in shown], unread or str(error)


def _matches(worker: WorkerEntry, wanted: str) -> bool:
    texts = (worker.name, worker.host, worker.version, *worker.queues)
    return not wanted or any(wanted.lower() in text.lower() for text in texts)


def _order(worker: WorkerEntry, by: str, state: str) -> tuple[Any, ...]:
    if by == "busy":
        return (-worker.running, worker.name)
    if by == "seen":
        return (worker.seen_at, worker.name)
    if by == "started":
        return (-worker.started_at, worker.name)
    if by == "name":
        return (worker.name,)
    return (STATES.index(state), worker.name)


def _ordered(request: Request) -> dict[str, Any]:
    """Return the command that the user just sent, from the query parameters of the page."""
    query = request.query_params
    if query.get("ordered") not in UNDOABLE:
        return {}
    return {
        "verb": query["ordered"],
        **{key: int(query.get(key, "0")[:6]) if query.get(key, "").isdecimal() else 0 for key in ("sent", "refused")},
    }  # fmt: skip


@page("/workers/{worker}")
def worker(request: Request) -> Response:
    """Show a worker's children, its running jobs, the jobs that it can run, and its answer to the user's command."""
    client, name = site_of(request).client, request.path_params["worker"]
    entry = presence.some_workers(client, [name]).get(name)
    order_id = request.query_params.get("order", "")
    answer = orders.answer(client, order_id) if order_id else None
    if entry is None and answer is None:
        raise HTTPException(
            404, f"no worker {name!r:.120}; the worker exited, or was lost more than an hour ago"
        )
    now_ms = client.clock_ms()
    entry = entry or WorkerEntry(name)
    children = presence.running(client, [name]).get(name, ())
    known = presence.job_names(client, [entry.jobs]).get(entry.jobs)
    record = worker_record(entry, children, now_ms)
    running = [
        {"pid": child.pid, **structs.asdict(job)}
        for child in record.children
        for job in child.running
    ]
    return render(
        request, "worker.html", record=record, looks=LOOKS, gone=not entry.seen_at and not entry.damaged, name=name,
        running=sorted(running, key=lambda job: int(job["started_at"])), now_ms=now_ms,
        known=sorted(known) if known else None, order_id=order_id, answer=answer,
        may_order=entry.is_live(now_ms), final=FINAL,
        quieted=quieted_by(client).get(name) if record.state == "quiet" else None,
    )  # fmt: skip


@action("/workers/orders", role=UserRole.OPERATE)
def order_workers(request: Request) -> Response:
    """Send a command to the selected workers."""
    form = form_of(request)
    names = [str(value) for key, value in form.multi_items() if key == "worker"][:PER_PAGE]
    verb = _verb(str(form.get("verb", "")), UNDOABLE)
    sent = 0
    with performing(request, "control", filter=_filter(verb, names), number=len(names)) as client:
        for entry in presence.some_workers(client, names).values():
            with suppress(ConfigError):  # counted as rejected; its page shows the reason
                orders.send(client, entry, verb, by=identity_of(request).name)
                sent += 1
    path = path_to(request, "workers", ordered=verb, sent=sent, refused=len(names) - sent)
    return RedirectResponse(path, 303)


@action("/workers/{worker}/orders", role=UserRole.OPERATE)
def order_worker(request: Request) -> Response:
    """Tell one worker to pause, to resume, or to report its stacks."""
    return _send(request, UNDOABLE)


@page("/workers/{worker}/end", role=UserRole.ADMIN)
def confirm_end(request: Request) -> Response:
    """Ask the user to type the name of a worker before the worker drains or restarts."""
    verb = _verb(request.query_params.get("verb", "drain"), tuple(FINAL))
    return render(
        request, "worker-end.html", live=0, name=request.path_params["worker"], verb=verb, says=FINAL[verb]
    )  # fmt: skip


@action("/workers/{worker}/end", role=UserRole.ADMIN)
def end_worker(request: Request) -> Response:
    """Tell one worker to drain or restart, if the user typed its name."""
    if str(form_of(request).get("typed", "")).strip() != request.path_params["worker"]:
        raise HTTPException(
            409, "the typed text isn't the worker's name, so nothing was changed; try again"
        )
    return _send(request, tuple(FINAL))


def _send(request: Request, allowed: Sequence[str]) -> Response:
    client, form, name = site_of(request).client, form_of(request), request.path_params["worker"]
    verb, child = _verb(str(form.get("verb", "")), allowed), str(form.get("child", "0"))
    entry = presence.some_workers(client, [name]).get(name)
    if entry is None:
        raise HTTPException(404, f"no worker {name!r:.120}")
    if not child.isdecimal() or len(child) > 9:
        raise HTTPException(400, f"{child!r:.40} is not a process id")
    by = identity_of(request).name
    with performing(request, "control", filter=_filter(verb, [name]), number=1) as operating:
        order_id = orders.send(operating, entry, verb, by=by, child=int(child))
    return RedirectResponse(path_to(request, "worker", worker=name, order=order_id), 303)


def _filter(verb: str, names: Sequence[str]) -> str:
    return " ".join([f"control:{verb}", *(f"worker:{name}" for name in names)])


def _verb(verb: str, allowed: Sequence[str]) -> str:
    if verb not in allowed:
        raise HTTPException(400, f"unknown command {verb!r:.40}; use one of {', '.join(allowed)}")
    return verb
