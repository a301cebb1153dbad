"""A stored result: `{"ok": value}`, or `{"error": text, "type": class name}` of a job that is dead.

Only text comes back of an error: no class is looked up because a result names it.
"""

from __future__ import annotations

from typing import Any

from jobq.errors import CodecError, JobFailedError
from jobq.jobs.codec import HARD_LIMIT, checked_size, decode_any, encode_plain


class ResultRefusedError(CodecError):
    """The job ran, but what it returned can't be stored; running it again wouldn't help."""


def encode_result(value: Any, job: str) -> bytes:
    """What a job returned, or ResultRefusedError when JSON can't carry it."""
    try:
        encoded = b'{"ok":%b}' % encode_plain(value, f"the result of {job}")
        checked_size(encoded, f"the result of {job}", HARD_LIMIT)
    except CodecError as error:
        raise ResultRefusedError(str(error)) from error
    return encoded


def encode_failure(summary: str, kind: str) -> bytes:
    """Why there is no result."""
    return encode_plain({"error": summary, "type": kind}, "the failure")


def decode_result(content: bytes, job: str, mid: str) -> Any:
    """What the job returned; JobFailedError when it is dead, CodecError when this is no result."""
    stored = decode_any(content)
    if isinstance(stored, dict) and "ok" in stored:
        return stored["ok"]
    if isinstance(stored, dict) and "error" in stored:
        raise JobFailedError(f"{job} {mid} is dead: {stored['error']}")
    raise CodecError(f"what is stored as the result of {job} {mid} is none")
