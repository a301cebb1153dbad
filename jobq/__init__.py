"""Background jobs on Redis or Valkey, delivered at least once.

::

    from jobq import job

    @job(queue="low", retries=5, timeout=30)
    def resize(path: str, width: int) -> str: ...

    receipt = resize.enqueue("a.jpg", width=200)

Names are imported at first use, so `import jobq` doesn't import redis, click or asyncio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jobq.client.runtime import runtime
from jobq.jobs.middleware import everywhere

__version__ = "0.1.0"

if TYPE_CHECKING:
    from jobq import config, errors, events
    from jobq.client.connection import Client, connect, default_client, set_default_client
    from jobq.errors import Dead, HoldKey, JobAborted, JobqError, JobTimeout, Outcome, Retry, Snooze
    from jobq.flows.batch import Batch
    from jobq.flows.flow import Flow
    from jobq.flows.run import FlowRun
    from jobq.jobs import middleware, retry
    from jobq.jobs.batch_job import BatchJob
    from jobq.jobs.calls import BatchedCall, Calls
    from jobq.jobs.context import Context, current
    from jobq.jobs.deaths import DeadCall
    from jobq.jobs.job import AsyncJob, Job, SyncJob
    from jobq.jobs.registry import Registry, default_registry, job, worker_started
    from jobq.jobs.results import Receipt
    from jobq.jobs.states import State
    from jobq.limits.concurrency_limit import ConcurrencyLimit
    from jobq.limits.rate_limit import RateLimit
    from jobq.queue.queue import Queue
    from jobq.queue.types import Ending, Lease, Message
    from jobq.schedules.declared import schedule

__all__ = [
    "AsyncJob", "Batch", "BatchJob", "BatchedCall", "Calls", "Client", "ConcurrencyLimit", "Context", "Dead",
    "DeadCall", "Ending", "Flow", "FlowRun",
    "HoldKey", "Job", "JobAborted", "JobTimeout", "JobqError", "Lease", "Message", "Outcome", "Queue", "RateLimit",
    "Receipt", "Registry", "Retry", "Snooze", "State", "SyncJob", "__version__",
    "config", "connect", "current", "default_client", "default_registry", "errors", "events", "job", "middleware",
    "retry", "schedule", "set_default_client", "worker_started",
]  # fmt: skip

_MODULES = {"config": "jobq.config", "errors": "jobq.errors", "events": "jobq.events"} | {
    name: f"jobq.jobs.{name}" for name in ("middleware", "retry")
}
_NAMES = {
    "jobq.client.connection": ("Client", "connect", "default_client", "set_default_client"),
    "jobq.queue.queue": ("Queue",),
    "jobq.queue.types": ("Ending", "Lease", "Message"),
    "jobq.errors": (
        "Dead",
        "HoldKey",
        "JobAborted",
        "JobTimeout",
        "JobqError",
        "Outcome",
        "Retry",
        "Snooze",
    ),
    "jobq.jobs.batch_job": ("BatchJob",),
    "jobq.jobs.calls": ("BatchedCall", "Calls"),
    "jobq.jobs.context": ("Context", "current"),
    "jobq.jobs.deaths": ("DeadCall",),
    "jobq.jobs.job": ("AsyncJob", "Job", "SyncJob"),
    "jobq.jobs.results": ("Receipt",),
    "jobq.jobs.states": ("State",),
    "jobq.flows.batch": ("Batch",),
    "jobq.flows.flow": ("Flow",),
    "jobq.flows.run": ("FlowRun",),
    "jobq.limits.rate_limit": ("RateLimit",),
    "jobq.limits.concurrency_limit": ("ConcurrencyLimit",),
    "jobq.jobs.registry": ("Registry", "default_registry", "job", "worker_started"),
    "jobq.schedules.declared": ("schedule",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # a type checker would accept every misspelt name as Any

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            value = import_module(_MODULES[name])
        elif name in _HOME:
            value = getattr(import_module(_HOME[name]), name)
        else:
            raise AttributeError(_missing(name))
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


def _missing(name: str) -> str:
    from jobq.habits import remedy

    hint = remedy("jobq", name)
    if not hint and hasattr(import_module("jobq.errors"), name):
        hint = f"import {name} from jobq.errors"
    return f"module 'jobq' has no attribute {name!r}{'; ' if hint else ''}{hint}"


def _start_embedded(settings: Any) -> str:
    from jobq.embedded.server import start_or_join

    return start_or_join(settings)


def _flows_of(client: Any) -> Any:
    from jobq.flows.in_worker import FlowsInWorker

    return FlowsInWorker(client)


# Lower layers don't import the embedded server and flows.
runtime.start_server = _start_embedded
runtime.flows_of = _flows_of

# Traces and errors reach Sentry and OpenTelemetry in every program that uses their SDKs.
everywhere.add_when_imported("sentry_sdk", "jobq.observe.sentry")
everywhere.add_when_imported("opentelemetry.sdk.trace", "jobq.observe.otel")
