"""The tasks of this process by name. Each task is a job whose function records attempts and sends Django's signals."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from asgiref.sync import sync_to_async

from jobq.django.attempts import Attempt
from jobq.errors import ConfigError
from jobq.jobs.functions import awaited
from jobq.jobs.job import Job
from jobq.jobs.options import checked_options
from jobq.jobs.registry import job

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "jobq_task_options"
#: Options set in Django's Task or the settings instead.
_ELSEWHERE = {
    "name": "leave it out: a task has the name of its function",
    "queue": "use @task(queue_name=…)",
    "delay": "use task.using(run_after=…)",
    "at": "use task.using(run_after=…)",
    "result_ttl": 'set TASKS["default"]["OPTIONS"]["result_ttl"]',
    "mid": "jobq chooses the id; unique=… rejects equal calls",
    "client": "set JOBQ_URL",
    "headers": "leave it out: the backend writes the headers",
    "registry": "leave it out: tasks are in the default registry",
}


class Registered(NamedTuple):
    """A Django task, and its job."""

    task: Any
    job: Job[..., Any]


class RegisteredTasks:
    """Tasks by the path of their function, in the order in which modules declared them."""

    def __init__(self) -> None:
        self._by_name: dict[str, Registered] = {}

    def find(self, name: str) -> Registered | None:
        """Return the task with this name, without importing modules."""
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[Registered]:
        return iter(self._by_name.values())

    def add(self, task: Any, queue: str, retries: int) -> Registered:
        """Register a task unless its function is already registered. Raises ConfigError for invalid options."""
        known = self._by_name.get(task.module_path)
        if known is not None and known.task.func is task.func:
            return known
        options = {"retries": retries, **getattr(task.func, _ATTRIBUTE, {})}
        made = job(name=task.module_path, queue=queue, **options)(_function(task))
        self._by_name[task.module_path] = registered = Registered(task, made)
        return registered


#: The tasks that workers run and results refer to.
tasks = RegisteredTasks()


def task_options(**options: Any) -> Callable[[F], F]:
    """Set options of `@job` on a task, such as retries, timeout, key, unique and limits.

    Put this decorator below `@task`.
    """
    for name, remedy in _ELSEWHERE.items():
        if name in options:
            raise ConfigError(f"{name}={options[name]!r} is not an option of a task; {remedy}")
    checked_options(options, declaring=True)

    def decorate(function: F) -> F:
        setattr(function, _ATTRIBUTE, options)
        return function

    return decorate


def job_of(task: Any) -> Job[..., Any]:
    """Return the job of a task, for use with `jobq.testing`, the outbox and schedules.

    Raises ConfigError for tasks of other backends.
    """
    registered = tasks.find(task.module_path)
    if registered is None:
        raise ConfigError(
            f"{task.module_path} is not a task of JobqBackend; see TASKS in the settings"
        )
    return registered.job


def _function(task: Any) -> Callable[..., Any]:
    """Return the function that a worker calls for this task."""
    function = awaited(task.func)
    signature = inspect.signature(function)
    if task.takes_context:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    made = _coroutine(task, function) if inspect.iscoroutinefunction(function) else _plain(task)
    wrapped = functools.update_wrapper(made, function)
    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    return wrapped


def _plain(task: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        attempt = Attempt(task, args, kwargs)
        attempt.start()
        try:
            value = attempt.checked(task.func(*attempt.context, *args, **kwargs))
        except BaseException as error:
            attempt.failed(error)
            raise
        attempt.succeeded(value)
        return value

    return run


def _coroutine(task: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    # Receivers of signals may use the database, which Django forbids on an event loop's thread.
    async def run(*args: Any, **kwargs: Any) -> Any:
        attempt = Attempt(task, args, kwargs)
        await sync_to_async(attempt.start)()
        try:
            value = attempt.checked(await function(*attempt.context, *args, **kwargs))
        except BaseException as error:
            if not attempt.is_stopped_by(error):
                await sync_to_async(attempt.failed)(error)
            raise
        await sync_to_async(attempt.succeeded)(value)
        return value

    return run
