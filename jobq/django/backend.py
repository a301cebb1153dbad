"""The backend: `TASKS = {"default": {"BACKEND": "jobq.django.JobqBackend", "OPTIONS": {...}}}`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections, transaction
from django.utils import timezone

from jobq import outbox
from jobq.client.connection import default_client
from jobq.client.names import checked_name, checked_queue
from jobq.config import duration_s
from jobq.django.compat import (
    BaseTaskBackend,
    InvalidBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    signals,
)
from jobq.django.discovery import import_tasks
from jobq.django.records import Called, Recorded, Records, Sent, header_of, read_sent
from jobq.django.registered import Registered, tasks
from jobq.django.results import add_attempts, moment, new_result, put, status_of, task_as_sent
from jobq.errors import CodecError, ConfigError, JobqError, ScriptError
from jobq.jobs.codec import decode
from jobq.jobs.queues import QueueLike, queue_of
from jobq.jobs.results import Receipt
from jobq.jobs.retry import MAX_RETRIES
from jobq.jobs.signing import opened, seal_of
from jobq.queue.mids import new_mid
from jobq.queue.types import DAY_S, DeadMessage, Status

#: Maximum number of reads of a task's state. If the task ends during a read, its state is read again.
MAX_READS = 3
OPTIONS = ("on_commit", "outbox", "priority_queues", "result_ttl", "retries")
#: Pairs of a priority and a queue, from the highest priority to the lowest.
PriorityQueues = Sequence[tuple[int, str]]


class JobqBackend(BaseTaskBackend):
    """Sends tasks to workers. Each thread has an instance per alias, and all instances share jobq's default client.

    OPTIONS:
        result_ttl: How long to keep the result of a finished task. Default: "1d". With 0, results aren't kept.
        on_commit: Alias of a database. Tasks are enqueued when a transaction of the database commits. By default,
            tasks are enqueued immediately.
        retries: Maximum number of retries of a failed task. Default: 0.
        outbox: Alias of a database. The database's transaction writes a task to the outbox table, and a relay
            enqueues the task.
        priority_queues: Priority -> queue. With {50: "high", -50: "low"}, tasks of priority 50 or more go to "high",
            and tasks of priority -50 or less go to "low".
    """

    supports_defer = True
    supports_async_task = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        try:
            unknown = sorted(set(options) - set(OPTIONS))
            if unknown:
                raise ConfigError(
                    f"unknown option {unknown[0]!r}; options are {', '.join(OPTIONS)}"
                )
            self.result_ttl_s = duration_s(options.get("result_ttl", "1d") or 0)
            self.retries = _retries(options.get("retries", 0))
            self.on_commit: str | None = options.get("on_commit")
            self.outbox: str | None = options.get("outbox")
            if self.on_commit and self.outbox:
                raise ConfigError("use either on_commit or outbox, not both")
            self.priority_queues = _priority_queues(options.get("priority_queues"))
            for queue in self.queues:
                checked_queue(queue)
        except ConfigError as error:
            raise InvalidBackend(f"TASKS[{alias!r}]: {error}") from error
        self.supports_get_result = self.result_ttl_s > 0
        self.supports_priority = bool(self.priority_queues)

    @property
    def all_queues(self) -> list[str]:
        """The queues in QUEUES and priority_queues. If QUEUES is empty, tasks may also name other queues."""
        return sorted({*self.queues, *(queue for _, queue in self.priority_queues)})

    def validate_task(self, task: Any) -> None:
        """Raise InvalidTask if this backend can't run the task. Django calls this for each new Task."""
        super().validate_task(task)
        self._registered(task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Send a task to its queue, now or when the transaction commits. `enqueued_at` is set when the task is sent."""
        return self.enqueue_by(self.on_commit, task, args, kwargs)

    def enqueue_by(
        self, using: str | None, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Send a task when the transaction of the database `using` commits. If `using` is None, send it now."""
        self.validate_task(task)
        registered = self._registered(task)
        job = registered.job
        job.check_arguments(args, kwargs)
        plain, named = job.encoded(args, dict(kwargs))
        called = Called(
            task.module_path, _plain(normalize_json(list(plain))), _plain(normalize_json(named))
        )
        mid = job.unique_mid(*args, **kwargs) if job.unique else new_mid()
        queue = self._queue_of(task)
        result = new_result(task, f"{queue}/{mid}", called, TaskResultStatus.READY)
        send = partial(self._send, registered, result, mid)
        if using is None:
            send()
        else:
            transaction.on_commit(send, using=using)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the TaskResult with this id. Raises TaskResultDoesNotExist for an unknown task."""
        if not self.supports_get_result:
            return super().get_result(result_id)
        name, _, mid = result_id.rpartition("/")
        try:
            client = default_client()
            queue = queue_of(checked_name("queue", name), client)
            for _ in range(MAX_READS):
                status = queue.status(mid)
                # In this order: the record of an end is written before the queue is updated.
                record = Records(client, name).read_record(mid)
                dead = _dead(queue, mid) if status.word == "dead" else None
                called = record.called or _called(queue, mid, dead)
                if called is not None and (status.word != "nil" or record.called is not None):
                    return self._result(result_id, called, status, record, dead)
                if status.word == "nil":
                    break
                # The task ended between these reads: its message is gone, and its record was not there yet.
        except ConfigError as error:
            raise TaskResultDoesNotExist(result_id) from error
        raise TaskResultDoesNotExist(result_id)

    def check(self, **kwargs: Any) -> Iterator[CheckMessage]:
        """Yield problems with the settings. `manage.py check --deploy` also checks the server."""
        if self.on_commit is not None and self.on_commit not in connections:
            yield Error(
                f"TASKS[{self.alias!r}]: on_commit={self.on_commit!r} is not an alias in DATABASES.",
                id="jobq.E001",
            )
        yield from _check_outbox(self.alias, self.outbox)
        if not apps.is_installed("jobq.django"):
            yield Warning(
                "jobq.django is not in INSTALLED_APPS, so there is no `manage.py jobq worker`.",
                hint='Add "jobq.django" to INSTALLED_APPS.',
                id="jobq.W001",
            )

    def _registered(self, task: Any) -> Registered:
        try:
            return tasks.add(task, checked_queue(self._queue_of(task)), self.retries)
        except JobqError as error:
            raise InvalidTask(str(error)) from error

    def _queue_of(self, task: Any) -> str:
        """Return the queue that the task's priority selects, or else the task's queue_name."""
        for least, queue in self.priority_queues:
            if least > 0 and task.priority >= least:
                return queue
        for most, queue in reversed(self.priority_queues):
            if most < 0 and task.priority <= most:
                return queue
        return str(task.queue_name)

    def _send(self, registered: Registered, result: Any, mid: str) -> None:
        task, now_ms = result.task, time.time_ns() // 1_000_000
        queue = self._queue_of(task)
        sent = Sent(
            now_ms,
            "" if task.backend == registered.task.backend else task.backend,
            task.priority,
            "" if task.queue_name == registered.task.queue_name else task.queue_name,
            task.run_after.isoformat() if task.run_after else "",
        )
        options: dict[str, Any] = {"queue": queue, "headers": header_of(sent)}
        if task.run_after is not None:
            aware = timezone.is_aware(task.run_after)
            options["at"] = task.run_after if aware else timezone.make_aware(task.run_after)
        if registered.job.unique is None:
            options["mid"] = mid
        receipt = self._enqueued(registered, options, result)
        put(result, enqueued_at=moment(now_ms))
        if receipt.accepted:
            signals.task_enqueued.send_robust(type(self), task_result=result)

    def _enqueued(
        self, registered: Registered, options: dict[str, Any], result: Any
    ) -> Receipt[Any]:
        args, kwargs = registered.job.decoded(result.args, result.kwargs)
        if self.outbox is None:
            receipt: Receipt[Any] = registered.job.options(**options).enqueue(*args, **kwargs)
            return receipt
        if "mid" in options:
            # The mid is used only once, so the server may reject it after the task is done.
            options["until"] = DAY_S
        # A savepoint inside a transaction, else a new transaction.
        block: Any = transaction.atomic(using=self.outbox)
        with block:
            return outbox.enqueue(
                connections[self.outbox],
                registered.job.options(**options),
                *args,
                **kwargs,
            )

    def _result(
        self,
        result_id: str,
        called: Called,
        status: Status,
        record: Recorded,
        dead: DeadMessage | None,
    ) -> Any:
        known = tasks.find(called.task)
        if known is None:
            import_tasks()  # imports the tasks of all apps, never a module that only the record names
            known = tasks.find(called.task)
        if known is None:
            raise TaskResultDoesNotExist(
                f"{result_id}: no app of this project has the task {called.task!r:.200}"
            )
        task = task_as_sent(known.task, called.sent)
        result = new_result(task, result_id, called, status_of(status, record.attempts))
        put(result, backend=self.alias)
        add_attempts(result, status, record, dead)
        return result


def enqueue_on_commit(task: Any, *args: Any, using: str = "default", **kwargs: Any) -> Any:
    """Enqueue a task when the transaction of the database `using` commits, or immediately outside a transaction.

    Returns its TaskResult. With a backend other than JobqBackend, returns None, because the id isn't known beforehand.
    """
    backend = task.get_backend()
    if isinstance(backend, JobqBackend):
        return backend.enqueue_by(using, task, args, kwargs)
    transaction.on_commit(partial(task.enqueue, *args, **kwargs), using=using)
    return None


def _check_outbox(alias: str, using: str | None) -> Iterator[CheckMessage]:
    if using is None:
        return
    if using not in connections:
        yield Error(
            f"TASKS[{alias!r}]: outbox={using!r} is not an alias in DATABASES.", id="jobq.E004"
        )
    if not apps.is_installed("jobq.django.outbox"):
        yield Error(
            f"TASKS[{alias!r}] has an outbox, but its tables are missing.",
            hint='Add "jobq.django.outbox" to INSTALLED_APPS, and run manage.py migrate.',
            id="jobq.E005",
        )


def _retries(given: Any) -> int:
    if type(given) is not int or not 0 <= given <= MAX_RETRIES:
        raise ConfigError(f"retries={given!r} is not a whole number between 0 and {MAX_RETRIES}")
    return given


def _priority_queues(given: Any) -> PriorityQueues:
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not all(
        type(priority) is int and 0 < abs(priority) <= 100 for priority in given
    ):
        raise ConfigError(
            f'priority_queues={given!r} must map priorities from -100 to 100, except 0, to queues: {{50: "high"}}'
        )
    return [(priority, checked_queue(given[priority])) for priority in sorted(given, reverse=True)]


def _plain(value: Any) -> Any:
    """Convert JSON data to built-in types, because Django often passes instances of str subclasses."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    kind: Callable[[Any], Any] = int if isinstance(value, int) else float
    return kind(value)


def _dead(queue: QueueLike, mid: str) -> DeadMessage | None:
    try:
        messages = queue.admin.dead(mid=mid)
    except ScriptError:
        return None  # producers may not read dead messages
    return messages[0] if messages else None


def _called(queue: QueueLike, mid: str, dead: DeadMessage | None) -> Called | None:
    """Return the call of a message that no worker has started; None if the message is missing or can't be decoded."""
    content = dead.content if dead else queue.content(mid)
    if content is None:
        return None
    try:
        call = decode(opened(seal_of(queue.client), queue.name, mid, content))
    except CodecError:
        return None
    sent = read_sent(call.headers.get("django", ""))
    return Called(call.job, call.args, call.kwargs, sent)
