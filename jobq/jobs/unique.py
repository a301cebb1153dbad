"""Unique jobs: the mid that represents a call, and the effect of an enqueue while a message of that mid is live.

There is no separate lock: a mid is in use while its message is live, and free once the message is done, dead or
cancelled. So a dying process can't leave a lock behind.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from inspect import Parameter, Signature
from typing import Any

from msgspec.json import Encoder

from jobq.client.clock import wall
from jobq.durations import lasting
from jobq.errors import CodecError, ConfigError, DuplicateError, JobqError
from jobq.jobs.argument_types import ArgumentTypes
from jobq.jobs.codec import check, decode
from jobq.jobs.options import JobSettings
from jobq.jobs.queues import QueueLike
from jobq.jobs.results import Receipt
from jobq.queue.mids import MAX_MID_LENGTH

#: Length of the digest: 128 bits, in characters that don't need quotes in a shell.
DIGEST_CHARACTERS = 22
_MAX_NAME_LENGTH = MAX_MID_LENGTH - DIGEST_CHARACTERS - 2
#: Maximum number of characters of the arguments to show in an error.
_SHOWN = 60
_NEEDS_NAMES = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_encode = Encoder(order="sorted").encode


class Unique:
    """The values by which calls of one job are compared."""

    __slots__ = ("_defaults", "_job", "_kinds", "_pick", "_signature", "_types")

    def __init__(
        self,
        job: str,
        signature: Signature,
        unique: Any,
        types: ArgumentTypes | None = None,
    ) -> None:
        self._job, self._signature, self._types = job, signature, types
        parameters = signature.parameters.values()
        self._kinds = {parameter.kind for parameter in parameters}
        self._defaults = {
            parameter.name: None if parameter.default is parameter.empty else parameter.default
            for parameter in parameters
        }
        self._pick = self._checked_pick(unique)

    def mid(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the mid of a call with checked arguments. Raises ConfigError if JSON can't represent an argument."""
        try:
            value = self._value(args, kwargs)
            check(value, f"unique of {self._job}")
            text = _encode(value)
        except (CodecError, ValueError, TypeError) as error:
            raise ConfigError(
                f"unique of {self._job} needs arguments that JSON supports: {error}; "
                "use unique=[names] or unique=lambda …"
            ) from error
        name = self._job
        if len(name) > _MAX_NAME_LENGTH:
            name, text = name[:_MAX_NAME_LENGTH], f"{name}:".encode() + text
        digest = urlsafe_b64encode(blake2b(text, digest_size=16).digest())
        return f"={name}:{digest[:DIGEST_CHARACTERS].decode()}"

    def shown(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return a short name of a call for error messages, such as `send=7`."""
        value = self._value(args, kwargs)
        values = value.values() if isinstance(value, dict) else [value]
        text = ",".join([_encode(value).decode() for value in values])
        return f"{self._job}={text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}"

    def _value(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the values by which calls are compared."""
        named = self._named(args, kwargs)
        pick = self._pick
        if callable(pick):
            return pick(**named)
        if pick is not None:
            named = {name: named[name] for name in pick if name in named}
        return named if self._types is None else self._types.encoded_by_name(named)

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments by name, including defaults."""
        if self._kinds.isdisjoint(_NEEDS_NAMES):
            return {**self._defaults, **dict(zip(self._defaults, args)), **kwargs}
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        named = dict(bound.arguments)
        for parameter in self._signature.parameters.values():
            if parameter.kind is Parameter.VAR_KEYWORD:
                # They may have the same name as a positional-only parameter.
                more = named.pop(parameter.name)
                named |= {f"**{name}" if name in named else name: more[name] for name in more}
        return named

    def _checked_pick(self, unique: Any) -> Callable[..., Any] | tuple[str, ...] | None:
        if unique is None or unique is True or callable(unique):
            return None if unique in (None, True) else unique
        missing = [name for name in unique if name not in self._defaults]
        if missing and Parameter.VAR_KEYWORD not in self._kinds:
            raise ConfigError(
                f"unique={list(unique)!r}: {self._job} has no argument {missing[0]!r}; "
                f"it has {', '.join(self._defaults) or 'none'}"
            )
        return tuple(unique)


def unique_of(
    job: str, signature: Signature, settings: JobSettings, types: ArgumentTypes | None = None
) -> Unique | None:
    """Return the rules that compare calls of a unique job, or None; raise ConfigError for contradictory options."""
    if settings.unique is False:
        return None
    if settings.unique is None and settings.debounce is None and settings.throttle is None:
        return None
    if settings.mid:
        raise ConfigError(
            f"mid={settings.mid!r} can't be set, because {job} generates mids from arguments; leave out mid, or "
            "use .options(unique=False)"
        )
    return Unique(job, signature, settings.unique, types)


def conflict_options(job: str, settings: JobSettings, unique: Unique | None) -> dict[str, Any]:
    """Return the options of `Queue.enqueue` for a mid that may be in use; raise ConfigError for bad combinations."""
    if unique is None:
        return _options_of_mid(job, settings)
    options = _options_of_unique(job, settings)
    if settings.remember_s is not None:
        options["drop_results"] = True
    return options


def _options_of_mid(job: str, settings: JobSettings) -> dict[str, Any]:
    """Return the options of `Queue.enqueue` for a call that may have a mid but isn't unique."""
    if settings.unique is False and not settings.mid:
        return {}  # ignores options that the job declares for unique calls
    if settings.debounce_max is not None and settings.unique is not False:
        raise ConfigError(f"debounce_max={settings.debounce_max!r} of {job} needs debounce=…")
    asked: dict[str, Any] = {"until": settings.until, "on_conflict": settings.on_conflict}
    options = {name: value for name, value in asked.items() if value is not None}
    for name, value in options.items():
        if not settings.mid:
            raise ConfigError(f"{name}={value!r} of {job} needs unique=True, or a call with mid=…")
    _check_requeue(job, settings)
    if options.get("on_conflict") == "raise":
        del options["on_conflict"]
    return options


def _check_requeue(job: str, settings: JobSettings) -> None:
    until = settings.until
    if settings.on_conflict == "requeue" and until not in (None, "done", "start"):
        raise ConfigError(
            f"on_conflict='requeue' of {job} can't be combined with the duration until={until:g}; use until='done'"
        )


def _options_of_unique(job: str, settings: JobSettings) -> dict[str, Any]:
    if settings.debounce is not None:
        return _debounced(job, settings, settings.debounce)
    if settings.debounce_max is not None:
        raise ConfigError(f"debounce_max={settings.debounce_max!r} of {job} needs debounce=…")
    conflict = settings.on_conflict or "skip"
    if settings.throttle is not None:
        _only(job, settings, "throttle", ("until",))
        if conflict in ("replace", "requeue"):
            raise ConfigError(
                f"on_conflict={conflict!r} of {job} doesn't work with throttle=, which runs the first call and "
                "rejects equal calls for a time; use 'skip' or 'raise'"
            )
        return {"throttle": settings.throttle}
    _check_requeue(job, settings)
    options: dict[str, Any] = {"until": settings.until or "done"}
    if conflict in ("replace", "requeue"):
        options["on_conflict"] = conflict
    return options


def _debounced(job: str, settings: JobSettings, debounce: float) -> dict[str, Any]:
    _only(job, settings, "debounce", ("throttle", "until", "on_conflict", "delay", "at"))
    debounce_max = settings.debounce_max
    options: dict[str, Any] = {"until": "start", "on_conflict": "replace", "delay": debounce}
    if debounce_max is not None:
        if debounce_max < debounce:
            raise ConfigError(
                f"debounce_max={debounce_max:g} of {job} is shorter than debounce={debounce:g}; make it longer"
            )
        options["debounce_max"] = debounce_max
    return options


def refuse(call: str, receipt: Receipt[Any], queue: QueueLike) -> None:
    """Raise DuplicateError for a rejected call."""
    raise DuplicateError(f"{call} {_lives(receipt, queue)}", (receipt,))


def refuse_any(job: str, receipts: Sequence[Receipt[Any]]) -> None:
    """Raise DuplicateError if a receipt shows a rejected call. The other calls stay enqueued."""
    refused = tuple([receipt for receipt in receipts if receipt.action == "exists"])
    if refused:
        more = f"{len(refused):,} of {len(receipts):,} calls of {job}"
        raise DuplicateError(
            f"{more} were rejected because their ids are in use, such as {refused[0].mid}; the others were enqueued",
            refused,
        )


def _only(job: str, settings: JobSettings, name: str, others: Sequence[str]) -> None:
    for other in others:
        value = getattr(settings, other)
        if value is not None:
            raise ConfigError(
                f"{name}={getattr(settings, name)!r} and {other}={value!r} of {job} contradict each other; use only one"
            )


def _lives(receipt: Receipt[Any], queue: QueueLike) -> str:
    """Return words such as `waits already`. Add the time since the enqueue if this user may read that time."""
    status = receipt.existing_status
    if status == "done-with-backoff":
        left_s = max(0.0, queue.status(receipt.mid).not_before / 1000 - wall.s())
        return f"already ran, and its id is rejected for another {lasting(left_s)}"
    since = _queued_since(receipt.mid, queue)
    verb = "runs" if status.startswith("locked") else "waits"
    again = ", and waits again" if status == "locked-with-requeue" else ""
    return f"{verb} already{again}{since}"


def _queued_since(mid: str, queue: QueueLike) -> str:
    try:
        content = queue.content(mid)
        enqueued_at = decode(content).enqueued_at if content else 0
    except JobqError:  # no right to read it, or it is sealed
        enqueued_at = 0
    passed_s = max(0.0, wall.s() - enqueued_at / 1000)
    return f" (queued {lasting(passed_s)} ago)" if enqueued_at else ""
