"""Create, show, apply, stop and undo operations on many messages."""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated

from msgspec import Meta

from jobq.config import duration_s
from jobq.errors import ConfigError
from jobq.queue.audit_log import without_values
from jobq.records import JsonRecord, Moment, MomentOrZero, words
from jobq.web.access.identity import UserRole
from jobq.web.api.resource import (
    PAGING,
    ApiCall,
    ConflictError,
    NotThereError,
    page_of_rows,
    resource,
)
from jobq.web.api.schema import ListPage
from jobq.web.operations.service import Operations, OperationView, digest_of
from jobq.web.operations.store import OperationState, SampleMessage
from jobq.web.operations.verbs import VERBS
from jobq.web.viewer import contents_of

MAX_KEY_LENGTH = 200


class CountReply(JsonRecord):
    """The name of a queue, job or error, and the number of its messages."""

    name: str
    messages: int


class OperationRow(JsonRecord):
    """An operation in a list."""

    id: str
    verb: Annotated[str, words(tuple(VERBS))]
    phase: str
    by: str
    filter: str
    created_at: Moment
    ended_at: MomentOrZero
    number: Annotated[int, Meta(description="Number of frozen messages.")]
    results: dict[str, int]
    undone: dict[str, int]


class OperationReply(OperationRow):
    """An operation on many messages.

    Attributes:
        confirmation: Required value of `confirm` to apply the operation. Empty if the operation can be undone.
        left_ms: Time until the operation is deleted.
    """

    looked_at: int
    total: int
    capped: bool
    queues: list[CountReply]
    jobs: list[CountReply]
    errors: list[CountReply]
    samples: list[SampleMessage]
    unread: dict[str, str]
    may_apply: bool
    may_undo: bool
    why_no_undo: str
    confirmation: str
    spread_ms: int
    applied_by: str
    stopped_by: str
    error: str
    left_ms: int


class ChosenBody(JsonRecord):
    """A message to act on.

    Attributes:
        id: The message id, or the dead_id for actions on dead messages.
    """

    queue: str
    id: str


class NewOperationBody(JsonRecord):
    """An action, and the messages to act on, given by a filter or a list."""

    verb: Annotated[str, words(tuple(VERBS))]
    filter: str | None = None
    ids: list[ChosenBody] | None = None


class ApplyBody(JsonRecord):
    """How to apply an operation.

    Attributes:
        spread: Time over which revived messages become ready, such as 10m.
    """

    spread: str | float | None = None
    confirm: str | int | None = None


class EmptyBody(JsonRecord):
    """An object without fields."""


@resource("/operations", *PAGING)
def operations(call: ApiCall) -> ListPage[OperationRow]:
    """List the latest operations."""
    rows = [
        OperationRow.of(view, filter=_shown_filter(view, call)) for view in _service(call).listed()
    ]
    return ListPage(**page_of_rows(rows, call))


@resource("/operations", method="POST", role=UserRole.OPERATE, status=202)
def create_operation(call: ApiCall, body: NewOperationBody) -> OperationReply:
    """Create an operation and select its messages, without changing them.

    A repeated request with the same Idempotency-Key returns the first request's operation.
    """
    service, verb, filter_ = _service(call), body.verb, body.filter or ""
    if (body.ids is None) == (not filter_):
        raise ConfigError("choose messages with either filter (a text) or ids (a list)")
    ids = None if body.ids is None else [(id_.queue, id_.id) for id_ in body.ids]
    op = _own_id(call)
    if made := _made_before(service, op, verb, filter_, ids):
        return _shown(made, call)
    contents = contents_of(call.request)
    try:
        op = service.create(call.identity, verb, contents, filter=filter_, ids=ids, op=op)
    except ConfigError:
        # The same request may have arrived simultaneously.
        if made := _made_before(service, op, verb, filter_, ids):
            return _shown(made, call)
        raise
    return _shown(_known(service, op), call)


def _made_before(
    service: Operations, op: str, verb: str, filter_: str, ids: list[tuple[str, str]] | None
) -> OperationView | None:
    """Return the operation made by a request with the same Idempotency-Key, or None."""
    made = service.view(op) if op else None
    asked = (verb, filter_, digest_of(ids))
    if made is not None and (made.state.verb, made.state.filter, made.state.chosen) != asked:
        raise ConflictError("this Idempotency-Key belongs to another operation; use a new key")
    return made


@resource("/operations/{operation}")
def operation(call: ApiCall) -> OperationReply:
    """Show an operation, its list of messages and its results."""
    return _shown(_known(_service(call), call["operation"]), call)


@resource("/operations/{operation}/apply", method="POST", role=UserRole.OPERATE, status=202)
def apply_operation(call: ApiCall, body: ApplyBody) -> OperationReply:
    """Apply an operation, or continue a stopped operation. Messages changed after the preview are skipped."""
    service, confirmed = _service(call), str(body.confirm or "")
    _known(service, call["operation"])
    spread_s = duration_s(body.spread or 0)
    return _shown(
        service.apply(call["operation"], call.identity, spread_s=spread_s, confirmed=confirmed),
        call,
    )


@resource("/operations/{operation}/undo", method="POST", role=UserRole.OPERATE, status=202)
def undo_operation(call: ApiCall, body: EmptyBody) -> OperationReply:
    """Undo an operation of the last hour."""
    service = _service(call)
    _known(service, call["operation"])
    return _shown(service.undo(call["operation"], call.identity), call)


@resource("/operations/{operation}/stop", method="POST", role=UserRole.OPERATE, status=202)
def stop_operation(call: ApiCall, body: EmptyBody) -> OperationReply:
    """Stop an operation after the current chunk of messages."""
    service = _service(call)
    _known(service, call["operation"])
    service.stop(call["operation"], call.identity)
    return _shown(_known(service, call["operation"]), call)


def _service(call: ApiCall) -> Operations:
    return call.site.part(Operations, lambda site: Operations(site.client, site.operate))


def _own_id(call: ApiCall) -> str:
    """Return an operation id made from the header Idempotency-Key, or '' without the header."""
    key = call.request.headers.get("idempotency-key", "")
    if len(key) > MAX_KEY_LENGTH:
        raise ConfigError(
            f"Idempotency-Key has {len(key)} characters; it must be at most {MAX_KEY_LENGTH}"
        )
    return sha256(f"{call.identity.name}\0{key}".encode()).hexdigest()[:16] if key else ""


def _known(service: Operations, op: str) -> OperationView:
    try:
        view = service.view(op)
    except ConfigError as error:
        raise NotThereError(str(error)) from error
    if view is None:
        raise NotThereError(f"there is no operation {op!r:.80}; operations are kept for an hour")
    return view


def _shown_filter(state: OperationState, call: ApiCall) -> str:
    return state.filter if call.identity.arguments else without_values(state.filter)


def _counts(counts: list[tuple[str, int]]) -> list[CountReply]:
    return [CountReply(*count) for count in counts]


def _shown(view: OperationView, call: ApiCall) -> OperationReply:
    state = view.state
    return OperationReply.of(
        state, filter=_shown_filter(state, call), queues=_counts(state.queues), jobs=_counts(state.jobs),
        errors=_counts(state.errors), unread=state.problems, may_apply=view.may_apply, may_undo=view.may_undo,
        confirmation=view.confirmation, left_ms=max(0, view.left_ms),
    )  # fmt: skip
