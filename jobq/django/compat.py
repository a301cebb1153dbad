"""Import Django's tasks framework from `django.tasks` in Django 6, or from the package django-tasks."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from jobq import extras


def _framework() -> str:
    for name in ("django.tasks", "django_tasks"):
        if find_spec(name):
            return name
    raise ImproperlyConfigured(
        f"jobq.django needs Django 6, or the package django-tasks; {extras.install('django')}"
    )


#: The framework's package; only these two names are ever imported here.
FRAMEWORK = _framework()
_exceptions = import_module(f"{FRAMEWORK}.exceptions")
_base = import_module(f"{FRAMEWORK}.base")

# The backport's errors have other suffixes.
InvalidTask: Any = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
InvalidBackend: Any = (
    getattr(_exceptions, "InvalidTaskBackend", None) or _exceptions.InvalidTaskBackendError
)
TaskResultDoesNotExist: Any = _exceptions.TaskResultDoesNotExist
Task: Any = _base.Task
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
TaskResultStatus: Any = _base.TaskResultStatus
normalize_json: Any = _base.normalize_json
BaseTaskBackend: Any = import_module(f"{FRAMEWORK}.backends.base").BaseTaskBackend
signals: Any = import_module(f"{FRAMEWORK}.signals")
task_backends: Any = import_module(FRAMEWORK).task_backends
