"""Edit the arguments of a waiting message, undo the edit, and enqueue a copy of a message."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobq.client.clock import wall
from jobq.client.names import base_of
from jobq.errors import CodecError, ConfigError
from jobq.jobs.codec import Envelope, decode, encode, remembered
from jobq.jobs.registry import default_registry
from jobq.jobs.signing import is_sealed, opened, seal_of
from jobq.observe.redaction import HIDDEN
from jobq.queue.mids import checked_mid, new_mid
from jobq.queue.queue import EnqueueOptions, Queue
from jobq.web.access.identity import UserRole
from jobq.web.acting import audited
from jobq.web.rendering import render
from jobq.web.routes import action, form_of, identity_of, page, path_to
from jobq.web.site import Site, site_of
from jobq.web.viewer import redactor_of

#: States in which a message waits, so that its call may be changed.
WAITING = ("queued", "queued-with-backoff")
#: The ids of flow members begin with it. Members can't be copied, because only steps create them.
OF_FLOWS = "~"
_UNKNOWN = object()


class EditedCall(NamedTuple):
    """The new content of a message, and the names of the changed arguments."""

    content: bytes
    changed: tuple[str, ...]


@page("/queues/{queue}/messages/{mid}/edit", role=UserRole.OPERATE)
def edit_message(request: Request) -> Response:
    """Show a form with the arguments of a waiting message."""
    with _refused():
        queue, mid, content = _waiting(request)
        call = _call_of(queue, mid, content)
    text = typable(json.dumps(_shown(site_of(request), call), ensure_ascii=False, indent=2))
    return render(
        request, "message-edit.html", live=0, queue=queue.name, mid=mid, job=call.job, text=text,
        digest=_digest(content), knows=default_registry.find(call.job) is not None,
    )  # fmt: skip


@action("/queues/{queue}/messages/{mid}/edit", role=UserRole.OPERATE, name="change_message")
def change_message(request: Request) -> Response:
    """Replace the arguments of a waiting message."""
    form, site = form_of(request), site_of(request)
    with _refused():
        queue, mid, content = _waiting(request)
        if _digest(content) != str(form.get("digest", "")):
            raise ConfigError("the message changed since this form was opened; open it again")
        made = edited(site, queue, mid, content, str(form.get("call", "")))
        if not made.changed:
            return _see(request, queue, mid)
        with audited(request, "edit", queue=queue.name, filter=f"mid:{mid}", number=1) as performed:
            operation = performed.act.op
            generation = queue.status(mid).generation
            operating = Queue(queue.name, site.operate).admin.bin(operation)
            [word] = operating.edit((mid, generation, made.content))
            if word != "edited":
                raise ConfigError(f"the message was not changed: {_WORDS.get(word, word)}")
            performed.set(note=f"changed {', '.join(made.changed)}"[:500])
    return _see(request, queue, mid, edited=operation)


@action("/queues/{queue}/messages/{mid}/undo-edit", role=UserRole.OPERATE)
def undo_edit(request: Request) -> Response:
    """Restore a message's previous arguments."""
    mid, site = request.path_params["mid"], site_of(request)
    with _refused():
        queue = Queue(request.path_params["queue"], site.operate)
        operating = queue.admin.bin(str(form_of(request).get("op", "")))
        with audited(request, "undo-edit", queue=queue.name, filter=f"mid:{mid}", number=1):
            [word] = operating.put_back("edited", checked_mid(mid))
            if word != "restored":
                raise ConfigError(f"the change can't be undone: {_WORDS.get(word, word)}")
    return _see(request, queue, mid)


@action("/queues/{queue}/messages/{mid}/again", role=UserRole.OPERATE, name="enqueue_again")
def enqueue_again(request: Request) -> Response:
    """Enqueue a copy of a message with a new mid."""
    site, mid = site_of(request), request.path_params["mid"]
    with _refused():
        base = Queue(base_of(request.path_params["queue"]), site.client)
        queue = Queue(request.path_params["queue"], site.client).holder(checked_mid(mid))
        content = queue.content(mid) or next(
            (dead.content for dead in queue.admin.dead(mid=mid)), b""
        )
        if mid.startswith(OF_FLOWS):
            raise ConfigError("the message is a member of a flow; retry the flow")
        if not content:
            raise HTTPException(404, f"the content of {mid!r:.140} is no longer kept")
        made = new_mid()
        copy = _sealed(queue, made, _call_of(queue, mid, content), content, wall.ms())
        line = queue.why(mid) if queue.admin.has_keys() else None
        with audited(
            request, "again", queue=queue.name, filter=f"mid:{mid}", number=1
        ) as performed:
            operating = Queue(base.name, site.operate)
            options: EnqueueOptions = {"key": line.key} if line and line.key else {}
            operating.enqueue(copy, mid=made, **options)
            performed.set(note=f"enqueued {made}")
    return _see(request, base, made, copied=mid)


_WORDS = {
    "nil": "it is no longer here", "changed": "it was started, changed or cancelled in the meantime",
    "full": "the space for undo is full", "same": "it already has these arguments",
}  # fmt: skip


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except (ConfigError, CodecError) as error:
        raise HTTPException(409, str(error)) from error


