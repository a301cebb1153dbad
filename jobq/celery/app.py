"""The class `Celery`: an app with settings, tasks, and beat entries, which become schedules."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from jobq.celery import shared
from jobq.celery.result import AsyncResult
from jobq.celery.schedules import options_of
from jobq.celery.sending import given_options, job_for
from jobq.celery.signals import task_postrun, task_prerun
from jobq.celery.tasks import STARMAP
from jobq.celery.tasks import Task as BaseTask
from jobq.config import settings_from_env
from jobq.errors import ConfigError
from jobq.jobs.registry import job_name
from jobq.queue.types import DAY_S
from jobq.schedules.declared import schedule

logger = logging.getLogger("jobq.celery")
_DEFAULTS: dict[str, Any] = {
    "beat_schedule": {}, "broker_url": None, "result_backend": None, "result_expires": DAY_S,
    "task_always_eager": False, "task_default_queue": "celery", "task_default_rate_limit": None,
    "task_eager_propagates": False, "task_ignore_result": False, "task_routes": None,
    "task_soft_time_limit": None, "task_time_limit": None, "timezone": None,
}  # fmt: skip


class Conf(dict[str, Any]):
    """An app's settings, accessible as items and as attributes. Settings that jobq doesn't use have no effect."""

    def __init__(self, changed: Callable[[], object]) -> None:
        super().__init__(_DEFAULTS)
        self.__dict__["_changed"] = changed

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"the app has no setting {name!r}")

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    __setattr__ = __setitem__

    def update(self, *given: Any, **more: Any) -> None:
        """Change settings, and declare all tasks again, because tasks' options depend on the settings."""
        super().update(*given, **more)
        self._changed()


class _Later:
    """A signal of an app. Its receivers are called after all modules are imported."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def connect(self, receiver: Any = None, **_: Any) -> Any:
        if receiver is None:
            return self.connect
        self._app.later(lambda: receiver(sender=self._app))
        return receiver


class Celery:
    """An app with settings and the decorator `task`. It uses the server in JOBQ_URL."""

    Task = BaseTask

    def __init__(
        self, main: str | None = None, *, broker: str | None = None, backend: str | None = None,
        include: Iterable[str] = (), task_cls: type[BaseTask] | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        self.main = main
        self._later: list[Callable[[], object]] = []
        if task_cls is not None:
            self.Task = task_cls
        self.conf = Conf(self._declare)
        self.on_after_configure = self.on_after_finalize = _Later(self)
        shared.apps.append(self)
        given = {"broker_url": broker, "result_backend": backend, **settings}
        self.conf.update({key: value for key, value in given.items() if value is not None})
        for module in include:
            self.later(partial(import_module, module))
        if broker and not settings_from_env().url:
            logger.warning(
                "broker= of %s is ignored: jobq connects to the server in JOBQ_URL", main
            )

    # Tasks.

    def task(self, *functions: Any, **options: Any) -> Any:
        """Turn a function into a task: `@app.task` or `@app.task(bind=True, …)`."""
        return _decorated(self, functions, options)

    def register_task(self, task: Any) -> BaseTask:
        """Register a task class or an instance of it."""
        made: BaseTask = task() if isinstance(task, type) else task
        made.name = made.name or job_name(type(made))
        return _add(made, self)

    @property
    def tasks(self) -> dict[str, BaseTask]:
        """All tasks by name."""
        return shared.tasks

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Send a call of the task with this name. The task needn't exist in this process."""
        task = shared.tasks.get(name)
        if task is not None:
            return task.apply_async(args, kwargs, **options)
        args, kwargs = tuple(args or ()), dict(kwargs or {})
        return AsyncResult(job_for(name, args, kwargs, options).enqueue(*args, **kwargs).mid, name)

    AsyncResult = staticmethod(AsyncResult)

    @property
    def control(self) -> Celery:
        """Return the app, for `app.control.revoke(id)`. Use jobq's commands instead of Celery's other controls."""
        return self

    def revoke(self, task_id: str | Iterable[str], **_: Any) -> None:
        """Cancel tasks by id."""
        for mid in [task_id] if isinstance(task_id, str) else task_id:
            AsyncResult(mid).revoke()

    # Settings.

    def config_from_object(self, source: Any, silent: bool = False, namespace: str = "") -> None:
        """Read settings from an object or its import path. With `namespace`, read only names with this prefix."""
        if isinstance(source, str):
            module, _, attribute = source.partition(":")
            source = import_module(module)
            for part in filter(None, attribute.split(".")):
                source = getattr(source, part)
        is_mapping, prefix = isinstance(source, Mapping), f"{namespace}_" if namespace else ""
        given = {}
        for name in source if is_mapping else dir(source):
            if name.startswith(prefix) and not name.startswith("_"):
                value = source[name] if is_mapping else getattr(source, name)
                given[name.removeprefix(prefix).lower()] = value
        self.conf.update(given)

    def autodiscover_tasks(
        self, packages: Any = None, related_name: str = "tasks", force: bool = False
    ) -> None:
        """Import each package's module `related_name` when a worker starts. By default, import from Django's apps."""

        def discover() -> None:
            names: Any = packages() if callable(packages) else packages
            for name in _apps_of_django() if names is None else names:
                if find_spec(f"{name}.{related_name}"):
                    import_module(f"{name}.{related_name}")

        self.later(discover)
        if force:
            self.finalize()

    def add_periodic_task(
        self, when: Any, sig: Any, args: Any = (), kwargs: Any = None, name: str | None = None, **options: Any
    ) -> None:  # fmt: skip
        """Add an entry to beat_schedule."""
        entry = {
            "task": sig.name, "schedule": when, "args": args or sig.args, "kwargs": kwargs or sig.kwargs,
            "options": {**sig.options, **options},
        }  # fmt: skip
        self.conf["beat_schedule"] = {
            **self.conf.beat_schedule, name or f"{sig.name}{entry['args']}": entry,
        }  # fmt: skip

    # After all imports.

    def later(self, call: Callable[[], object]) -> None:
        """Call a function after a worker has imported its modules, or when `finalize` runs."""
        self._later.append(call)
        self._await_imports()

    def _await_imports(self) -> None:
        from jobq.cli.modules import loaders

        if self.finalize not in loaders:
            loaders.append(self.finalize)

    def finalize(self, auto: bool = False) -> None:
        """Discover tasks and add periodic tasks. Workers call this method; call it yourself in tests of schedules."""
        while self._later:
            self._later.pop(0)()
        self._declare()
        for name, entry in self.conf.beat_schedule.items():
            if entry["task"] not in shared.tasks:
                raise ConfigError(
                    f"beat_schedule[{name!r}] names a task that no imported module declares"
                )

    def _declare(self) -> None:
        for task in list(shared.tasks.values()):
            if task.app is self:
                task.declare()
        for name, entry in self.conf.beat_schedule.items():
            task = shared.tasks.get(entry["task"])
            if task is not None:
                self._schedule(name, entry, task)
        if self.conf.beat_schedule:
            self._await_imports()

    def _schedule(self, name: str, entry: Mapping[str, Any], task: BaseTask) -> None:
        options = given_options(name, entry.get("options") or {})
        if options.pop("queue", task.job.queue) != task.job.queue or options:
            raise ConfigError(
                f"beat_schedule[{name!r}] has the options {entry['options']!r:.100}, which schedules don't support; "
                f"set them on the task {task.name}"
            )
        cron, options = options_of(entry["schedule"], str(self.conf.timezone or "UTC"))
        schedule(
            cron, **options, name="-".join(name.split()), args=tuple(entry.get("args") or ()),
            kwargs=dict(entry.get("kwargs") or {}),
        )(task.job)  # fmt: skip


