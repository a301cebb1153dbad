"""Encodes and decodes calls. A call is one JSON object, which any language can write (docs/reference/wire.md).

``{"job":"mail.send","args":["a@b"],"kwargs":{"retry":true},"enqueued_at":1700000000000}``

Fields with their default value are left out, such as empty args or `v` 1. Sealed calls also have `not_after` and
`nonce`. `remember_ms` must be the first field, because scripts that cancel a message look for it only there. For any
bytes, `decode` raises only CodecError.

An argument must survive JSON unchanged. msgspec would silently write a datetime, a set or bytes as text, and the job
would get that text. So `check` rejects every value that would arrive with another type. The only exception is a tuple,
which arrives as a list.

A call from another language that no job can run is kept with the reason:

``{"refused":"it names no class","raw":"{\\"args\\":[]}","headers":{"ruby":"sidekiq :default"}}``

It has no `job`, so no worker of any version runs it. It is dead-lettered immediately, with that reason. `raw_base64`
replaces `raw` for bytes that aren't UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import isfinite
from types import NoneType
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from jobq.config import HARD_MAX_CONTENT, MAX_CONTENT
from jobq.errors import CodecError
from jobq.formats import ENVELOPE

LIMIT, HARD_LIMIT = MAX_CONTENT, HARD_MAX_CONTENT
MAX_NAME = 200
MAX_DEPTH = 64
#: Prefix of the mids of flow members, and of no other mid.
MEMBER_SIGN = "~"
#: The header of a member's call with the positions for other steps' results.
FLOW_HEADER = "flow"
INT_MIN, INT_MAX = -(2**63), 2**64 - 1
#: The beginning of a call whose end is remembered.
REMEMBER, _REMEMBERED = b'{"remember_ms":%d,', re.compile(rb'\{"remember_ms":(\d+)[,}]')
#: Maximum number of characters of a refusal's reason to pass on.
MAX_WHY = 1_000

_Retries = Annotated[int, Meta(ge=0, le=10_000)]
_Seconds = Annotated[float, Meta(gt=0, le=3_153_600_000)]


class UnknownVersionError(CodecError):
    """This version of jobq can't read the envelope's version; upgrade the worker."""


class Overrides(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of the job that a message overrides; durations are in seconds.

    Attributes:
        expires_at: Epoch ms by the producer's clock after which no attempt starts; 0 for no limit.
    """

    retries: _Retries | UnsetType = UNSET
    timeout: _Seconds | UnsetType | None = UNSET
    hard_timeout: _Seconds | UnsetType | None = UNSET
    result_ttl: _Seconds | UnsetType | None = UNSET
    remember: _Seconds | UnsetType | None = UNSET
    retry_within: _Seconds | UnsetType | None = UNSET
    expires_at: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A call of a job.

    Attributes:
        enqueued_at: Epoch ms by the producer's clock, 0 if unknown.
        not_after: Epoch ms after which a sealed call doesn't run; 0 for no limit.
        nonce: Random text that makes each sealed call unique.
        remember_ms: Time in ms to keep the message's outcome; 0 doesn't keep it. Programs that don't know the job use
            this time.
    """

    job: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    enqueued_at: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    headers: dict[str, str] = {}
    options: Overrides | None = None
    v: int = ENVELOPE
    not_after: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    nonce: str = ""
    remember_ms: Annotated[int, Meta(ge=0, le=3_153_600_000_000)] = 0


class _Version(msgspec.Struct):
    v: int = ENVELOPE


class Refusal(NamedTuple):
    """A call that can't be run: the reason, the original bytes, and headers."""

    why: str
    raw: bytes
    headers: Mapping[str, str]


class _Refused(msgspec.Struct, frozen=True, omit_defaults=True):
    refused: Annotated[str, Meta(min_length=1)]
    raw: str = ""
    raw_base64: bytes = b""
    headers: dict[str, str] = {}


_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(Envelope).decode
_read_version = msgspec.json.Decoder(_Version).decode
_read_refused = msgspec.json.Decoder(_Refused).decode
_read_any = msgspec.json.Decoder().decode


