"""A call as bytes and back: one JSON object, which any language can write (docs/reference/wire.md).

``{"job":"mail.send","args":["a@b"],"kwargs":{"retry":true},"enqueued_at":1700000000000}``

Fields at their default are left out: args, kwargs, headers, options, enqueued_at 0, v 1. Sealed calls have
`not_after` and `nonce` too. Whatever the
bytes are, only CodecError escapes from decode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from jobq.errors import CodecError
from jobq.jobs.plain import MAX_DEPTH, check, depth
from jobq.jobs.refusal import read_refusal

VERSION = 1
LIMIT = 256 * 1024
HARD_LIMIT = 1024 * 1024
MAX_NAME = 200
#: Characters of a refusal's reason that are passed on.
MOST_WHY = 1_000

_Retries = Annotated[int, Meta(ge=0, le=10_000)]
_Seconds = Annotated[float, Meta(gt=0, le=3_153_600_000)]


class UnknownVersionError(CodecError):
    """The envelope is of a version that this jobq doesn't read; upgrade the worker."""


class Overrides(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one message changes of its job's declaration; durations in seconds."""

    retries: _Retries | UnsetType = UNSET
    timeout: _Seconds | UnsetType | None = UNSET
    hard_timeout: _Seconds | UnsetType | None = UNSET
    result_ttl: _Seconds | UnsetType | None = UNSET


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One call. `enqueued_at` is epoch ms by the producer's clock, 0 when it didn't say.

    `not_after`: epoch ms from when on a sealed call isn't run any more, 0 = never. `nonce` makes equal calls differ.
    """

    job: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    enqueued_at: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    headers: dict[str, str] = {}
    options: Overrides | None = None
    v: int = VERSION
    not_after: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    nonce: str = ""


class _Version(msgspec.Struct):
    v: int = VERSION


_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(Envelope).decode
_read_version = msgspec.json.Decoder(_Version).decode
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
    """The bytes of one call; CodecError names the argument that can't be carried, and the remedy."""
    kwargs = dict(kwargs) if kwargs else {}
    for index, value in enumerate(args):
        check(value, f"argument {index + 1} of {job}")
    for name, value in kwargs.items():
        check(value, f"argument {name!r} of {job}")
    envelope = Envelope(
        job, list(args), kwargs, enqueued_at, dict(headers) if headers else {}, options
    )
    try:
        content = _write(envelope)
    except (ValueError, TypeError) as error:  # lone surrogates
        raise CodecError(
            f"a text in the call of {job} is no UTF-8 ({error}); replace lone surrogates"
        ) from error
    checked_size(content, f"the call of {job}", limit)
    return content


def checked_size(content: bytes, what: str, limit: int = LIMIT) -> None:
    """CodecError when `content` is over `limit`, or over the hard limit of 1 MiB."""
    if len(content) > min(limit, HARD_LIMIT):
        raise CodecError(
            f"{what} takes {len(content):,} bytes of the {min(limit, HARD_LIMIT):,} allowed; "
            "store the bulk elsewhere and pass where it is"
        )


def decode(content: bytes) -> Envelope:
    """The call in `content`; CodecError says what is wrong with it, without quoting it."""
    if len(content) > HARD_LIMIT:
        raise CodecError(f"content of {len(content):,} bytes is over the limit of {HARD_LIMIT:,}")
    try:
        envelope = _read(content)
    except (ValueError, RecursionError, OverflowError, MemoryError) as error:
        raise _explained(content, error) from error
    if envelope.v != VERSION:
        raise UnknownVersionError(
            f"content is of envelope version {envelope.v}, this jobq reads {VERSION}; upgrade it"
        )
    # No deeper than it has opening brackets: only suspects are walked.
    suspect = content.count(b"[") + content.count(b"{") > MAX_DEPTH
    if suspect and max(depth(envelope.args), depth(envelope.kwargs)) > MAX_DEPTH + 1:
        raise CodecError(f"content nests deeper than {MAX_DEPTH} levels")
    return envelope


def decode_any(content: bytes) -> Any:
    """Any JSON value; only CodecError escapes."""
    try:
        return _read_any(content)
    except RecursionError as error:
        raise CodecError("it nests too deep to be read") from error
    except (ValueError, OverflowError, MemoryError) as error:
        raise CodecError(f"no JSON: {error}") from error


def encode_plain(value: Any, what: str) -> bytes:
    """A value as JSON, by the same rules as an argument; `what` names it in the CodecError."""
    check(value, what)
    try:
        return _write(value)
    except (ValueError, TypeError) as error:
        raise CodecError(
            f"a text in {what} is no UTF-8 ({error}); replace lone surrogates"
        ) from error


def _explained(content: bytes, error: Exception) -> CodecError:
    try:
        version = _read_version(content).v
    except (ValueError, RecursionError, OverflowError, MemoryError):
        version = VERSION
    if version != VERSION:
        return UnknownVersionError(
            f"content is of envelope version {version}, this jobq reads {VERSION}; upgrade it"
        )
    refused = read_refusal(content)
    why = refused.why[:MOST_WHY] if refused else str(error) or type(error).__name__
    return CodecError(f"content is no call of a job: {why}")
