"""`Task`: a function with Celery's ways to send, retry and follow it. Each task is a job of the same name."""

from __future__ import annotations

import inspect
import json
import random
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from hashlib import blake2b
from typing import Any, NoReturn

from jobq.celery import shared, signals, states
from jobq.celery.canvas import Signature, chain, signature, xmap
from jobq.celery.exceptions import (
    Ignore,
    MaxRetriesExceededError,
    Reject,
    Retry,
    WorkerLostError,
    seconds_until,
)  # fmt: skip
from jobq.celery.result import AsyncResult, EagerResult
from jobq.celery.sending import job_for, queue_for, refuse
from jobq.config import duration_s
from jobq.errors import ConfigError, Dead, JobFailedError, JobTimeout, Outcome
from jobq.jobs.context import current
from jobq.jobs.deaths import DeadCall
from jobq.jobs.job import Job
from jobq.jobs.registry import default_registry, job
from jobq.jobs.retry import MAX_RETRIES, Decision
from jobq.limits.rate_limit import RateLimit
from jobq.queue.mids import new_mid
from jobq.queue.types import DAY_S

#: Why a message is dead whose task has failed. What else makes it dead hasn't called `on_failure`.
_FAILED = "a Celery task is retried only if it asks for it"
#: How long results are kept that Celery would never delete.
_LONGEST_S = 366 * DAY_S
#: Attributes that say what jobq does always.
_REFUSED_ATTRIBUTES = ("priority", "exchange", "routing_key")


@dataclass
class TaskRequest:
    """Facts about the running call, for `self.request`."""

    id: str | None = None
    task: str = ""
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 0
    called_directly: bool = True
    is_eager: bool = False
    eta: str | None = None
    expires: str | None = None
    hostname: str = ""
    delivery_info: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    callbacks: Sequence[Any] = ()
    errbacks: Sequence[Any] = ()
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    #: What `self.retry(throw=False)` left to be raised.
    pending: Retry | None = None


class ExceptionInfo:
    """An exception and its traceback, for `on_failure` and receivers."""

    def __init__(self, error: BaseException) -> None:
        self.type, self.exception, self.tb = type(error), error, error.__traceback__
        self.traceback = "".join(traceback.format_exception(error))

    def __str__(self) -> str:
        return self.traceback


def backoff_s(factor: int, retries: int, maximum: int, *, full_jitter: bool) -> int:
    """The seconds before a retry, as Celery counts them: factor * 2**retries, at most `maximum`."""
    countdown = min(maximum, factor * 2 ** min(retries, 64))
    return max(0, random.randrange(countdown + 1) if full_jitter else countdown)