def encode(
    job: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    enqueued_at: int = 0,
    headers: Mapping[str, str] | None = None,
    options: Overrides | None = None,
    limit: int = LIMIT,
) -> bytes:
    """Encode one call as JSON. Raises CodecError if JSON can't represent an argument."""
    kwargs = dict(kwargs) if kwargs else {}
    _check_arguments(job, args, kwargs, ())
    return _content(
        Envelope(job, list(args), kwargs, enqueued_at, dict(headers or {}), options), limit
    )


def _check_arguments(
    job: str, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]
) -> None:
    """Raise CodecError unless JSON can represent all arguments. Errors use `names` for positional arguments."""
    for index, value in enumerate(args):
        if type(value) not in _AS_THEY_ARE:
            name = repr(names[index]) if index < len(names) else index + 1
            check(value, f"argument {name} of {job}")
    for name, value in kwargs.items():
        check(value, f"argument {name!r} of {job}")


def _content(envelope: Envelope, limit: int) -> bytes:
    try:
        content = _write(envelope)
    except (ValueError, TypeError) as error:  # lone surrogates
        raise CodecError(
            f"a string in the call of {envelope.job} is not valid UTF-8 ({error}); replace lone surrogates"
        ) from error
    if len(content) > min(limit, HARD_LIMIT):
        checked_size(content, f"the call of {envelope.job}", limit)
    return content


class CallEncoder:
    """Encodes many calls of one job in the format of `encode`, but encodes their common parts only once."""

    def __init__(
        self,
        job: str,
        headers: Mapping[str, str] | None = None,
        options: Overrides | None = None,
        limit: int = LIMIT,
        names: Sequence[str] = (),
        remember_ms: int = 0,
    ) -> None:
        self._common = (headers, options, limit, names)
        self._remember_ms = remember_ms
        self._job, self.limit = job, limit
        self._most = min(limit, HARD_LIMIT)
        #: The parts before the arguments and after the enqueue time.
        begin = encode(job)[:-1]
        whole = encode(job, (), None, 1, headers, options, HARD_LIMIT)
        self._end = whole[len(begin + b',"enqueued_at":1') :]
        self._begin = remembered(begin, remember_ms, HARD_LIMIT)

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any], enqueued_at: int) -> bytes:
        for value in args:
            kind = type(value)
            if kind not in _AS_THEY_ARE and not (kind is int and INT_MIN <= value <= INT_MAX):
                return self._encode(args, kwargs, enqueued_at)
        if kwargs:
            return self._encode(args, kwargs, enqueued_at)
        try:
            arguments = b',"args":' + _write(args) if args else b""
        except ValueError:  # lone surrogates
            return self._encode(args, kwargs, enqueued_at)
        content = b'%b%b,"enqueued_at":%d%b' % (self._begin, arguments, enqueued_at, self._end)
        if len(content) > self._most:
            checked_size(content, f"the call of {self._job}", self.limit)
        return content

    def _encode(self, args: Sequence[Any], kwargs: Mapping[str, Any], enqueued_at: int) -> bytes:
        headers, options, limit, names = self._common
        _check_arguments(self._job, args, kwargs, names)
        call = Envelope(
            self._job, list(args), dict(kwargs), enqueued_at, dict(headers or {}), options
        )
        return remembered(_content(call, limit), self._remember_ms, limit)


def remembered(content: bytes, remember_ms: int, limit: int = LIMIT) -> bytes:
    """Add the outcome's retention time to a call; raise CodecError if the call becomes too long."""
    if not remember_ms:
        return content
    content = REMEMBER % remember_ms + content[1:]
    checked_size(content, "a call with remember or result_ttl", limit)
    return content


def remember_ms_in(call: bytes) -> bytes:
    """Return the digits of `remember_ms` in a call; b"" if the call doesn't have this field."""
    told = _REMEMBERED.match(call)
    return told[1] if told else b""


