"""Celery's API on jobq. To run an existing module of tasks, change `celery` to `jobq.celery` in its imports.

::

    from jobq.celery import shared_task

    @shared_task(bind=True, autoretry_for=(OSError,), retry_backoff=True)
    def fetch(self, url): ...

    fetch.delay("https://example.org")

`jobq worker --import app.tasks` runs the tasks. docs/interop/celery.md lists the differences from Celery.
"""

from __future__ import annotations

from jobq.celery import signals, states
from jobq.celery.app import Celery, shared_task
from jobq.celery.app import current_task as _current_task
from jobq.celery.canvas import Signature, chain, chord, group, signature, xmap
from jobq.celery.result import AsyncResult, GroupResult
from jobq.celery.shared import LookedUp, apps
from jobq.celery.tasks import Task

__all__ = [
    "AsyncResult", "Celery", "GroupResult", "Signature", "Task", "chain", "chord", "current_app", "current_task",
    "group", "shared_task", "signals", "signature", "states", "subtask", "xmap",
]  # fmt: skip

#: The app created last.
current_app = LookedUp(lambda: apps[-1])
#: The running task; false outside a task.
current_task = LookedUp(_current_task)
subtask = signature