class Task:
    """The base class of tasks. Attributes are options, as in Celery; `run` is the function."""

    MaxRetriesExceededError = MaxRetriesExceededError
    app: Any = None
    name: str = ""
    bind = False
    typed = False
    queue: str | None = None
    max_retries: int | None = 3
    default_retry_delay: float = 180
    autoretry_for: Sequence[type[BaseException]] = ()
    dont_autoretry_for: Sequence[type[BaseException]] = ()
    retry_kwargs: Mapping[str, Any] = {}
    retry_backoff: bool | float = False
    retry_backoff_max = 600
    retry_jitter = True
    ignore_result: bool | None = None
    rate_limit: str | None = None
    time_limit: float | None = None
    soft_time_limit: float | None = None
    expires: Any = None
    serializer: str | None = None
    job: Job[..., Any]
    _attempt: Callable[..., Any] | None = None
    _on_dead: Callable[[DeadCall], None]

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Do the work. Tasks of functions have theirs."""
        raise NotImplementedError(f"task {self.name} has no run")

    # What subclasses may have.

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Called before each attempt."""

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Called when the task has returned."""

    def on_failure(
        self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Called when the task has failed, and when its message is dead because its process crashed."""

    def on_retry(
        self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Called when the task will be retried."""

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Called after each attempt."""

    # To send it.

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Send a call."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        """Send a call with options: countdown, eta, expires, queue, task_id, link, link_error, retries and others."""
        args, kwargs = tuple(args or ()), dict(kwargs or {})
        if self.app.conf.task_always_eager:
            refuse(self.name, {key: value for key, value in options.items() if value is not None})
            return self.apply(args, kwargs, **options)
        receipt = job_for(self.name, args, kwargs, options).enqueue(*args, **kwargs)
        return AsyncResult(receipt.mid, self.name)

    def apply(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, *,
        throw: bool | None = None, **options: Any,
    ) -> EagerResult:  # fmt: skip
        """Run a call here and now, as a worker runs it, with its retries and without waiting for them."""
        from jobq.testing.attempts import AttemptFacts, Attempts

        args, kwargs, mid = (
            tuple(args or ()), dict(kwargs or {}), options.get("task_id") or new_mid(),
        )  # fmt: skip
        token, attempt = shared.eager.set({"id": mid, "retries": options.get("retries") or 0}), 0
        headers = job_for(
            self.name, args, kwargs, {**options, "task_id": None, "once": None}
        ).settings.headers
        try:
            while True:
                attempt += 1
                facts: AttemptFacts = {"attempt": attempt, "mid": mid, "headers": headers}
                done = Attempts(default_registry, facts, records=False).run(
                    self.job, *args, **kwargs
                )
                if done.outcome not in ("retry", "snooze"):
                    break
        finally:
            shared.eager.reset(token)
        if done.outcome == "done":
            return EagerResult(mid, done.value, states.SUCCESS)
        error = done.error or JobFailedError(done.reason)
        if self.app.conf.task_eager_propagates if throw is None else throw:
            raise error
        return EagerResult(mid, None, states.FAILURE, error)

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """A signature of a call; results of earlier tasks are put before its arguments."""
        return Signature(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """A signature that takes no results."""
        return Signature(self, args, kwargs, immutable=True)

    def signature(self, args: Any = None, kwargs: Any = None, **options: Any) -> Signature:
        """A signature with options."""
        return Signature(self, args, kwargs, **options)

    subtask = signature

    def map(self, items: Any) -> xmap:
        """A call for each item."""
        return xmap(self, items)

    def starmap(self, items: Any) -> xmap:
        """A call for each item, which has all its arguments."""
        return xmap(self, items, star=True)

    def __or__(self, other: Any) -> chain:
        return chain(self.s(), other)

    def AsyncResult(self, task_id: str) -> AsyncResult:
        """The result of an earlier call."""
        return AsyncResult(task_id, self.name)

    # Within it.

    @property
    def request(self) -> Any:
        """The running call of this task; a request that is `called_directly` outside of one."""
        stack = shared.requests.get()
        return stack[-1][1] if stack and stack[-1][0] is self else TaskRequest(task=self.name)

    def retry(
        self, args: Any = None, kwargs: Any = None, exc: BaseException | None = None, throw: bool = True,
        eta: Any = None, countdown: float | None = None, max_retries: int | None = None, **options: Any,
    ) -> Retry:  # fmt: skip
        """End this attempt, and run the task again after `countdown`. What ran out of retries raises `exc`."""
        request = self.request
        if request.called_directly:
            _raise(exc or Retry("Task can be retried"), exc)
        changed = {"args": args, "kwargs": kwargs, **options}
        for key, value in changed.items():
            if value is not None and value != getattr(request, key, None):
                raise ConfigError(
                    f"retry({key}={value!r:.80}) of {self.name} can't be used: a retry is the same message; send a new "
                    "call and return"
                )
        most = self.max_retries if max_retries is None else max_retries
        if most is not None and request.retries >= most:
            _raise(
                exc
                or MaxRetriesExceededError(
                    f"Can't retry {self.name}[{request.id}] args:{request.args}"
                ),
                exc,
            )
        wait = countdown if countdown is not None else self.default_retry_delay
        error = Retry(exc=exc, when=eta or wait, is_eager=request.is_eager)
        if throw:
            raise error
        request.pending = error
        return error

    def update_state(
        self, task_id: str | None = None, state: str | None = None, meta: Any = None
    ) -> None:
        """Report a state and its `meta`, which AsyncResult shows while the task runs."""
        meta = meta if meta is not None else {}
        total = meta.get("total") if isinstance(meta, dict) else None
        done = meta.get("current", 0) if total else 0
        current().progress(done / total if total else 0.0, note=json.dumps([state, meta]))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function here and now."""
        entered = shared.requests.set(
            (*shared.requests.get(), (self, TaskRequest(task=self.name, args=args, kwargs=kwargs)))
        )
        try:
            return self.run(*args, **kwargs)
        finally:
            shared.requests.reset(entered)

    def declare(self) -> None:
        """Make the job of this task, from its attributes and the settings of its app."""
        conf = self.app.conf
        refuse(
            self.name,
            {
                key: getattr(self, key)
                for key in _REFUSED_ATTRIBUTES
                if getattr(self, key, None) is not None
            },
        )
        if (self.serializer or "json") != "json":
            refuse(self.name, {"serializer": self.serializer})
        if self._attempt is None:
            self._attempt = _function(self)
        declared: dict[str, Any] = {
            "name": self.name, "typed": self.typed, "queue": queue_for(conf, self, self.name),
            "retries": self._retries(), "retry_on": lambda error: False,
            "timeout": _or(self.soft_time_limit, conf.task_soft_time_limit),
            "hard_timeout": _or(self.time_limit, conf.task_time_limit), "result_ttl": self._result_ttl(),
        }  # fmt: skip
        if rate := _or(self.rate_limit, conf.task_default_rate_limit):
            declared["limits"] = [
                RateLimit(self.name, str(rate) if "/" in str(rate) else f"{rate}/s")
            ]
        if type(self).on_failure is not Task.on_failure:
            declared["on_dead"] = self._on_dead
        self.job = job(**declared)(self._attempt)

    def _retries(self) -> int:
        if not self.bind and not self.autoretry_for and inspect.ismethod(self.run):
            return MAX_RETRIES if self.max_retries is None else self.max_retries
        if not self.bind and not self.autoretry_for:
            return 0
        most = self.retry_kwargs.get("max_retries", self.max_retries)
        return MAX_RETRIES if most is None else int(most)

    def _result_ttl(self) -> float | None:
        conf = self.app.conf
        ignored = conf.task_ignore_result if self.ignore_result is None else self.ignore_result
        if ignored or not (conf.result_backend or self.ignore_result is False):
            return None
        return duration_s(conf.result_expires) if conf.result_expires else _LONGEST_S

    def __repr__(self) -> str:
        return f"<@task: {self.name}>"


def _or(own: Any, of_app: Any) -> Any:
    return of_app if own is None else own


def _raise(error: BaseException, given: BaseException | None) -> NoReturn:
    """Raise an error; without one of the caller, the exception that is being handled."""
    handled = sys.exc_info()[1]
    if handled is not None and given is None:
        raise handled
    raise error


def _function(task: Task) -> Callable[..., Any]:
    """What a worker calls: one attempt of the task."""

    def attempt(*args: Any, **kwargs: Any) -> Any:
        return _attempt(task, args, kwargs)

    def on_dead(dead: DeadCall) -> None:
        first = dead.reason.partition("\n")[0]
        if _FAILED not in first:
            error = WorkerLostError(first)
            task.on_failure(error, dead.mid, dead.args, dead.kwargs, ExceptionInfo(error))

    update_wrapper(attempt, task.run)
    attempt.__name__ = attempt.__qualname__ = task.name.rpartition(".")[2]
    attempt.__signature__ = inspect.signature(task.run)  # type: ignore[attr-defined]
    on_dead.__module__ = attempt.__module__
    task._on_dead = on_dead
    return attempt


def _attempt(task: Task, args: Any, kwargs: Any) -> Any:
    context, eager = current(), shared.eager.get()
    sent = shared.sent_with(context.headers)
    is_eager = eager is not None and eager["id"] == context.mid
    request = TaskRequest(
        context.mid, task.name, args, kwargs, sent.retries + context.failures - 1, called_directly=False,
        is_eager=is_eager, eta=sent.eta or None, expires=sent.expires or None, hostname=context.worker,
        delivery_info={"routing_key": context.queue}, headers=context.headers, callbacks=sent.links,
        errbacks=sent.errbacks, root_id=context.mid,
    )  # fmt: skip
    end = _End(task, request)
    entered = shared.requests.set((*shared.requests.get(), (task, request)))
    try:
        signals.task_prerun.send(task, task_id=request.id, task=task, args=args, kwargs=kwargs)
        task.before_start(context.mid, args, kwargs)
        try:
            value = _run(task, args, kwargs)
            if request.pending is not None:
                raise request.pending
        except Ignore:
            end.status = states.IGNORED
            return None
        except Retry as error:
            end.retried(error)
            raise
        except Reject as error:
            end.status = states.FAILURE
            decision = (
                Decision("retry") if error.requeue else Decision("dead", why=f"rejected; {_FAILED}")
            )
            context.overrule(error, decision)
            raise
        except (Outcome, Exception, JobTimeout) as error:
            if isinstance(error, Outcome) and not isinstance(error, Dead):
                end.status = states.RETRY
                raise
            end.failed(error)
            raise
        end.succeeded(value)
        return value
    finally:
        end.over()
        shared.requests.reset(entered)


def _run(task: Task, args: Any, kwargs: Any) -> Any:
    """Run the function; what autoretry_for names becomes a retry."""
    function = task.run if type(task).__call__ is Task.__call__ else task
    try:
        return function(*args, **kwargs)
    except BaseException as error:
        never = (Ignore, Retry, *task.dont_autoretry_for)
        if isinstance(error, never) or not isinstance(error, tuple(task.autoretry_for)):
            raise
        retry_kwargs = dict(task.retry_kwargs)
        if task.retry_backoff:
            retry_kwargs["countdown"] = backoff_s(
                int(max(1.0, float(task.retry_backoff))), task.request.retries, int(task.retry_backoff_max),
                full_jitter=task.retry_jitter,
            )  # fmt: skip
        raise task.retry(exc=error, **retry_kwargs) from error


class _End:
    """What follows from the end of one attempt, in Celery's order."""

    def __init__(self, task: Task, request: TaskRequest) -> None:
        self.task, self.request = task, request
        self.status, self.value = "", None
        self.einfo: ExceptionInfo | None = None

    def succeeded(self, value: Any) -> None:
        """Send the callbacks, and tell the task and the receivers."""
        task, request = self.task, self.request
        self.status, self.value = states.SUCCESS, value
        self._send(request.callbacks, (value,), "link")
        task.on_success(value, request.id or "", request.args, request.kwargs)
        signals.task_success.send(task, result=value)

    def retried(self, error: Retry) -> None:
        """Tell the task and the receivers, and retry the message."""
        task, request = self.task, self.request
        self.status, self.value = states.RETRY, error  # type: ignore[assignment]
        cause = error.exc or error
        self.einfo = ExceptionInfo(cause)
        current().overrule(error, Decision("retry", seconds_until(error.when)))
        task.on_retry(cause, request.id or "", request.args, request.kwargs, self.einfo)
        signals.task_retry.send(task, request=request, reason=cause, einfo=self.einfo)

    def failed(self, error: BaseException) -> None:
        """Tell the task, its errbacks and the receivers; the message is dead."""
        task, request = self.task, self.request
        self.status, self.value = states.FAILURE, error  # type: ignore[assignment]
        self.einfo = ExceptionInfo(error)
        current().overrule(error, Decision("dead", why=_FAILED))
        self._call_errbacks(error)
        task.on_failure(error, request.id or "", request.args, request.kwargs, self.einfo)
        signals.task_failure.send(
            task, task_id=request.id, exception=error, args=request.args, kwargs=request.kwargs,
            traceback=error.__traceback__, einfo=self.einfo,
        )  # fmt: skip

    def over(self) -> None:
        """Tell that the attempt is over."""
        task, request = self.task, self.request
        if self.status:
            task.after_return(
                self.status, self.value, request.id or "", request.args, request.kwargs, self.einfo
            )
        signals.task_postrun.send(
            task, task_id=request.id, task=task, args=request.args, kwargs=request.kwargs, retval=self.value,
            state=self.status,
        )  # fmt: skip

    def _call_errbacks(self, error: BaseException) -> None:
        """Call errbacks that take (request, exc, traceback) here, as Celery does, and send the id to others."""
        old = []
        for errback in map(signature, self.request.errbacks):
            task = shared.tasks.get(errback.name)
            if task is not None and not errback.immutable and _takes_three(task):
                task.run(self.request, error, error.__traceback__, *errback.args, **errback.kwargs)
            else:
                old.append(errback)
        self._send(old, (self.request.id,), "errback")

    def _send(self, signatures: Sequence[Any], args: tuple[Any, ...], what: str) -> None:
        """Send signatures under ids of their own, so that a second run of this attempt sends nothing twice."""
        for number, made in enumerate(map(signature, signatures)):
            text = f"{self.request.id} {current().generation} {what} {number}"
            once = {} if made.kind else {"once": DAY_S}
            made.apply_async(
                args, task_id=blake2b(text.encode(), digest_size=10).hexdigest(), **once
            )


def _takes_three(task: Task) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(inspect.signature(task.run).parameters.values())
    return sum(p.kind in kinds for p in parameters) > 1 or any(
        p.kind is p.VAR_POSITIONAL for p in parameters
    )