def checked_size(content: bytes, what: str, limit: int = LIMIT) -> None:
    """Raise CodecError if `content` is over `limit`, or over the hard limit of 1 MiB."""
    if len(content) > min(limit, HARD_LIMIT):
        raise CodecError(
            f"{what} takes {len(content):,} bytes; at most {min(limit, HARD_LIMIT):,} are allowed. "
            "Store the data elsewhere and pass its location"
        )


def decode(content: bytes) -> Envelope:
    """Decode a call. If `content` isn't a call, raise a CodecError that doesn't quote the content."""
    if len(content) > HARD_LIMIT:
        raise CodecError(f"content of {len(content):,} bytes is over the limit of {HARD_LIMIT:,}")
    try:
        envelope = _read(content)
    except (ValueError, RecursionError, OverflowError, MemoryError) as error:
        raise _explained(content, error) from error
    if envelope.v != ENVELOPE:
        raise UnknownVersionError(
            f"content has envelope version {envelope.v}, but this jobq reads {ENVELOPE}; upgrade jobq"
        )
    # Content can't nest deeper than its number of opening brackets, so most content needn't be walked.
    suspect = content.count(b"[") + content.count(b"{") > MAX_DEPTH
    if suspect and max(depth(envelope.args), depth(envelope.kwargs)) > MAX_DEPTH + 1:
        raise CodecError(f"content nests deeper than {MAX_DEPTH} levels")
    return envelope


def decode_any(content: bytes) -> Any:
    """Decode any JSON value. The only possible error is CodecError."""
    try:
        return _read_any(content)
    except RecursionError as error:
        raise CodecError("nested too deeply to be read") from error
    except (ValueError, OverflowError, MemoryError) as error:
        raise CodecError(f"not JSON: {error}") from error


def encode_plain(value: Any, what: str) -> bytes:
    """Encode a value as JSON by the rules for arguments. Error messages name the value `what`."""
    check(value, what)
    try:
        return _write(value)
    except (ValueError, TypeError) as error:
        raise CodecError(
            f"a string in {what} is not valid UTF-8 ({error}); replace lone surrogates"
        ) from error


def _explained(content: bytes, error: Exception) -> CodecError:
    try:
        version = _read_version(content).v
    except (ValueError, RecursionError, OverflowError, MemoryError):
        version = ENVELOPE
    if version != ENVELOPE:
        return UnknownVersionError(
            f"content has envelope version {version}, but this jobq reads {ENVELOPE}; upgrade jobq"
        )
    refused = read_refusal(content)
    why = refused.why[:MAX_WHY] if refused else str(error) or type(error).__name__
    return CodecError(f"content is not a call of a job: {why}")


def refusal(why: str, raw: bytes, headers: Mapping[str, str]) -> bytes:
    """Return content that a worker dead-letters as soon as it receives the message."""
    why = why.encode("utf-8", "backslashreplace").decode()
    try:
        return _write(_Refused(why, raw=raw.decode(), headers=dict(headers)))
    except UnicodeDecodeError:
        return _write(_Refused(why, raw_base64=raw, headers=dict(headers)))


def read_refusal(content: bytes) -> Refusal | None:
    """Parse a refusal; return None if `content` is something else."""
    try:
        stored = _read_refused(content)
    except (ValueError, RecursionError, OverflowError, MemoryError):
        return None
    return Refusal(stored.refused, stored.raw_base64 or stored.raw.encode(), stored.headers)


_AS_THEY_ARE = frozenset((str, bool, NoneType))

