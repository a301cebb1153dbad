"""Celery's signals for tasks and for a worker's processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Never

from jobq.jobs.registry import default_registry

logger = logging.getLogger("jobq.celery")
Receiver = Callable[..., Any]


class Signal:
    """Calls receivers with `signal`, `sender` and the signal's arguments. Errors of receivers are logged."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.receivers: list[tuple[Receiver, Any]] = []

    def connect(self, receiver: Any = None, sender: Any = None, **_: Any) -> Any:
        """Add a receiver: `@signal.connect`, `@signal.connect(sender=task)` or `signal.connect(function)`."""
        if receiver is None:
            return lambda function: self.connect(function, sender)
        self.receivers = [*self.receivers, (receiver, sender)]
        return receiver

    def disconnect(self, receiver: Any = None, sender: Any = None, **_: Any) -> bool:
        """Remove a receiver; return whether it was there."""
        left = [pair for pair in self.receivers if pair != (receiver, sender)]
        removed, self.receivers = len(left) < len(self.receivers), left
        return removed

    def send(self, sender: Any = None, **named: Any) -> None:
        """Call the receivers of this sender."""
        for receiver, wanted in self.receivers:
            if wanted is None or wanted is sender or wanted == getattr(sender, "name", None):
                try:
                    receiver(signal=self, sender=sender, **named)
                except Exception:
                    logger.exception("a receiver of signal %s failed", self.name)


class ProcessSignal(Signal):
    """A signal that each worker process sends before its first task."""

    def connect(self, receiver: Any = None, sender: Any = None, **_: Any) -> Any:
        """Add a receiver that worker processes call."""
        if receiver is not None:
            default_registry.worker_started(self.send)
        return super().connect(receiver, sender)


task_prerun = Signal("task_prerun")
task_postrun = Signal("task_postrun")
task_success = Signal("task_success")
task_failure = Signal("task_failure")
task_retry = Signal("task_retry")
worker_process_init = ProcessSignal("worker_process_init")

_ELSEWHERE = {
    "before_task_publish": "use a middleware with an enqueue method (docs/jobs/middleware.md)",
    "after_task_publish": "use a middleware with an enqueue method (docs/jobs/middleware.md)",
    "task_revoked": "see the event `cancelled` (docs/reference/events.md)",
}


def __getattr__(name: str) -> Never:
    remedy = _ELSEWHERE.get(name, "docs/interop/celery.md lists the available ones")
    raise AttributeError(f"jobq.celery has no signal {name}; {remedy}")
