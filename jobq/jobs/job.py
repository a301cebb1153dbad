"""`@job`: a function that can be called, and enqueued.

Decorating needs no server. A call is delivered at least once: it runs again if its worker died, its lease
was lost, Redis lost writes, or it asked to be retried.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from msgspec import UNSET

from jobq.errors import ConfigError
from jobq.jobs.codec import Overrides
from jobq.jobs.decision import DEFAULT_POLICY, DEFAULT_RETRIES, Decision, Rules
from jobq.jobs.enqueue import Args, queue_of, send, send_many
from jobq.jobs.options import TRAVELLING, Declaration, Options, checked_options
from jobq.jobs.receipt import Receipt
from jobq.jobs.registry import checked_job_name, default_registry, job_name
from jobq.jobs.results import ResultRefusedError
from jobq.jobs.retry import Listed
from jobq.jobs.signature import Signature

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_TO_QUEUE = ("delay", "at", "can_update", "can_requeue", "dedupe", "lock_ms", "durability")


class Job(Generic[P, R]):
    """A registered function with its options.

    R is what its result is: for an async function what it returns when awaited.
    """

    def __init__(self, function: Callable[P, Any], declared: Mapping[str, Any]) -> None:
        _check_function(function)
        update_wrapper(self, function)
        settings = checked_options(declared, declaring=True)
        self.function: Callable[..., Any] = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.name = checked_job_name(settings.pop("name", None) or job_name(function))
        self.registry = settings.pop("registry", default_registry)
        self.overrides: Overrides | None = None
        self._signature = Signature(function)
        self._settle(settings)
        self.registry.add(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function itself, here and now."""
        return self.function(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Receipt[R]:
        """Have a worker make this call, at least once.

        Raises TypeError for arguments that don't fit the function, CodecError for what JSON can't carry,
        ServerFullError or UnavailableError from the server. Tuples arrive as lists.
        """
        self._signature.check(args, kwargs)
        return send(self, [(args, kwargs)])[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Receipt[R]:
        """`enqueue` in a thread: one client serves sync and async callers, and the event loop goes on."""
        import asyncio

        return await asyncio.to_thread(self.enqueue, *args, **kwargs)

    def args(self, *args: P.args, **kwargs: P.kwargs) -> Args[P]:
        """The arguments of one call, for enqueue_many. Raises TypeError for arguments that don't fit the function."""
        self._signature.check(args, kwargs)
        return Args(self.name, args, kwargs)

    @overload
    def enqueue_many(self, arguments: Iterable[Args[P]]) -> list[Receipt[R]]: ...
    @overload
    def enqueue_many(self, arguments: Iterable[Sequence[Any]]) -> list[Receipt[R]]: ...
    def enqueue_many(
        self, arguments: Iterable[Sequence[Any]] | Iterable[Args[P]]
    ) -> list[Receipt[R]]:
        """Enqueue many calls: `resize.enqueue_many(resize.args(path, width=200) for path in paths)`.

        Plain tuples of positional arguments do too, which type checkers don't look into. One round trip per 250
        calls, each whole or not at all; an error leaves earlier ones enqueued.
        """
        return send_many(self, arguments)

    def options(self, **changes: Unpack[Options]) -> Self:
        """A copy that enqueues otherwise; the job itself stays as it is."""
        checked = checked_options(changes, declaring=False)
        if "headers" in checked:
            checked["headers"] = {**(self.settings.get("headers") or {}), **checked["headers"]}
        for one, other in (("delay", "at"), ("at", "delay")):
            if checked.get(one) is not None:
                checked.setdefault(other, None)
        changed = copy.copy(self)
        travelling = {name: checked[name] for name in TRAVELLING if name in checked}
        if travelling:
            earlier = {name: getattr(self.overrides, name, UNSET) for name in TRAVELLING}
            changed.overrides = Overrides(**{**earlier, **travelling})
        changed._settle({**self.settings, **checked})
        return changed

    def receipt(self, mid: str) -> Receipt[R]:
        """A receipt for a message enqueued earlier or elsewhere."""
        return Receipt(
            mid, "exists", job=self, queue=queue_of(self.queue, self.settings.get("client"))
        )

    def overridden(self, overrides: Overrides) -> Self:
        """A copy with what one message changes. ConfigError for a message that contradicts itself.

        The job may declare other timeouts than when the message was made. Where its own ones and those of
        the message can't both hold, those of the message do.
        """
        changes = {name: getattr(overrides, name) for name in TRAVELLING}
        changes = {name: value for name, value in changes.items() if value is not UNSET}
        settings = {**self.settings, **changes}
        if _contradict(settings):
            for one, other in (("timeout", "hard_timeout"), ("hard_timeout", "timeout")):
                if one in changes and other not in changes:
                    settings[other] = None
        changed = copy.copy(self)
        changed._settle(settings)
        return changed

    def decide(self, failures: int, error: BaseException) -> Decision:
        """What becomes of an attempt that raised `error`; `failures` counts it."""
        if isinstance(error, ResultRefusedError):
            return Decision("dead", why="it ran, but its result can't be stored")
        return self.rules.decide(failures, error)

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """TypeError unless the function takes these."""
        self._signature.check(args, kwargs)

    def _settle(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.queue: str = settings.get("queue", "default")
        policy = settings.get("retry", DEFAULT_POLICY)
        default = len(policy.waits) if isinstance(policy, Listed) else DEFAULT_RETRIES
        self.retries: int = settings.get("retries", default)
        self.rules = Rules(self.retries, policy, settings.get("retry_on"), settings.get("dead_on"))
        self.timeout: float | None = settings.get("timeout")
        self.hard_timeout: float | None = settings.get("hard_timeout")
        self.result_ttl: float | None = settings.get("result_ttl")
        self.stores_result = self.result_ttl is not None
        # The server keeps nothing for less than a millisecond.
        self.result_ttl_ms = max(1, round(self.result_ttl * 1000)) if self.result_ttl else 0
        self.queue_options = {
            name: settings[name] for name in _TO_QUEUE if settings.get(name) is not None
        }
        if self.timeout and self.hard_timeout and _contradict(settings):
            raise ConfigError(
                f"hard_timeout={self.hard_timeout:g} ends {self.name} before timeout={self.timeout:g} can; "
                "make it longer"
            )

    def __repr__(self) -> str:
        return f"<Job {self.name}>"


class SyncJob(Job[P, R]):
    """A job whose function is a plain `def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, here and now."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]


class AsyncJob(Job[P, R]):
    """A job whose function is an `async def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function itself; await what it returns."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]


class Decorator:
    """What `job(...)` with options gives: put it on a function."""

    def __init__(self, declared: Declaration) -> None:
        self._declared = declared

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> AsyncJob[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, T], /) -> SyncJob[P, T]: ...
    def __call__(self, function: Callable[..., Any], /) -> Job[..., Any]:
        """Make the job."""
        kind = AsyncJob if inspect.iscoroutinefunction(function) else SyncJob
        return kind(function, self._declared)


@overload
def job(function: Callable[P, Coroutine[Any, Any, T]], /) -> AsyncJob[P, T]: ...  # type: ignore[overload-overlap]
@overload
def job(function: Callable[P, T], /) -> SyncJob[P, T]: ...
@overload
def job(**declared: Unpack[Declaration]) -> Decorator: ...
def job(function: Callable[..., Any] | None = None, /, **declared: Any) -> Any:
    """Make a function a job: `@job`, `@job(queue="low", retries=3)`, or `job(queue="low")(function)`."""
    decorator = Decorator(declared)  # type: ignore[arg-type]
    return decorator if function is None else decorator(function)


def _contradict(settings: Mapping[str, Any]) -> bool:
    """Whether the hard timeout ends the job before its timeout can."""
    timeout, hard_timeout = settings.get("timeout"), settings.get("hard_timeout")
    return bool(timeout and hard_timeout and hard_timeout <= timeout)


def _check_function(function: Any) -> None:
    if (
        not callable(function)
        or isinstance(function, type | Job)
        or not hasattr(function, "__qualname__")
    ):
        raise ConfigError(f"@job on {function!r}: put it on a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(
            f"@job on the generator {function!r}: nobody would draw from it; return a list"
        )
