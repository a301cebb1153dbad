"""One attempt of a Django task in a worker: its record, its signals, and the context of a task with takes_context."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from traceback import format_exception
from typing import Any

from msgspec import structs

from jobq.client.connection import default_client
from jobq.django.compat import (
    InvalidBackend,
    TaskContext,
    TaskResultStatus,
    normalize_json,
    signals,
    task_backends,
)
from jobq.django.records import Called, Recorded, Records, Tried, read_sent
from jobq.django.results import (
    add_attempts,
    moment,
    new_result,
    put,
    stored_error,
    task_as_sent,
)
from jobq.errors import JobAborted, JobqError, masked_text, shortened
from jobq.jobs.codec import encode_plain
from jobq.jobs.context import current
from jobq.jobs.functions import check_finished
from jobq.jobs.retry import Decision
from jobq.queue.types import Status

logger = logging.getLogger("jobq.django")
#: Maximum number of characters of a traceback to keep, from its end.
MAX_TRACEBACK = 16_000
#: Minimum lifetime of the record of a message waiting for a retry.
MIN_TTL_S = 86_400.0
_STOPPED = (JobAborted, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)


class Attempt:
    """Records one attempt. Call `start`, then `succeeded` or `failed`. An unreachable server doesn't raise an error."""

    def __init__(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._context = context = current()
        self._pid = os.getpid()
        sent = read_sent(context.headers.get("django", ""))
        sent = structs.replace(sent, at=sent.at or context.enqueued_at)
        self._called = Called(task.module_path, list(args), dict(kwargs), sent)
        self._task = task_as_sent(task, sent)
        self._sender, self._ttl_s = _backend_of(self._task)
        self._records = Records(default_client(), context.queue)
        self._tried = Tried(context.attempt, context.generation, context.worker, _now_ms())
        result_id = f"{context.queue}/{context.mid}"
        self._result = new_result(self._task, result_id, self._called, TaskResultStatus.RUNNING)

    @property
    def context(self) -> tuple[Any, ...]:
        """A tuple with the task's context, or an empty tuple if the task doesn't take a context."""
        return (TaskContext(task_result=self._result),) if self._task.takes_context else ()

    def start(self) -> None:
        """Record the attempt's start, and send the signal task_started."""
        number = self._tried.attempt
        earlier: Sequence[Tried] = ()
        if self._ttl_s and number > 1:
            earlier = self._earlier()
        record = Recorded(self._called, [*earlier, self._tried])
        add_attempts(self._result, Status("locked", number), record, None)
        self._write(MIN_TTL_S)
        signals.task_started.send_robust(self._sender, task_result=self._result)

    def checked(self, value: Any) -> Any:
        """Return the task's return value in its stored form; None if results aren't stored.

        Raises TypeError or CodecError if JSON can't represent the value. Raises Dead if the value is a coroutine or
        generator that never ran.
        """
        check_finished(value, self._called.task)
        if not self._ttl_s:
            return None
        try:
            plain = normalize_json(value)
            encode_plain(plain, f"the return value of {self._called.task}")
        except (TypeError, ValueError, JobqError) as error:
            refused = Decision("dead", why="the task ran, but its return value could not be stored")
            self._context.overrule(error, refused)
            raise
        return plain

    def succeeded(self, value: Any) -> None:
        """Record the attempt's success, and send the signal task_finished."""
        if os.getpid() != self._pid:
            return  # a process forked by the job
        self._tried = structs.replace(self._tried, finished=_now_ms(), done=True, value=value)
        self._write(0)
        self._finish(TaskResultStatus.SUCCESSFUL)

    def failed(self, error: BaseException) -> None:
        """Record the error, and send the signal task_finished unless another attempt follows."""
        if os.getpid() != self._pid or self.is_stopped_by(error):
            return
        outcome = self._outcome(error)
        if outcome in ("snooze", "hold"):
            return
        path = f"{type(error).__module__}.{type(error).__qualname__}"
        text = masked_text(shortened(_text_of(error), end=True))[-MAX_TRACEBACK:]
        text = text.encode("utf-8", "replace").decode()
        self._tried = structs.replace(
            self._tried, finished=_now_ms(), error=path, traceback=text
        )  # fmt: skip
        self._result.errors.append(stored_error(path, text))
        if outcome == "dead":
            self._write(0)
            self._finish(TaskResultStatus.FAILED)
        else:
            self._write(MIN_TTL_S)

    def is_stopped_by(self, error: BaseException) -> bool:
        """Return whether this error interrupts the attempt. An interrupted attempt neither succeeds nor fails."""
        return isinstance(error, _STOPPED)

    def _finish(self, status: Any) -> None:
        put(self._result, status=status, finished_at=moment(self._tried.finished))
        if self._tried.done:
            put(self._result, _return_value=self._tried.value)
        signals.task_finished.send_robust(self._sender, task_result=self._result)

    def _outcome(self, error: BaseException) -> str:
        try:
            return self._context.decide(error).outcome
        except Exception:
            return "retry"  # the job's rules are broken; the executor decides, and logs why

    def _earlier(self) -> Sequence[Tried]:
        context = self._context
        try:
            attempts = self._records.read_record(context.mid).attempts
            if self._tried.attempt % 100 == 0:
                self._records.forget_oldest(context.mid)
        except JobqError as error:
            logger.warning("can't read earlier attempts of task %s: %s", self._result.id, error)
            return ()
        return [attempt for attempt in attempts if attempt.generation == context.generation]

    def _write(self, least_s: float) -> None:
        if not self._ttl_s:
            return
        context = self._context
        try:
            ttl_s = max(self._ttl_s, least_s)
            self._records.write(context.mid, context.fence, self._tried, self._called, ttl_s)
        except JobqError as error:
            # The message still ends normally; only its result in Django is missing.
            logger.warning("can't record an attempt of task %s: %s", self._result.id, error)


def _backend_of(task: Any) -> tuple[type, float]:
    """Return the class of a task's backend, and how many seconds records are kept; 0 if they aren't kept."""
    try:
        backend = task_backends[task.backend]
    except InvalidBackend:
        return object, 0.0
    return type(backend), getattr(backend, "result_ttl_s", 0.0)


def _text_of(error: BaseException) -> str:
    try:
        return "".join(format_exception(error))
    except Exception:  # a broken __str__
        return f"{type(error).__qualname__}: its message can't be shown\n"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