_ANNOTATE = "annotate its parameter as {}, or pass plain JSON"
#: Remedies by class. A value's own class is looked up first, then its base classes.
_REMEDIES = {
    "builtins.set": "annotate its parameter as set[…], or pass a list",
    "builtins.frozenset": "pass a list",
    "builtins.bytes": "annotate its parameter as bytes, or pass where the bytes are stored",
    "builtins.bytearray": "pass base64 text, or where the bytes are stored",
    "builtins.memoryview": "pass base64 text, or where the bytes are stored",
    "builtins.complex": "pass [value.real, value.imag]",
    "builtins.type": "pass its name",
    "builtins.function": "pass a name to look it up by",
    "builtins.generator": "pass list(value)",
    "builtins.range": "pass list(value), or its bounds",
    "builtins.str": "pass str(value)",
    "builtins.int": "pass int(value)",
    "builtins.float": "pass float(value)",
    "builtins.tuple": "pass list(value)",
    "builtins.list": "pass list(value)",
    "builtins.dict": "pass dict(value)",
    "datetime.datetime": _ANNOTATE.format("datetime"),
    "datetime.date": _ANNOTATE.format("date"),
    "datetime.time": _ANNOTATE.format("time"),
    "datetime.timedelta": _ANNOTATE.format("timedelta"),
    "uuid.UUID": _ANNOTATE.format("UUID"),
    "decimal.Decimal": _ANNOTATE.format("Decimal"),
    "fractions.Fraction": "pass str(value)",
    "pathlib.PurePath": "pass str(value)",
    "pathlib._local.PurePath": "pass str(value)",
    "msgspec.Struct": _ANNOTATE.format("its class"),
    "pydantic.main.BaseModel": _ANNOTATE.format("its class"),
    "numpy.generic": "pass value.item()",
    "numpy.ndarray": "pass value.tolist()",
    "django.db.models.base.Model": "pass value.pk and fetch it in the job",
}
_OTHERWISE = (
    "pass plain values (str, int, float, bool, None, list, dict), or an id to look it up by"
)


def check(value: Any, where: str) -> None:
    """Raise CodecError if JSON would change `value`; `where` names the argument."""
    if type(value) not in _AS_THEY_ARE:
        _check(value, where, [], 1)


def depth(value: Any, limit: int = MAX_DEPTH + 1) -> int:
    """Return the nesting depth of decoded JSON. Counting stops beyond `limit`."""
    deepest, level = 0, [value]
    while level and deepest <= limit:
        containers = [item for item in level if type(item) is list or type(item) is dict]
        deepest += bool(containers)
        level = [
            inner
            for item in containers
            for inner in (item.values() if type(item) is dict else item)
        ]
    return deepest


def _check(value: Any, where: str, path: list[Any], level: int) -> None:
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return
    if kind is int:
        if not INT_MIN <= value <= INT_MAX:
            _refuse("is an int outside 64 bits", where, path, "pass str(value)")
    elif kind is float:
        if not isfinite(value):
            _refuse(
                f"is {value}, which JSON can't carry", where, path, "pass None, or leave it out"
            )
    elif kind is list or kind is tuple:
        _check_level(where, path, level)
        for index, item in enumerate(value):
            if type(item) not in _AS_THEY_ARE:
                _check(item, where, [*path, index], level + 1)
    elif kind is dict:
        _check_dict(value, where, path, level)
    else:
        named = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        an = "an" if named[0] in "aeiou" else "a"
        _refuse(
            f"is {an} {named}, which JSON would change or can't carry", where, path, _remedy(kind)
        )


def _check_dict(value: dict[Any, Any], where: str, path: list[Any], level: int) -> None:
    _check_level(where, path, level)
    for key, item in value.items():
        if type(key) is not str:
            kind = type(key).__qualname__
            _refuse(
                f"has a key of type {kind}, which JSON would change", where, path, "use str keys"
            )
        if type(item) not in _AS_THEY_ARE:
            _check(item, where, [*path, key], level + 1)


def _check_level(where: str, path: list[Any], level: int) -> None:
    if level > MAX_DEPTH:
        _refuse(
            f"nests deeper than {MAX_DEPTH} levels",
            where,
            path[:3],
            "pass a flatter value, or text",
        )


def _refuse(what: str, where: str, path: list[Any], remedy: str) -> None:
    steps = "".join(f"[{step!r:.40}]" for step in path)
    raise CodecError(f"{where}{steps} {what}; {remedy}")


def _remedy(kind: type) -> str:
    if hasattr(kind, "__dataclass_fields__"):
        return _ANNOTATE.format("its class")
    ancestors = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    if "enum.Enum" in ancestors:  # before str and int, because an enum may be a subclass of them
        return _ANNOTATE.format("its class")
    return next((_REMEDIES[name] for name in ancestors if name in _REMEDIES), _OTHERWISE)
