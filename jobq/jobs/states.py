"""The public states of messages, which applications can show to their users."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from jobq.habits import refuse_attribute
from jobq.jobs.progress import Progress
from jobq.queue.types import Status

StateWord = Literal[
    "scheduled", "queued", "running", "retrying", "done", "failed", "cancelled", "expired", "unknown",
]  # fmt: skip
#: All public states, in the order of a message's life.
STATES: tuple[StateWord, ...] = get_args(StateWord)
#: The states of messages that are over.
ENDED: frozenset[StateWord] = frozenset(("done", "failed", "cancelled", "expired", "unknown"))
#: Public states by the word that a queue stores for a message. Other code must not map these words.
STATE_OF: dict[str, StateWord] = {
    "queued-with-backoff": "scheduled", "queued": "queued", "done-with-requeue": "queued", "locked": "running",
    "locked-with-requeue": "running", "done-awaiting-gc": "done", "done-with-backoff": "done", "dead": "failed",
    "nil": "unknown",
}  # fmt: skip
#: Details that the public state leaves out, by the word that a queue stores for a message.
_DETAILS = {
    "locked-with-requeue": "enqueued again", "done-with-requeue": "enqueued again", "done-with-backoff": "id rejected",
}  # fmt: skip
#: Maximum number of characters to read from a stored end's error. Other programs may have stored megabytes.
MAX_ERROR = 16_384
UNKNOWN_TEXT = (
    "it was never enqueued here, or it ended and its outcome has expired; set @job(remember='10m') or result_ttl "
    "to keep outcomes longer"
)


class State(NamedTuple):
    """The state of a message.

    Attributes:
        word: scheduled, queued, running, retrying, done, failed, cancelled, expired, or unknown. A message is unknown
            if it was never enqueued, or if its outcome isn't kept.
        attempt: The number of the latest attempt; 0 before the first attempt.
        progress: The latest progress report of an attempt; None if there is none.
        error: Why the latest attempt failed, or why the state is unknown.
        due_at: When a scheduled or retrying message may start.
        ended_at: When the message ended, by the worker's clock.
        traceback: The traceback of the latest failure while the message waits for a retry, runs again or is dead; '' if
            none is kept, as with `jobq worker --no-tracebacks`.
    """

    word: StateWord
    attempt: int = 0
    progress: Progress | None = None
    error: str = ""
    due_at: datetime | None = None
    ended_at: datetime | None = None
    traceback: str = ""

    @property
    def ended(self) -> bool:
        """Whether the message has ended."""
        return self.word in ENDED


if not TYPE_CHECKING:  # a type checker would accept every misspelt name
    State.__getattr__ = refuse_attribute


def state_word(status: Status) -> StateWord:
    """Return the public state that follows from the queue's status alone. A cancelled run counts as `done`."""
    word = STATE_OF.get(status.word, "unknown")
    return "retrying" if status.attempts and status.word.startswith("queued") else word


def state_text(status: Status, word: StateWord | None = None) -> str:
    """Describe a state for people, for example `running, enqueued again`.

    Without `word`, the state is derived from the status.
    """
    if status.word == "queued" and status.lock_expires_at:
        return "retrying, lease ended"
    detail = _DETAILS.get(status.word)
    return f"{word or state_word(status)}{f', {detail}' if detail else ''}"


def is_over(status: Status) -> bool:
    """Return whether the message has ended."""
    return state_word(status) in ENDED


def live_state(status: Status, progress: Progress | None = None, traceback: str = "") -> State:
    """Return the state of a live message. `progress` and `traceback` are from its latest attempt, already decrypted."""
    word = state_word(status)
    if status.word == "done-with-requeue":
        # Newer content. The queue still describes the earlier run, which is over.
        return State(word)
    due_at = moment(status.not_before) if word in ("scheduled", "retrying") else None
    error = traceback.rpartition("\n")[2]
    return State(word, status.attempts, progress, error, due_at, traceback=traceback)


def ended_state(record: Any) -> State:
    """Convert a stored outcome to a state. Return `unknown` if no outcome is stored."""
    if not isinstance(record, dict):
        return State("unknown", error=UNKNOWN_TEXT)
    word: StateWord = "done"
    if "error" in record:
        word = "expired" if record.get("type") == "expired" else "failed"
    elif record.get("end") == "cancelled":
        word = "cancelled"
    attempt, at = record.get("attempt"), record.get("at")
    return State(
        word,
        attempt if type(attempt) is int and attempt > 0 else 0,
        error=str(record.get("error") or "")[:MAX_ERROR],
        ended_at=moment(at) if type(at) is int else None,
    )


def moment(epoch_ms: int) -> datetime | None:
    """Return a datetime in UTC; None for 0, or for a number out of range."""
    try:
        return datetime.fromtimestamp(epoch_ms / 1000, UTC) if epoch_ms else None
    except (ValueError, OverflowError, OSError):
        return None
