"""`Task`: a function with Celery's methods for sending and retrying calls. Each task is a job of the same name."""

from __future__ import annotations

import inspect
import json
import random
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import update_wrapper
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any, NoReturn

from jobq.celery import shared, signals, states
from jobq.celery.canvas import Signature, chain, group, signature, xmap
from jobq.celery.exceptions import (
    Ignore,
    MaxRetriesExceededError,
    Reject,
    Retry,
    WorkerLostError,
    seconds_until,
)  # fmt: skip
from jobq.celery.result import AsyncResult, EagerResult
from jobq.celery.sending import given_options, job_for, queue_for
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

#: The reason of a dead message whose task failed. With other reasons, `on_failure` hasn't been called yet.
_FAILED = "a Celery task is retried only if it calls retry()"
#: The task that runs a chunk.
STARMAP = "celery.starmap"
#: How long to keep results that Celery would never delete.
_MAX_S = 366 * DAY_S
#: The checkpoint's key for the arguments from `self.retry(args=…)`.
_CHANGED = "celery-arguments"
#: Attributes checked like options of a call.
_CHECKED_ATTRIBUTES = ("priority", "exchange", "routing_key", "serializer")
#: A request's values outside a running task.
_REQUEST: dict[str, Any] = {
    "id": None, "args": (), "kwargs": {}, "retries": 0, "called_directly": True, "is_eager": False, "eta": None,
    "expires": None, "hostname": "", "delivery_info": {}, "headers": {}, "callbacks": (), "errbacks": (),
    "root_id": None, "parent_id": None, "group": None, "pending": None,
}  # fmt: skip
#: Unsupported methods of Celery's tasks, with their replacement.
_MISSING: dict[str, str] = dict.fromkeys(
    ("replace", "add_to_chord"), "add steps to the running flow: jobq.current().flow.step(…)"
)


class TaskRequest(SimpleNamespace):
    """The object `self.request`, which describes the running call.

    Attributes:
        pending: The error that `self.retry(throw=False)` returned.
    """

    def __init__(self, **facts: Any) -> None:
        super().__init__(**{**_REQUEST, **facts})


class ExceptionInfo:
    """An exception and its traceback, for `on_failure` and receivers."""

    def __init__(self, error: BaseException) -> None:
        self.type, self.exception, self.tb = type(error), error, error.__traceback__
        self.traceback = "".join(traceback.format_exception(error))

    def __str__(self) -> str:
        return self.traceback


def backoff_s(factor: int, retries: int, maximum: int, *, full_jitter: bool) -> int:
    """Return factor * 2**retries seconds, at most `maximum`. With `full_jitter`, return a random number up to this
    value.
    """
    countdown = min(maximum, factor * 2 ** min(retries, 64))
    return max(0, random.randrange(countdown + 1) if full_jitter else countdown)


