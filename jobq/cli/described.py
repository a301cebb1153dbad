"""What a message's bytes say, for people: the job's name always, the rest only when asked for."""

from __future__ import annotations

import base64
from typing import Any


def content_facts(content: bytes, wanted: bool) -> dict[str, Any]:
    """`job`, and if `wanted` the `content` as text; `content_base64` too where it is none."""
    facts: dict[str, Any] = {"job": job_name(content)}
    if wanted:
        text = facts["content"] = content.decode("utf-8", "backslashreplace")
        if text.encode() != content:
            facts["content_base64"] = base64.b64encode(content).decode()
    return facts


def job_name(content: bytes) -> str:
    """The job that an envelope names, '' for bytes that are none or are encrypted; no seal is checked."""
    import msgspec

    from jobq.jobs.signing import unverified

    try:
        envelope = msgspec.json.decode(unverified(content))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    name = envelope.get("job") if isinstance(envelope, dict) else None
    return name if isinstance(name, str) else ""
