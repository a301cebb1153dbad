"""Operations on many messages: freeze, look, apply, undo."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from jobq.config import duration_s
from jobq.errors import ConfigError
from jobq.queue.audit_log import without_values
from jobq.web.access.identity import UserRole
from jobq.web.api.resource import (
    PAGING,
    ApiCall,
    ConflictError,
    NotThereError,
    page_of_rows,
    resource,
)
from jobq.web.api.shapes import (
    FLAG,
    MOMENT,
    TEXT,
    WHOLE,
    ByName,
    Items,
    Maybe,
    Optional,
    RecordShape,
    Shape,
    Text,
    Whole,
    listed,
)
from jobq.web.operations.service import Operations, OperationView, digest_of
from jobq.web.operations.store import OperationState
from jobq.web.operations.verbs import VERBS
from jobq.web.viewer import contents_of

LONGEST_KEY = 200
COUNTED = Items(RecordShape(name=TEXT, messages=WHOLE))
#: What an operation says of itself in a list.
LINE: dict[str, Shape] = {
    "id": TEXT, "verb": Text(values=tuple(VERBS)), "phase": TEXT, "by": TEXT, "filter": TEXT,
    "created_at": MOMENT, "ended_at": Maybe(MOMENT, zero=True), "number": Whole("Messages that were frozen."),
    "results": ByName(WHOLE), "undone": ByName(WHOLE),
}  # fmt: skip
OPERATION = RecordShape(
    **LINE, looked_at=WHOLE, total=WHOLE, capped=FLAG, queues=COUNTED, jobs=COUNTED, errors=COUNTED,
    samples=Items(RecordShape(queue=TEXT, mid=TEXT, job=TEXT, error=TEXT, at=Maybe(MOMENT, zero=True))),
    unread=ByName(TEXT), may_apply=FLAG, may_undo=FLAG, why_no_undo=TEXT,
    confirmation=Text("What `confirm` must be to apply it; '' if it can be undone."), spread_ms=WHOLE,
    applied_by=TEXT, stopped_by=TEXT, error=TEXT, left_ms=Whole("Until it is forgotten."),
)  # fmt: skip


@resource("/operations", listed(RecordShape(**LINE)), *PAGING)
def operations(call: ApiCall) -> Any:
    """List the newest operations."""
    return page_of_rows([_line(one, call) for one in _service(call).listed()], call)


@resource(
    "/operations", OPERATION, method="POST", role=UserRole.OPERATE, status=202,
    body=RecordShape(
        "What to do, and to which messages: those that match, or those that are named.",
        verb=Text(values=tuple(VERBS)), filter=Optional(TEXT),
        ids=Optional(Items(RecordShape(queue=TEXT, id=Text("A mid; for verbs of the dead a dead_id.")))),
    ),
)  # fmt: skip
def create_operation(call: ApiCall) -> Any:
    """Freeze messages for an operation. It does nothing until it is applied.

    With the header Idempotency-Key, a request that is sent again gets the operation that the first one made.
    """
    body, service = call.body, _service(call)
    given, filter_ = body.get("ids"), body.get("filter") or ""
    if (given is None) == (not filter_) or not isinstance(filter_, str):
        raise ConfigError("give the messages in one way: filter, a text, or ids, a list")
    ids = None if given is None else [_chosen(one) for one in _list(given)]
    op, verb = _own_id(call), str(body.get("verb", ""))
    if made := _made_before(service, op, verb, filter_, ids):
        return _shown(made, call)
    contents = contents_of(call.request)
    try:
        op = service.create(call.identity, verb, contents, filter=filter_, ids=ids, op=op)
    except ConfigError:
        # The same request, at the same time.
        if made := _made_before(service, op, verb, filter_, ids):
            return _shown(made, call)
        raise
    return _shown(_known(service, op), call)


def _made_before(
    service: Operations, op: str, verb: str, filter_: str, ids: list[tuple[str, str]] | None
) -> OperationView | None:
    """Return what a request with the same Idempotency-Key made; None if there was none."""
    made = service.view(op) if op else None
    asked = (verb, filter_, digest_of(ids))
    if made is not None and (made.state.verb, made.state.filter, made.state.chosen) != asked:
        raise ConflictError("this Idempotency-Key made another operation; take a new one")
    return made


@resource("/operations/{operation}", OPERATION)
def operation(call: ApiCall) -> Any:
    """Show an operation: what it froze, and what became of it."""
    return _shown(_known(_service(call), call["operation"]), call)


@resource(
    "/operations/{operation}/apply", OPERATION, method="POST", role=UserRole.OPERATE, status=202,
    body=RecordShape(spread=Optional(Text("For revive: over which time, as 10m.")), confirm=Optional(TEXT)),
)  # fmt: skip
def apply_operation(call: ApiCall) -> Any:
    """Apply an operation to those messages that are still as they were, or go on with it."""
    service, spread = _service(call), call.body.get("spread") or 0
    _known(service, call["operation"])
    if not isinstance(spread, str | int | float):
        raise ConfigError(f"spread={spread!r:.40} is not a duration; write 10m")
    confirmed = str(call.body.get("confirm") or "")
    return _shown(
        service.apply(
            call["operation"], call.identity, spread_s=duration_s(spread), confirmed=confirmed
        ),
        call,
    )


@resource(
    "/operations/{operation}/undo", OPERATION, method="POST", role=UserRole.OPERATE, status=202,
    body=RecordShape(),
)  # fmt: skip
def undo_operation(call: ApiCall) -> Any:
    """Undo an operation, within an hour."""
    service = _service(call)
    _known(service, call["operation"])
    return _shown(service.undo(call["operation"], call.identity), call)


@resource(
    "/operations/{operation}/stop", OPERATION, method="POST", role=UserRole.OPERATE, status=202,
    body=RecordShape(),
)  # fmt: skip
def stop_operation(call: ApiCall) -> Any:
    """Stop an operation behind the messages that it works on now."""
    service = _service(call)
    _known(service, call["operation"])
    service.stop(call["operation"], call.identity)
    return _shown(_known(service, call["operation"]), call)


def _service(call: ApiCall) -> Operations:
    return call.site.part(Operations, lambda site: Operations(site.client, site.operate))


def _own_id(call: ApiCall) -> str:
    """Return the id that a repeated request finds again; '' without an Idempotency-Key."""
    key = call.request.headers.get("idempotency-key", "")
    if len(key) > LONGEST_KEY:
        raise ConfigError(f"Idempotency-Key has {len(key)} characters; take {LONGEST_KEY} at most")
    return sha256(f"{call.identity.name}\0{key}".encode()).hexdigest()[:16] if key else ""


def _known(service: Operations, op: str) -> OperationView:
    try:
        found = service.view(op)
    except ConfigError as error:
        raise NotThereError(str(error)) from error
    if found is None:
        raise NotThereError("there is no operation of this id, or no longer")
    return found


def _list(given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise ConfigError("ids must be a list of objects with queue and id")
    return given


def _chosen(one: Any) -> tuple[str, str]:
    if not isinstance(one, dict) or not all(
        isinstance(one.get(name), str) for name in ("queue", "id")
    ):
        raise ConfigError("ids must be a list of objects with queue and id")
    return one["queue"], one["id"]


def _line(state: OperationState, call: ApiCall) -> dict[str, Any]:
    shown = state.filter if call.identity.arguments else without_values(state.filter)
    return {name: getattr(state, name) for name in LINE} | {"filter": shown}


def _counts(found: list[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"name": name, "messages": count} for name, count in found]


def _shown(view: OperationView, call: ApiCall) -> dict[str, Any]:
    state = view.state
    samples = [
        {"queue": one.queue, "mid": one.mid, "job": one.job, "error": one.error, "at": one.at_ms}
        for one in state.samples
    ]
    return _line(state, call) | {
        "looked_at": state.looked_at, "total": state.total, "capped": state.capped, "samples": samples,
        "queues": _counts(state.queues), "jobs": _counts(state.jobs), "errors": _counts(state.errors),
        "unread": state.problems, "may_apply": view.may_apply, "may_undo": view.may_undo,
        "why_no_undo": state.why_no_undo, "confirmation": view.confirmation, "spread_ms": state.spread_ms,
        "applied_by": state.applied_by, "stopped_by": state.stopped_by, "error": state.error,
        "left_ms": max(0, view.left_ms),
    }  # fmt: skip
