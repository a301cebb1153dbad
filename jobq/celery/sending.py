"""Convert the options of `apply_async` to a job's options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, cast
from zoneinfo import ZoneInfo

from jobq.celery import shared
from jobq.celery.exceptions import seconds_until
from jobq.errors import ConfigError
from jobq.jobs.job import Job
from jobq.jobs.registry import stand_in

#: Options of apply_async without effect, because jobq doesn't need them or always behaves in the same way.
_WITHOUT_EFFECT = frozenset(
    ("acks_late", "add_to_parent", "compression", "connection", "producer", "retry", "retry_policy", "shadow")
)  # fmt: skip
_REFUSED = {
    "priority": "use a queue for each priority, and `jobq worker --queues high,low --strict`",
    "exchange": "name the queue: queue=…", "routing_key": "name the queue: queue=…",
    "group_id": "leave it out: jobq generates the ids", "parent_id": "leave it out: jobq doesn't record parents",
    "root_id": "leave it out: jobq doesn't record parents",
}  # fmt: skip


def job_for(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> Job[..., Any]:
    """Return a task's job with the options of this call."""
    task = shared.tasks.get(name)
    job = task.job if task is not None else stand_in(name)
    given = given_options(name, options)
    app = task.app if task is not None else shared.apps[-1]
    changes: dict[str, Any] = {"headers": _headers(given)}
    changes |= {option: given[key] for key, option in _AS_OPTIONS.items() if key in given}
    if isinstance(changes.get("at"), datetime):
        changes["at"] = aware(changes["at"], app.conf.timezone)
    expires = given.get("expires", getattr(task, "expires", None))
    if expires is not None:
        # Celery measures the expiry from the call, jobq from the start time.
        start = seconds_until(changes.get("at", changes.get("delay")))
        changes["expires_in"] = max(0.001, seconds_until(expires) - start)
    if "queue" not in given:
        queue = queue_for(app.conf, task, name, args, kwargs)
        if queue != job.queue:
            changes["queue"] = queue
    if given.get("ignore_result"):
        changes["result_ttl"] = None
    return job.options(**cast("Any", changes))


_AS_OPTIONS = {
    "countdown": "delay", "eta": "at", "queue": "queue", "task_id": "mid", "time_limit": "hard_timeout",
    "soft_time_limit": "timeout", "once": "until",
}  # fmt: skip
_KNOWN = {
    *_AS_OPTIONS, *_WITHOUT_EFFECT, "expires", "headers", "ignore_result", "link", "link_error", "retries", "serializer"
}  # fmt: skip


def given_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that aren't None. Raise ConfigError if jobq has no equivalent for an option."""
    given = {key: value for key, value in options.items() if value is not None}
    for key, value in given.items():
        if key in _REFUSED:
            raise ConfigError(f"{key}={value!r:.80} of {name} can't be used; {_REFUSED[key]}")
        if key not in _KNOWN:
            raise ConfigError(f"apply_async of {name} has no option {key}={value!r:.80}")
        if key == "serializer" and value != "json":
            raise ConfigError(f"serializer={value!r} of {name} can't be used; arguments are JSON")
    return given


def queue_for(
    conf: Any, task: Any, name: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> str:  # fmt: skip
    """Return a call's queue, as set by the task, by task_routes or by the default."""
    if task is not None and task.queue:
        return str(task.queue)
    routes = conf.task_routes or ()
    for route in routes if isinstance(routes, list | tuple) else (routes,):
        answer = _routed(route, name, args, kwargs or {}, task)
        if isinstance(answer, str):
            return answer
        if answer:
            given_options(name, answer)
            return str(answer["queue"])
    return str(conf.task_default_queue)


def _routed(route: Any, name: str, args: Any, kwargs: Any, task: Any) -> Any:
    if isinstance(route, Mapping):
        pairs = route.items()
    elif callable(route):
        return route(name, args, kwargs, {}, task=task)
    else:
        pairs = route
    for pattern, answer in pairs:
        if pattern == name or (isinstance(pattern, str) and fnmatchcase(name, pattern)):
            return answer
        if isinstance(pattern, re.Pattern) and pattern.match(name):
            return answer
    return None


def aware(moment: datetime, zone: str | None) -> datetime:
    """Return an aware datetime. The default time zone is `zone`, or UTC if `zone` is None."""
    return moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone) if zone else UTC)


def _headers(given: Mapping[str, Any]) -> dict[str, str]:
    sent = shared.SentWith(
        given.get("retries", 0), as_list(given.get("link")), as_list(given.get("link_error")),
        *(str(given.get(key, "")) for key in ("eta", "expires")),
    )  # fmt: skip
    return {**given.get("headers", {}), **shared.header_of(sent)}


def as_list(signatures: Any) -> list[Any]:
    """Convert a single signature, a list, a tuple or None to a list of signatures."""
    if not signatures:
        return []
    return list(signatures) if isinstance(signatures, list | tuple) else [signatures]