class Task:
    """The base class of tasks. Class attributes are options, as in Celery. The method `run` does the work."""

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
        """Do the task's work. In a task made from a function, `run` is that function."""
        raise NotImplementedError(f"task {self.name} must define run()")

    def _leave(self, *args: Any) -> None:
        """Do nothing, unless a subclass overrides the handler, such as `on_success`."""

    before_start = on_success = on_failure = on_retry = after_return = _leave

    def __getattr__(self, name: str) -> Any:
        remedy = _MISSING.get(name, "docs/interop/celery.md lists the available ones")
        raise AttributeError(f"the task {self.name} has no {name}; {remedy}")

    # Sending.

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Send a call."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        """Send a call with options such as countdown, eta, expires, queue, task_id, link, link_error and retries."""
        args, kwargs = tuple(args or ()), dict(kwargs or {})
        if self.app.conf.task_always_eager:
            given_options(self.name, options)
            return self.apply(args, kwargs, **options)
        receipt = job_for(self.name, args, kwargs, options).enqueue(*args, **kwargs)
        return AsyncResult(receipt.mid, self.name)

    def apply(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, *,
        throw: bool | None = None, **options: Any,
    ) -> EagerResult:  # fmt: skip
        """Run a call in this process as a worker does, including retries, but without delays between retries."""
        from jobq.testing.attempts import AttemptFacts, Attempts

        args, kwargs = tuple(args or ()), dict(kwargs or {})
        mid, call = options.get("task_id") or new_mid(), {**options, "task_id": None, "once": None}
        headers = job_for(self.name, args, kwargs, call).settings.headers
        facts: AttemptFacts = {"attempt": 0, "mid": mid, "headers": headers}
        entered = shared.eager.set({"id": mid, "retries": options.get("retries") or 0})
        try:
            while True:
                facts["attempt"] = facts.get("attempt", 0) + 1
                attempts = Attempts(default_registry, facts, records=False)
                done = attempts.run(self.job, *args, **kwargs)
                if done.outcome not in ("retry", "snooze"):
                    break
        finally:
            shared.eager.reset(entered)
        if done.outcome == "done":
            return EagerResult(mid, done.value, states.SUCCESS)
        error = done.error or JobFailedError(done.reason)
        if self.app.conf.task_eager_propagates if throw is None else throw:
            raise error
        return EagerResult(mid, None, states.FAILURE, error)

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """Return a signature of a call. Results of earlier tasks are inserted before these arguments."""
        return Signature(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """Return a signature that ignores the results of earlier tasks."""
        return Signature(self, args, kwargs, immutable=True)

    def signature(self, args: Any = None, kwargs: Any = None, **options: Any) -> Signature:
        """Return a signature with options."""
        return Signature(self, args, kwargs, **options)

    subtask = signature

    def map(self, items: Any) -> xmap:
        """Return a signature that calls the task once per item."""
        return xmap(self, items)

    def starmap(self, items: Any) -> xmap:
        """Return a signature like `map`, but each item is a sequence of arguments."""
        return xmap(self, items, star=True)

    def chunks(self, items: Iterable[Any], size: int) -> group:
        """Return a group of messages, each for up to `size` items. Each item is a sequence of arguments."""
        calls, options = [list(item) for item in items], {"queue": self.job.queue}
        parts = [calls[start : start + size] for start in range(0, len(calls), size)]
        return group(
            Signature(STARMAP, (self.name, part), None, options, immutable=True) for part in parts
        )

    def __or__(self, other: Any) -> chain:
        return chain(self.s(), other)

    def AsyncResult(self, task_id: str) -> AsyncResult:
        """Return an AsyncResult for the call with this id."""
        return AsyncResult(task_id, self.name)

    # Inside a running task.

    @property
    def request(self) -> Any:
        """Return facts about the running call. Outside a call, `called_directly` is true."""
        stack = shared.requests.get()
        return stack[-1][1] if stack and stack[-1][0] is self else TaskRequest(task=self.name)

    def retry(
        self, args: Any = None, kwargs: Any = None, exc: BaseException | None = None, throw: bool = True,
        eta: Any = None, countdown: float | None = None, max_retries: int | None = None, **options: Any,
    ) -> Retry:  # fmt: skip
        """End this attempt, and run the task again after `countdown` or at `eta`.

        If no retries are left, raise `exc`. If `exc` is None, raise the exception being handled, or else
        MaxRetriesExceededError.
        """
        request = self.request
        if request.called_directly:
            _raise(exc or Retry("Task can be retried"), exc)
        for key, value in options.items():
            if value is not None and value != getattr(request, key, None):
                raise ConfigError(
                    f"retry({key}={value!r:.80}) of {self.name} can't be used, because a retry runs the same message; "
                    f"send a new call and return"
                )
        most = _or(max_retries, self.max_retries)
        if most is not None and request.retries >= most:
            spent = f"Can't retry {self.name}[{request.id}] args:{request.args}"
            _raise(exc or MaxRetriesExceededError(spent), exc)
        old = list(request.args), request.kwargs
        new = list(_or(args, request.args)), dict(_or(kwargs, request.kwargs))
        if new != old:
            self.job.check_arguments(*new)
            keep = shared.eager.get().update if request.is_eager else current().checkpoint
            keep({_CHANGED: new})
        when = eta or _or(countdown, self.default_retry_delay)
        error = Retry(exc=exc, when=when, is_eager=request.is_eager)
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
        """Call the function in this process."""
        request = TaskRequest(task=self.name, args=args, kwargs=kwargs)
        entered = shared.requests.set((*shared.requests.get(), (self, request)))
        try:
            return self.run(*args, **kwargs)
        finally:
            shared.requests.reset(entered)

    def declare(self) -> None:
        """Declare this task's job from its attributes and the app's settings."""
        conf = self.app.conf
        given_options(self.name, {key: getattr(self, key, None) for key in _CHECKED_ATTRIBUTES})
        if self._attempt is None:
            self._attempt = _function(self)
        declared: dict[str, Any] = {
            "name": self.name, "typed": self.typed, "queue": queue_for(conf, self, self.name),
            "retries": self._retries(), "retry_on": lambda error: False,
            "timeout": _or(self.soft_time_limit, conf.task_soft_time_limit),
            "hard_timeout": _or(self.time_limit, conf.task_time_limit), "result_ttl": self._result_ttl(),
        }  # fmt: skip
        if rate := _or(self.rate_limit, conf.task_default_rate_limit):
            text = str(rate)
            declared["limits"] = [RateLimit(self.name, text if "/" in text else f"{text}/s")]
        if type(self).on_failure is not Task.on_failure:
            declared["on_dead"] = self._on_dead
        self.job = job(**declared)(self._attempt)

    def _retries(self) -> int:
        if not self.bind and not self.autoretry_for and not inspect.ismethod(self.run):
            return 0
        most = self.retry_kwargs.get("max_retries", self.max_retries)
        return MAX_RETRIES if most is None else int(most)

    def _result_ttl(self) -> float | None:
        conf = self.app.conf
        ignored = conf.task_ignore_result if self.ignore_result is None else self.ignore_result
        if ignored or not (conf.result_backend or self.ignore_result is False):
            return None
        return duration_s(conf.result_expires) if conf.result_expires else _MAX_S

    def __repr__(self) -> str:
        return f"<@task: {self.name}>"


def _or(own: Any, of_app: Any) -> Any:
    return of_app if own is None else own


def _raise(error: BaseException, given: BaseException | None) -> NoReturn:
    handled = sys.exc_info()[1]
    if handled is not None and given is None:
        raise handled
    raise error


def _function(task: Task) -> Callable[..., Any]:
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
    context, eager = current(), shared.eager.get({})
    is_eager = eager.get("id") == context.mid
    kept = eager if is_eager else context.attempt > 1 and context.checkpoint_value
    if isinstance(kept, dict) and _CHANGED in kept:
        args, kwargs = kept[_CHANGED]
    sent = shared.sent_with(context.headers)
    request = TaskRequest(
        id=context.mid, task=task.name, args=args, kwargs=kwargs, retries=sent.retries + context.failures - 1,
        called_directly=False, is_eager=is_eager, eta=sent.eta or None, expires=sent.expires or None,
        hostname=context.worker, delivery_info={"routing_key": context.queue}, headers=context.headers,
        callbacks=sent.links, errbacks=sent.errbacks, root_id=context.mid,
    )  # fmt: skip
    facts = {"task_id": context.mid, "args": args, "kwargs": kwargs}
    state, value, einfo = "", None, None
    entered = shared.requests.set((*shared.requests.get(), (task, request)))
    try:
        signals.task_prerun.send(task, task=task, **facts)
        task.before_start(*facts.values())
        try:
            value = _run(task, args, kwargs)
            if request.pending is not None:
                raise request.pending
        except Ignore:
            state = states.IGNORED
            return None
        except (Outcome, Exception, JobTimeout) as error:
            state, value, einfo = _state_of(error), error, ExceptionInfo(error)
            _tell(task, request, error, facts)
            raise
        state = states.SUCCESS
        _send(request, request.callbacks, (value,), "link")
        task.on_success(value, *facts.values())
        signals.task_success.send(task, result=value)
        return value
    finally:
        if state:
            task.after_return(state, value, *facts.values(), einfo)
        signals.task_postrun.send(task, task=task, **facts, retval=value, state=state)
        shared.requests.reset(entered)


def _state_of(error: BaseException) -> str:
    runs_again = isinstance(error, Outcome) and not isinstance(error, Dead)
    return states.RETRY if runs_again else states.FAILURE


def _run(task: Task, args: Any, kwargs: Any) -> Any:
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


def _tell(task: Task, request: TaskRequest, error: BaseException, facts: Mapping[str, Any]) -> None:
    """Determine the outcome of a failed attempt, and call the task's handlers and the signals' receivers."""
    cause = getattr(error, "exc", None) or error
    einfo = ExceptionInfo(cause)
    if isinstance(error, Reject):
        dead = Decision("dead", why=f"rejected; {_FAILED}")
        current().overrule(error, Decision("retry") if error.requeue else dead)
    elif isinstance(error, Retry):
        current().overrule(error, Decision("retry", seconds_until(error.when)))
        task.on_retry(cause, *facts.values(), einfo)
        signals.task_retry.send(task, request=request, reason=cause, einfo=einfo)
    elif _state_of(error) == states.FAILURE:
        current().overrule(error, Decision("dead", why=_FAILED))
        _call_errbacks(request, error)
        task.on_failure(error, *facts.values(), einfo)
        signals.task_failure.send(
            task, **facts, exception=error, traceback=error.__traceback__, einfo=einfo
        )


def _call_errbacks(request: TaskRequest, error: BaseException) -> None:
    """Call the errbacks of a failed task.

    As in Celery, errbacks that accept (request, exc, traceback) run in this process. Other errbacks are sent with the
    task's id as an argument.
    """
    old = []
    for errback in map(signature, request.errbacks):
        task = shared.tasks.get(errback.name)
        if task is not None and not errback.immutable and _takes_three(task):
            task.run(request, error, error.__traceback__, *errback.args, **errback.kwargs)
        else:
            old.append(errback)
    _send(request, old, (request.id,), "errback")


def _send(request: TaskRequest, signatures: Sequence[Any], args: Any, what: str) -> None:
    """Send signatures with fixed message ids, so that a second run of this attempt doesn't send them again."""
    for number, made in enumerate(map(signature, signatures)):
        text = f"{request.id} {current().generation} {what} {number}"
        once = {} if made.kind else {"once": DAY_S}
        mid = blake2b(text.encode(), digest_size=10).hexdigest()
        made.apply_async(args, task_id=mid, **once)


def _takes_three(task: Task) -> bool:
    kinds = [p.kind for p in inspect.signature(task.run).parameters.values()]
    positional = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional += kinds.count(inspect.Parameter.POSITIONAL_ONLY)
    return positional > 1 or inspect.Parameter.VAR_POSITIONAL in kinds