def shared_task(*functions: Any, **options: Any) -> Any:
    """Turn a function into a task of the current app: `@shared_task` or `@shared_task(bind=True, …)`."""
    return _decorated(None, functions, options)


def _decorated(app: Celery | None, functions: Sequence[Any], options: Mapping[str, Any]) -> Any:
    decorate = partial(make_task, app, options)
    return decorate(*functions) if functions else decorate


def make_task(
    app: Celery | None, options: Mapping[str, Any], function: Callable[..., Any]
) -> BaseTask:
    """Return a task for a function; `app` is None for `shared_task`."""
    if inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"{function.__qualname__} is async, but Celery's tasks can't be async; decorate it with @jobq.job"
        )
    given = dict(options)
    base = given.pop("base", None) or (app or shared.apps[-1]).Task
    bind = given.get("bind", base.bind)
    members = {
        **given, "run": function if bind else staticmethod(function), "__doc__": function.__doc__,
    }  # fmt: skip
    members |= {"name": given.get("name") or job_name(function), "__module__": function.__module__}
    if app is None:
        members["app"] = property(lambda self: shared.apps[-1])
    made: Any = type(function.__name__, (base,), members)
    return _add(made(), app)


def _add(task: BaseTask, app: Celery | None) -> BaseTask:
    if app is not None:
        task.app = app
    shared.tasks[task.name] = task
    task.declare()
    for name, entry in task.app.conf.beat_schedule.items():
        if entry["task"] == task.name:
            task.app._schedule(name, entry, task)
    return task


def _apps_of_django() -> Iterator[str]:
    """Set up Django and manage its connections as Celery does, and yield the packages of its apps."""
    import django
    from django.apps import apps
    from django.db import close_old_connections, connections

    if not apps.ready:
        django.setup()
    for signal in (task_prerun, task_postrun):
        signal.connect(lambda **_: close_old_connections())
    yield from [config.name for config in apps.get_app_configs()]
    # A worker's processes must not share connections opened during imports.
    connections.close_all()


def current_task() -> Any:
    """Return the running task, or None outside a task."""
    stack = shared.requests.get()
    return stack[-1][0] if stack else None


Celery("default")


def starmap(task: str, items: Any) -> list[Any]:
    """Call a task once for each item, in order."""
    if task not in shared.tasks:
        raise ConfigError(f"no imported module declares the task {task!r:.200}")
    return [shared.tasks[task](*item) for item in items]


shared_task(name=STARMAP)(starmap)
