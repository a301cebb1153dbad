"""`manage.py check --deploy` also checks the server and its queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core import checks

from jobq.client.connection import Client, connect
from jobq.config import settings_from_env
from jobq.django.backend import JobqBackend
from jobq.django.compat import task_backends
from jobq.errors import JobqError
from jobq.queue import presence
from jobq.queue.doctor import findings

PATIENCE_S = 3.0


def register() -> None:
    """Register `check_server` for `manage.py check --deploy` only, because a build can't reach the server."""
    checks.register(check_server, "jobq", deploy=True)


def check_server(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Return the findings of `jobq check doctor`, and a warning for each configured queue that has no worker."""
    backends = _backends()
    if not backends:
        return []
    try:
        client = connect(settings=settings_from_env(patience_s=PATIENCE_S))
        try:
            return [*_of_server(client), *_of_queues(client, backends)]
        finally:
            client.close()
    except JobqError as error:
        return [checks.Error(f"The jobq server can't be reached: {error}", id="jobq.E002")]


def _backends() -> list[Any]:
    return [backend for backend in task_backends.all() if isinstance(backend, JobqBackend)]


def _of_server(client: Client) -> Iterator[checks.CheckMessage]:
    for finding in findings(client):
        if finding.level != "ok":
            kind = checks.Error if finding.level == "fail" else checks.Warning
            number = "jobq.E003" if finding.level == "fail" else "jobq.W003"
            yield kind(f"{finding.check}: {finding.value}", hint=finding.remedy or None, id=number)


def _of_queues(client: Client, backends: list[Any]) -> Iterator[checks.CheckMessage]:
    served = presence.served(client)
    for queue in sorted({queue for backend in backends for queue in backend.all_queues}):
        if queue not in served:
            yield checks.Warning(
                f"Queue {queue!r} has no worker.",
                hint=f"Start a worker: manage.py jobq worker --queues {queue}",
                id="jobq.W002",
            )
