"""What a program of another language pushed and nobody can run, kept with the reason (docs/reference/wire.md).

``{"refused":"it names no class","raw":"{\\"args\\":[]}","headers":{"ruby":"sidekiq :default"}}``

It has no `job`, so no worker of any version runs it, whatever the bytes in it say: it is dead at once, and
its reason is the one that stands here. `raw_base64` takes the place of `raw` for bytes that are no UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta


class Refusal(NamedTuple):
    """Why it can't be run, the bytes that were pushed, and texts that travel along."""

    why: str
    raw: bytes
    headers: Mapping[str, str]


class _Refused(msgspec.Struct, frozen=True, omit_defaults=True):
    refused: Annotated[str, Meta(min_length=1)]
    raw: str = ""
    raw_base64: bytes = b""
    headers: dict[str, str] = {}


_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(_Refused).decode


def refusal(why: str, raw: bytes, headers: Mapping[str, str]) -> bytes:
    """The content of a message that is dead as soon as a worker gets it."""
    why = why.encode("utf-8", "backslashreplace").decode()
    try:
        return _write(_Refused(why, raw=raw.decode(), headers=dict(headers)))
    except UnicodeDecodeError:
        return _write(_Refused(why, raw_base64=raw, headers=dict(headers)))


def read_refusal(content: bytes) -> Refusal | None:
    """What is in `content`; None where it is something else."""
    try:
        found = _read(content)
    except (ValueError, RecursionError, OverflowError, MemoryError):
        return None
    return Refusal(found.refused, found.raw_base64 or found.raw.encode(), found.headers)