def _see(request: Request, queue: Queue, mid: str, **said: str) -> Response:
    return RedirectResponse(path_to(request, "message", queue=queue.name, mid=mid, **said), 303)


def _waiting(request: Request) -> tuple[Queue, str, bytes]:
    """Return the queue, the mid and the content of a message that this user may change now."""
    if not identity_of(request).arguments:
        raise HTTPException(403, "this needs the 'arguments' right, which this login does not have")
    mid = checked_mid(request.path_params["mid"])
    queue = Queue(request.path_params["queue"], site_of(request).client).holder(mid)
    word, content = queue.status(mid).word, queue.content(mid)
    if word == "nil" or content is None:
        raise HTTPException(404, f"queue {queue.name} has no live message {mid!r:.140}")
    if word not in WAITING:
        raise ConfigError(f"the message is {word}; only waiting messages can be edited")
    return queue, mid, content


def _call_of(queue: Queue, mid: str, content: bytes) -> Envelope:
    """Decode the call in a message's content. Raises CodecError if its signature or encryption can't be verified."""
    if is_sealed(content) and seal_of(queue.client) is None:
        raise CodecError(
            "the call is sealed, and the dashboard has no keys; start the dashboard with JOBQ_CODEC_KEYS"
        )
    return decode(opened(seal_of(queue.client), queue.name, mid, content))


def _sealed(queue: Queue, mid: str, call: Envelope, like: bytes, at_ms: int) -> bytes:
    """Encode a call as a message's content. The content is sealed if `like` is sealed."""
    plain = encode(call.job, call.args, call.kwargs, at_ms, call.headers, call.options)
    plain = remembered(plain, call.remember_ms)
    seal = seal_of(queue.client)
    return seal.close_call(queue.name, mid, plain) if seal and is_sealed(like) else plain


def _shown(site: Site, call: Envelope) -> dict[str, Any]:
    return shown_arguments(site, call.job, call.args, call.kwargs)


def shown_arguments(
    site: Site, job: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return arguments as JSON data, with secrets hidden."""
    shown = redactor_of(site).call(job, args, kwargs)
    loaded: dict[str, Any] = json.loads(json.dumps({"args": shown.args, "kwargs": shown.kwargs}))
    return loaded


def edited(site: Site, queue: Queue, mid: str, content: bytes, text: str) -> EditedCall:
    """Return a message's content with the arguments from a form. Hidden values stay unchanged.

    Raises ConfigError for invalid JSON, a partly edited hidden value, or arguments that an imported job rejects.
    """
    call = _call_of(queue, mid, content)
    given, shown = arguments_in(text), _shown(site, call)
    stored = {"args": list(call.args), "kwargs": dict(call.kwargs)}
    made = merged(given, shown, stored)
    known = default_registry.find(call.job)
    if known is not None:
        try:
            known.check_arguments(made["args"], made["kwargs"])
        except TypeError as error:
            raise ConfigError(f"{call.job} can't be called like this: {error}") from error
    changed = tuple(_changes(made, stored))
    call = msgspec.structs.replace(call, args=made["args"], kwargs=made["kwargs"])
    return EditedCall(_sealed(queue, mid, call, content, call.enqueued_at), changed)


def arguments_in(text: str) -> dict[str, Any]:
    """Parse arguments from a form: a JSON object with `args` and `kwargs`. Raises ConfigError for other text."""
    try:
        given = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"the arguments can't be read as JSON: {error}") from error
    if given.keys() != {"args", "kwargs"}:
        raise ConfigError(
            'the arguments must be an object with "args" and "kwargs", and without other keys'
        )
    if not isinstance(given["args"], list) or not isinstance(given["kwargs"], dict):
        raise ConfigError('"args" must be a list: [...], and "kwargs" an object: {...}')
    return given


def merged(given: Any, shown: Any, stored: Any) -> Any:
    """Return the value that the user entered. Parts that the user didn't change get their stored value."""
    if shown is not _UNKNOWN and json.dumps(given) == json.dumps(shown):
        return stored
    if isinstance(given, dict):
        was = shown if isinstance(shown, dict) else {}
        own = stored if isinstance(stored, dict) else {}
        return {
            name: merged(value, was.get(name, _UNKNOWN), own.get(name))
            for name, value in given.items()
        }
    if isinstance(given, list):
        were = shown if isinstance(shown, list) else []
        owns = stored if isinstance(stored, list) else []
        return [
            merged(value, were[at] if at < len(were) else _UNKNOWN, owns[at] if at < len(owns) else None)
            for at, value in enumerate(given)
        ]  # fmt: skip
    if isinstance(given, str) and HIDDEN in given:
        raise ConfigError(
            f"{given!r:.80} contains a hidden value; leave the text unchanged, or replace all of it"
        )
    return given


def _changes(made: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterator[str]:
    args, own = made["args"], stored["args"]
    for at in range(max(len(args), len(own))):
        if args[at : at + 1] != own[at : at + 1]:
            yield f"args.{at}"
    kwargs, named = made["kwargs"], stored["kwargs"]
    for name in {**named, **kwargs}:
        if kwargs.get(name, _UNKNOWN) != named.get(name, _UNKNOWN):
            yield f"kwargs.{name}"


def typable(text: str) -> str:
    """Return JSON with escapes for invisible characters."""
    return "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
    )


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()
