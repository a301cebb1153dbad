"""Messages that no job of this process can run."""

from __future__ import annotations

from collections.abc import Mapping

from jobq.engine.message import Ending, Message
from jobq.events import attempt_record, trace_id
from jobq.jobs import log
from jobq.jobs.failure import clean, one_column

#: About six minutes of waiting for a deploy to end.
MAX_ATTEMPTS = 12
LONGEST_MS = 60_000


def absent(
    queue: str,
    message: Message,
    name: str,
    why: str,
    worker: str,
    headers: Mapping[str, str] | None = None,
) -> Ending:
    """A job or an envelope that a newer deploy may know: tried again for a while, then dead."""
    failures = message.attempt - message.ncrashes
    record = _record(message, name, worker, "jobq.errors.JobNotFound", headers or {})
    if failures >= MAX_ATTEMPTS:
        return _dead(queue, message, why, record)
    backoff_ms = min(LONGEST_MS, 1000 * 2 ** max(0, failures - 1))
    log.failures.warning(
        "%s of queue %s: %s Again in %d s", message.mid, queue, clean(why), backoff_ms // 1000
    )
    return Ending(
        mid=message.mid, token=message.token, outcome="retry", backoff_ms=backoff_ms,
        record=record,
    )  # fmt: skip


def unreadable(queue: str, message: Message, why: str, worker: str) -> Ending:
    """Content that no version reads: dead at once."""
    return _dead(queue, message, why, _record(message, "", worker, "jobq.errors.CodecError", {}))


def _dead(queue: str, message: Message, why: str, record: str) -> Ending:
    why = clean(why)
    log.failures.error("%s of queue %s is dead: %s", message.mid, queue, why)
    return Ending(mid=message.mid, token=message.token, outcome="dead", reason=why, record=record)


def _record(message: Message, name: str, worker: str, kind: str, headers: Mapping[str, str]) -> str:
    return attempt_record(
        one_column(name), message.attempt, 0, 0, 0, 0, worker, kind,
        nbytes=len(message.content), trace_id=trace_id(headers),
    )  # fmt: skip
