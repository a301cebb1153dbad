"""Read facts about an encoded call, such as its enqueue time, without checking its signature."""

from __future__ import annotations

import msgspec

from jobq.jobs.signing import unverified
from jobq.queue.types import WaitingHead


def enqueued_at(content: bytes) -> int:
    """Return the enqueue time in an envelope, in epoch ms by the producer's clock; 0 if it has none."""
    at = envelope_of(content).get("enqueued_at")
    return at if isinstance(at, int) and not isinstance(at, bool) and 0 < at < 2**53 else 0


def head_enqueued_at(head: WaitingHead | None) -> int:
    """Return the enqueue time of the next message, in epoch ms by its producer's clock; 0 if unknown.

    The time is unknown for a retry, whose wait began later, and for an encrypted call.
    """
    return enqueued_at(head.content) if head and not head.attempts else 0


def head_job(head: WaitingHead | None) -> str:
    """Return the job of the next message; '' if that is unknown, for example because its call is encrypted."""
    name = envelope_of(head.content).get("job") if head else ""
    return name if isinstance(name, str) else ""


def envelope_of(content: bytes) -> dict[object, object]:
    """Return the fields of an encoded call; {} if the bytes are encrypted or aren't a call."""
    try:
        call = msgspec.json.decode(unverified(content))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return call if isinstance(call, dict) else {}
