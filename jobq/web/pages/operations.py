"""Pages of operations on many messages and of the audit log, and actions on queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobq.config import duration_s
from jobq.errors import ConfigError, JobqError, LakeError, ScriptError
from jobq.queue.audit_log import AuditEntry, AuditLog, without_ended_intents
from jobq.queue.directory import queue_names
from jobq.queue.queue import Queue
from jobq.web.access.identity import UserRole
from jobq.web.acting import audited, performing
from jobq.web.live import sampler_of
from jobq.web.operations.service import (
    NotAllowedError,
    Operations,
    OperationView,
    operations_of,
)
from jobq.web.operations.verbs import VERBS
from jobq.web.rendering import LIVE_S, render
from jobq.web.routes import action, form_of, identity_of, nav, page, path_to
from jobq.web.site import Site, site_of
from jobq.web.sources import sources_of
from jobq.web.viewer import contents_of

nav(
    "operations",
    "Operations",
    section="Records",
    order=80,
    shown=lambda site: uses_operations(site),
)
nav("audit", "Audit log", section="Records", order=85, key="a")

#: Periods over which messages can be revived: value in the form -> label.
SPREADS = {"0": "Immediately", "10m": "Over 10 minutes", "1h": "Over an hour", "6h": "Over 6 hours"}
PHASES = {
    "freezing": ("running", "Searching"), "previewed": ("ready", "Preview"), "applying": ("running", "Applying"),
    "stopped": ("paused", "Stopped"), "done": ("done", "Done"), "undoing": ("running", "Undoing"),
    "undone": ("retry", "Undone"), "failed": ("dead", "Failed"),
}  # fmt: skip
#: Phase of an audit log entry -> name of its glyph and colour, and a text.
ENDINGS = {
    "done": ("done", "done"), "failed": ("dead", "failed"), "refused": ("paused", "refused"),
    "undone": ("retry", "undone"), "intent": ("running", "unfinished"),
}  # fmt: skip
#: Maximum number of entries that a page of the audit log reads, and shows.
MAX_LOOKED_AT, ROWS = 5_000, 100


def uses_operations(site: Site) -> bool:
    """Return whether a bulk action was used in the last hour."""
    return site.uses("operations", lambda client: bool(Operations(client, client).listed()))


@contextmanager
def refusing() -> Iterator[None]:
    """Convert the error of a rejected action to HTTPException."""
    try:
        yield
    except NotAllowedError as error:
        raise HTTPException(403, str(error)) from error
    except ConfigError as error:
        raise HTTPException(409, str(error)) from error


@page("/operations")
def operations(request: Request) -> Response:
    """List the operations of the last hour."""
    views = operations_of(site_of(request)).listed()
    return render(request, "operations.html", operations=views, phases=PHASES, verbs=VERBS)


@action("/operations", role=UserRole.OPERATE, name="make_operation")
def make_operation(request: Request) -> Response:
    """Create an operation on the matching or selected messages, and show its preview."""
    form = form_of(request)
    ids = [
        (queue, id_)
        for key, value in form.multi_items() if key == "id"
        for queue, _, id_ in [str(value).partition(" ")]
    ]  # fmt: skip
    all_matching = form.get("scope") == "all"
    if not ids and not all_matching:
        raise HTTPException(409, "no messages selected; tick some, or select all matches")
    with refusing():
        op = operations_of(site_of(request)).create(
            identity_of(request), str(form.get("verb", "")), contents_of(request),
            filter=str(form.get("f", "")) if all_matching else "", ids=None if all_matching else ids,
        )  # fmt: skip
    return _to(request, op)


@page("/operations/{operation}")
def operation(request: Request) -> Response:
    """Show an operation: its plan, progress and results."""
    view = _known(request)
    me, verb = identity_of(request), view.verb
    return render(
        request, "operation.html", operation=view, state=view.state, verb=verb, phase=PHASES[view.state.phase],
        spreads=SPREADS, may=me.may(verb.role) and not site_of(request).settings.read_only,
        live=LIVE_S if view.is_live else 0,
    )  # fmt: skip


@action("/operations/{operation}/apply", role=UserRole.OPERATE, name="apply_operation")
def apply_operation(request: Request) -> Response:
    """Apply a previewed operation."""
    form = form_of(request)

    def apply(service: Operations, op: str) -> object:
        spread_s = duration_s(str(form.get("spread") or "0"))
        typed = str(form.get("typed", ""))
        return service.apply(op, identity_of(request), spread_s=spread_s, confirmed=typed)

    return _act(request, apply)


@action("/operations/{operation}/stop", role=UserRole.OPERATE, name="stop_operation")
def stop_operation(request: Request) -> Response:
    """Stop an operation after the current chunk of messages."""
    return _act(request, lambda service, op: service.stop(op, identity_of(request)))


@action("/operations/{operation}/undo", role=UserRole.OPERATE, name="undo_operation")
def undo_operation(request: Request) -> Response:
    """Undo an operation."""
    return _act(request, lambda service, op: service.undo(op, identity_of(request)))


def _act(request: Request, act: Callable[[Operations, str], object]) -> Response:
    op = request.path_params["operation"]
    with refusing():
        act(operations_of(site_of(request)), op)
    return _to(request, op)


def _to(request: Request, op: str) -> Response:
    return RedirectResponse(path_to(request, "operation", operation=op), 303)


def _known(request: Request) -> OperationView:
    try:
        view = operations_of(site_of(request)).view(request.path_params["operation"])
    except ConfigError as error:
        raise HTTPException(404, str(error)) from error
    if view is None:
        raise HTTPException(
            404, "there is no operation with this id; operations are kept for an hour"
        )
    return view


@action("/queues/{queue}/pause", role=UserRole.OPERATE, name="pause_queue")
def pause_queue(request: Request) -> Response:
    """Pause a queue until it is resumed."""
    return _steer(request, "pause")


@action("/queues/{queue}/resume", role=UserRole.OPERATE, name="resume_queue")
def resume_queue(request: Request) -> Response:
    """Resume a paused queue."""
    return _steer(request, "resume")


@page("/queues/{queue}/clear", role=UserRole.ADMIN)
def confirm_clear(request: Request) -> Response:
    """Ask the user to type the name of a queue before its messages are deleted."""
    name = _used_queue(request)
    counts = None
    with suppress(ScriptError):  # an unreadable queue may also be cleared
        counts = Queue(name, site_of(request).client).admin.counts()
    return render(request, "queue-clear.html", live=0, queue=name, counts=counts)


@action("/queues/{queue}/clear", role=UserRole.ADMIN)
def clear_queue(request: Request) -> Response:
    """Delete every live message of a queue, if the user typed its name."""
    name = _used_queue(request)
    if str(form_of(request).get("typed", "")).strip() != name:
        raise HTTPException(
            409, "the typed text isn't the queue's name, so nothing was changed; try again"
        )
    with refusing(), audited(request, "queue-purge", queue=name) as performed:
        performed.set(number=Queue(name, site_of(request).operate).admin.clear())
    return RedirectResponse(path_to(request, "queue", queue=name), 303)


def _used_queue(request: Request) -> str:
    name: str = request.path_params["queue"]
    if name not in queue_names(site_of(request).client):
        raise HTTPException(404, f"queue {name!r:.140} has never been used here")
    return name


def _steer(request: Request, verb: str) -> Response:
    name = _used_queue(request)
    with performing(request, verb, queue=name) as client:
        admin = Queue(name, client).admin
        (admin.pause if verb == "pause" else admin.resume)()
    sampler_of(site_of(request)).note_paused(name, verb == "pause")
    return RedirectResponse(path_to(request, "queue", queue=name), 303)


@page("/audit")
def audit(request: Request) -> Response:
    """Show who changed what."""
    query = request.query_params
    wanted = {name: query.get(name, "")[:200].strip() for name in ("who", "verb", "queue", "op")}
    log, before = AuditLog(site_of(request).client), query.get("before", "")
    with refusing():
        entries = _entries(log, before)
        kept = [entry for entry in without_ended_intents(iter(entries)) if _matches(entry, wanted)]
    shown = list(islice(kept, ROWS))
    lake, trouble = sources_of(site_of(request)).lake, ""
    is_old = not entries and lake is not None
    if len(kept) > ROWS:
        last = shown[-1].entry_id
    elif lake is not None or len(entries) == MAX_LOOKED_AT:
        last = entries[-1].entry_id if entries else ""
    else:
        last = ""
    if not entries and lake is not None:
        try:
            shown = lake.audit(before, wanted, ROWS)
        except LakeError as error:
            trouble = str(error)
        last = shown[-1].entry_id if len(shown) == ROWS else ""
    known: set[str] = set()
    with suppress(JobqError):  # the list of operations may be damaged
        known = {state.id for state in operations_of(site_of(request)).listed()}
    return render(
        request, "audit.html", rows=shown, endings=ENDINGS, wanted=wanted, before=before, following=last,
        looked_at=len(entries), total=log.length(), known=known, queues=set(queue_names(site_of(request).client)),
        live=0 if before or is_old else LIVE_S, is_old=is_old, trouble=trouble,
    )  # fmt: skip


def _entries(log: AuditLog, before: str) -> list[AuditEntry]:
    entries: list[AuditEntry] = []
    while len(entries) < MAX_LOOKED_AT:
        some = log.page(entries[-1].entry_id if entries else before)
        entries += some
        if not some:
            break
    return entries[:MAX_LOOKED_AT]


def _matches(entry: AuditEntry, wanted: dict[str, str]) -> bool:
    queues: Any = entry.queue.split(",")
    return (
        wanted["who"] in ("", entry.who) and wanted["verb"] in ("", entry.verb) and wanted["op"] in ("", entry.op)
        and (not wanted["queue"] or wanted["queue"] in queues or "*" in queues)
    )  # fmt: skip
