"""Celery's names for a task's states."""

PENDING, STARTED, RETRY = "PENDING", "STARTED", "RETRY"
SUCCESS, FAILURE, REVOKED, IGNORED = "SUCCESS", "FAILURE", "REVOKED", "IGNORED"
READY_STATES = frozenset((SUCCESS, FAILURE, REVOKED))
UNREADY_STATES = frozenset((PENDING, STARTED, RETRY))
#: jobq's state -> Celery's state.
OF_JOBQ = {
    "scheduled": PENDING, "queued": PENDING, "running": STARTED, "retrying": RETRY, "done": SUCCESS, "failed": FAILURE,
    "cancelled": REVOKED, "expired": REVOKED, "unknown": PENDING,
}  # fmt: skip
