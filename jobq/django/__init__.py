"""Run Django's tasks on jobq: a backend for `django.tasks`, and `manage.py jobq`.

::

    INSTALLED_APPS = [..., "jobq.django"]
    TASKS = {"default": {"BACKEND": "jobq.django.JobqBackend"}}

Django 6 includes the framework. On Django 5.2, the package django-tasks provides it. Only
this package uses Django's terms (Task, TaskResult).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "JobqBackend": "jobq.django.backend",
    "enqueue_on_commit": "jobq.django.backend",
    "job_of": "jobq.django.registered",
    "task_options": "jobq.django.registered",
}


def __getattr__(name: str) -> Any:
    # Django imports this package before its apps are ready.
    if name not in _HOME:
        raise AttributeError(f"module 'jobq.django' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
