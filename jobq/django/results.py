"""Builds a TaskResult from a message's status and its record."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from jobq.django.compat import InvalidBackend, InvalidTask, TaskError, TaskResult, TaskResultStatus
from jobq.django.records import Called, Recorded, Sent, Tried
from jobq.jobs.states import state_word
from jobq.queue.types import DeadMessage, Status

#: States of waiting messages. Django has one status for all of them.
_WAITING = frozenset(("scheduled", "queued", "retrying"))
#: Maximum number of attempts that a result lists.
MAX_ATTEMPTS = 10_000


class StoredError(TaskError):
    """The stored error of an attempt. Unlike Django's TaskError, this class never imports the exception's module.

    Otherwise, stored data could make this process import any module.
    """

    __slots__ = ()

    @property
    def exception_class(self) -> type[BaseException]:
        """The class of the exception; raise ImportError if its module isn't imported here."""
        module, _, name = self.exception_class_path.rpartition(".")
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return kind
        raise ImportError(
            f"{self.exception_class_path!r} is not an exception class in a module imported by this process"
        )


def moment(epoch_ms: int) -> datetime | None:
    """Convert epoch ms to a datetime, which is aware if USE_TZ is set. Return None if `epoch_ms` is 0."""
    if not epoch_ms:
        return None
    aware = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    return aware if settings.USE_TZ else timezone.make_naive(aware)


def status_of(status: Status, attempts: Sequence[Tried]) -> Any:
    """Return the TaskResultStatus of a message.

    If the queue has deleted the message, `attempts` determine the status.
    """
    word = state_word(status)
    if word in _WAITING:
        return TaskResultStatus.READY
    if word == "running":
        return TaskResultStatus.RUNNING
    # A message without a recorded end was cancelled.
    succeeded = word != "failed" and attempts and attempts[-1].done
    return TaskResultStatus.SUCCESSFUL if succeeded else TaskResultStatus.FAILED


def task_as_sent(task: Any, sent: Sent) -> Any:
    """Return the Task that was enqueued: `task` with the options of its message."""
    changes: dict[str, Any] = {}
    if sent.backend and sent.backend != task.backend:
        changes["backend"] = sent.backend
    if sent.priority != task.priority:
        changes["priority"] = sent.priority
    if sent.queue and sent.queue != task.queue_name:
        changes["queue_name"] = sent.queue
    with suppress(ValueError):
        if sent.run_after:
            changes["run_after"] = datetime.fromisoformat(sent.run_after)
    try:
        return task.using(**changes) if changes else task
    except (InvalidTask, InvalidBackend):
        return task  # the settings have changed since, or the header is forged


def new_result(task: Any, result_id: str, called: Called, status: Any) -> Any:
    """Return a TaskResult without attempts."""
    return TaskResult(
        task=task,
        id=result_id,
        status=status,
        enqueued_at=moment(called.sent.at),
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=called.args,
        kwargs=called.kwargs,
        backend=task.backend,
        errors=[],
        worker_ids=[],
    )


def add_attempts(result: Any, status: Status, record: Recorded, dead: DeadMessage | None) -> None:
    """Set a task result's times, workers, errors and return value from the recorded attempts."""
    attempts = record.attempts
    if state_word(status) in _WAITING and status.generation not in {
        attempt.generation for attempt in attempts
    }:
        attempts = ()  # they belong to an earlier message with this mid
    result.worker_ids.extend(_workers(attempts, status.attempts))
    result.errors.extend(_errors(attempts))
    if attempts:
        last = attempts[-1]
        put(result, started_at=moment(attempts[0].started), last_attempted_at=moment(last.started))
        if result.is_finished:
            put(result, finished_at=moment(last.finished))
        if result.status == TaskResultStatus.SUCCESSFUL:
            put(result, _return_value=last.value)
    if dead is not None:
        put(result, finished_at=result.finished_at or moment(dead.died_at))
        if not attempts or not attempts[-1].error:
            result.errors.append(stored_error("jobq.errors.JobFailedError", dead.reason))


def put(result: Any, **values: Any) -> None:
    """Set attributes of a frozen result."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def stored_error(path: str, traceback: str) -> Any:
    """Return an error in the form required by TaskResult.errors."""
    return StoredError(exception_class_path=path, traceback=traceback)


def _errors(attempts: Sequence[Tried]) -> list[Any]:
    return [stored_error(attempt.error, attempt.traceback) for attempt in attempts if attempt.error]


def _workers(attempts: Sequence[Tried], count: int) -> list[str]:
    """Return the worker of each attempt; '' if the attempt has no record."""
    count = max([count, *(attempt.attempt for attempt in attempts)])
    named = [""] * min(count, MAX_ATTEMPTS)
    for attempt in attempts:
        if attempt.attempt <= len(named):
            named[attempt.attempt - 1] = attempt.worker
    return named
