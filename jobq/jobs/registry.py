"""`@job`, and the registry that it adds jobs to. A message can only run a registered job."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, ParamSpec, TypeVar, Unpack, overload
from weakref import WeakSet

from jobq.durations import Duration
from jobq.errors import ConfigError, JobAlreadyRegisteredError, JobNotFoundError
from jobq.jobs.admission import JobLimit
from jobq.jobs.batch_job import BatchJob
from jobq.jobs.calls import Calls
from jobq.jobs.deaths import DeadCall
from jobq.jobs.functions import awaited, is_same, place
from jobq.jobs.job import AsyncJob, Job, SyncJob
from jobq.jobs.middleware import Middlewares, everywhere
from jobq.jobs.options import JobSettings, Options, checked_job_name, checked_options
from jobq.jobs.retry import ErrorFilter, Policy

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[[], Any])
#: Kinds of decorators: the function gets one call, or many together.
Single = Literal["single"]
Together = Literal["together"]
Kind = TypeVar("Kind")


class Registry:
    """Jobs by name, and middleware for these jobs only.

    `around` is the outer middleware. By default, it is the middleware of the process. `Registry(Middlewares())` has no
    outer middleware.
    """

    #: The registries of this process.
    alive: ClassVar[WeakSet[Registry]] = WeakSet()

    def __init__(self, around: Middlewares = everywhere) -> None:
        Registry.alive.add(self)
        self._jobs: dict[str, Job[..., Any]] = {}
        self.middleware = Middlewares(around)
        #: Queues that workers serve in addition to the queues of jobs.
        self.queues: set[str] = set()
        #: Functions that each process of a worker calls before its first job.
        self.starts: list[Callable[[], Any]] = []
        # Jobs by their names and aliases.
        self._by_name: dict[str, Job[..., Any]] = {}
        self.find = self._by_name.get

    def add(self, job: Job[..., Any]) -> None:
        """Register a job. Registering the same function again, as after a reload, replaces the earlier job."""
        known = self._by_name.get(job.name)
        if known is not None and known.name != job.name:
            raise JobAlreadyRegisteredError(
                f"the name of job {job.name!r}, defined by {place(job.function)}, is an alias of job {known.name!r}: "
                f"remove "
                f"this alias of {known.name!r}, or rename one of the jobs"
            )
        if known is not None and not is_same(known.function, job.function):
            raise JobAlreadyRegisteredError(
                f"job {job.name!r} is already registered by {place(known.function)}; use another "
                f"name for the job of {place(job.function)}: @job(name=…), or functools.wraps in its decorator"
            )
        for limit in job.settings.limits:
            self._check_limit(job, limit)
        self._check_partitions(job)
        self._check_aliases(job)
        if known is not None:
            for alias in known.settings.aliases:
                del self._by_name[alias]
        self._jobs[job.name] = job
        self._by_name |= dict.fromkeys((job.name, *job.settings.aliases), job)

    def _check_aliases(self, job: Job[..., Any]) -> None:
        for alias in job.settings.aliases:
            other = self._by_name.get(alias)
            if alias == job.name or (other is not None and other.name != job.name):
                what = (
                    "is its own name"
                    if other is None or alias == job.name
                    else (f"is job {other.name!r}, by {place(other.function)}")
                )
                raise JobAlreadyRegisteredError(
                    f"job {job.name!r} can't have the alias {alias!r}, which {what}; an alias must be the name of a "
                    f"removed job"
                )

    def _check_limit(self, job: Job[..., Any], limit: JobLimit) -> None:
        """Raise ConfigError if another job declares a different limit with this name; they would share a count."""
        for other in self._jobs.values():
            for known in other.settings.limits if other.name != job.name else ():
                if known.name == limit.name and (type(known), known.declaration) != (
                    type(limit),
                    limit.declaration,
                ):
                    raise ConfigError(
                        f"job {job.name} declares {limit!r}, but job {other.name} declares {known!r}; use one object "
                        "for both, or rename one of them"
                    )

    def _check_partitions(self, job: Job[..., Any]) -> None:
        """Raise ConfigError if another job declares a different number of partitions for the same queue."""
        wanted = job.settings.partitions
        for other in self._jobs.values() if wanted is not None else ():
            known = other.settings.partitions
            if other.name != job.name and other.queue == job.queue and known not in (None, wanted):
                raise ConfigError(
                    f"job {job.name} declares partitions={wanted} of queue {job.queue!r}, but job {other.name} "
                    f"declares partitions={known}; use one number"
                )

    def partitions(self) -> dict[str, int]:
        """Return the declared number of partitions by queue. Queues without a declaration are left out."""
        declared = ((job.queue, job.settings.partitions) for job in self)
        return {queue: count for queue, count in declared if count is not None}

    def worker_started(self, function: F, /) -> F:
        """Add a function that each process of a worker calls before its first job; see `jobq.worker_started`."""
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise ConfigError(
                f"@worker_started on {function!r}: use a function that is not async; an async job can open resources "
                "on its event loop at first use"
            )
        known = [start for start in self.starts if not is_same(start, function)]
        self.starts = [*known, function]
        return function

    def get(self, name: str) -> Job[..., Any]:
        """Return the job of this name; raise JobNotFoundError if there is none."""
        job = self._by_name.get(name)
        if job is None:
            raise JobNotFoundError(f"no job {name!r:.200} here; is its module in --import?")
        return job

    def names(self) -> list[str]:
        """Return the names of all jobs, sorted."""
        return sorted(self._jobs)

    def known_names(self) -> list[str]:
        """Return the names and aliases of all jobs, sorted."""
        return sorted(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Job[..., Any]]:
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)


#: The registry that `@job` uses unless another registry is passed.
default_registry = Registry()


def worker_started(function: F, /) -> F:
    """Register a function that each process of a worker calls, after its fork and before its first job.

    Open connections and clients there, because processes must not share them. An exception ends the worker with exit
    code 11. Tests can call the function itself.
    """
    return default_registry.worker_started(function)


class Declaration(Options, total=False):
    """Options for `@job(...)`: all Options, and options that belong to the job rather than to one message.

    Attributes:
        name: The name in messages; the function's module and name by default.
        aliases: Former names of the job. Workers also run messages with these names.
        retry: How long to wait before each retry: a policy from `jobq.retry`, or a function of (failures, error).
        retry_on: Exception classes, or a function of the error. Any other error dead-letters the message immediately.
        dead_on: Exception classes, or a function of the error. Such an error dead-letters the message immediately.
        on_dead: A job or a function that a worker calls with a DeadCall once a message of this job is dead.
        registry: The registry to which the job is added; by default the program's registry.
        limits: Limits checked before the job starts. While a limit rejects the job, its message waits, and no attempt
            is counted.
        trace: "parent" runs attempts in the enqueuer's trace; "link" gives each attempt a trace that links to it.
        redact: Names of arguments, and of keys in them, whose values the dashboard hides. True hides all arguments.
        keep_logs: How long to keep the last 64 KiB of each attempt's log; None doesn't keep it.
        typed: Whether arguments and the result are decoded as annotated.
        partitions: Number of partitions of the job's queue, from 1 to 256, if the first enqueue or worker creates it.
            An existing queue keeps its number: `jobq partitions` changes it.
    """

    name: str
    aliases: Sequence[str]
    retry: Policy
    retry_on: ErrorFilter | list[type[BaseException]] | None
    dead_on: ErrorFilter | list[type[BaseException]] | None
    on_dead: Callable[[DeadCall], Any] | None
    registry: Registry
    limits: Sequence[JobLimit]
    trace: Literal["parent", "link"]
    redact: bool | str | Sequence[str]
    keep_logs: Duration | None
    typed: bool
    partitions: int


class Lingering(Declaration, total=False):
    """Declares `linger` as optional; see BatchDeclaration."""

    linger: Duration | None


class BatchDeclaration(Lingering):
    """Options for a job whose function gets many calls together.

    Attributes:
        batch: Maximum number of calls that the function gets together, up to 200.
        linger: If fewer calls are waiting, wait this long for more; at most a minute.
    """

    batch: int


class Decorator(Generic[Kind]):
    """The decorator returned by `job(...)` with options.

    One generic class serves both kinds of jobs, so that type checkers can infer the decorator of `job(**options)`.
    """

    def __init__(self, declared: Declaration) -> None:
        self._declared = declared

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self: Decorator[Single], function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> AsyncJob[P, T]: ...
    @overload
    def __call__(self: Decorator[Single], function: Callable[P, T], /) -> SyncJob[P, T]: ...
    @overload
    def __call__(
        self: Decorator[Together], function: Callable[[Calls[P]], Coroutine[Any, Any, None]], /
    ) -> BatchJob[P, Any]: ...
    @overload
    def __call__(
        self: Decorator[Together],
        function: Callable[[Calls[P]], Coroutine[Any, Any, Sequence[T]]],
        /,
    ) -> BatchJob[P, T]: ...
    @overload
    def __call__(
        self: Decorator[Together], function: Callable[[Calls[P]], None], /
    ) -> BatchJob[P, Any]: ...
    @overload
    def __call__(
        self: Decorator[Together], function: Callable[[Calls[P]], Sequence[T]], /
    ) -> BatchJob[P, T]: ...
    def __call__(self, function: Callable[..., Any], /) -> Job[..., Any]:
        """Make a job of the function, and register it."""
        _check_function(function)
        function = awaited(function)
        declared = checked_options(self._declared, declaring=True)
        name = checked_job_name(declared.pop("name", None) or job_name(function))
        registry: Registry = declared.pop("registry", default_registry)
        on_dead = declared.get("on_dead")
        if on_dead is not None and not isinstance(on_dead, Job):
            declared["on_dead"] = job(name=f"{name}.on_dead", registry=registry)(on_dead)
        kind = _kind(name, function, declared)
        made: Job[..., Any] = kind(function, name, JobSettings(**declared), registry.middleware)
        registry.add(made)
        return made


@overload
def job(function: Callable[P, Coroutine[Any, Any, T]], /) -> AsyncJob[P, T]: ...  # type: ignore[overload-overlap]
@overload
def job(function: Callable[P, T], /) -> SyncJob[P, T]: ...
@overload
def job(**declared: Unpack[BatchDeclaration]) -> Decorator[Together]: ...
@overload
def job(**declared: Unpack[Declaration]) -> Decorator[Single]: ...
def job(function: Callable[..., Any] | None = None, /, **declared: Any) -> Any:
    """Make a function a job: `@job`, `@job(queue="low", retries=3)`, or `job(queue="low")(function)`."""
    decorator: Decorator[Any] = Decorator(declared)  # type: ignore[arg-type]
    return decorator if function is None else decorator(function)


def _kind(
    name: str, function: Callable[..., Any], declared: Mapping[str, Any]
) -> type[Job[..., Any]]:
    if "batch" in declared:
        return BatchJob
    if declared.get("linger") is not None:
        raise ConfigError(
            f"linger={declared['linger']:g} of {name} applies only to batch jobs; also pass batch=…"
        )
    return AsyncJob if inspect.iscoroutinefunction(function) else SyncJob


def stand_in(name: str) -> Job[..., Any]:
    """Return the job with this name. If it isn't registered, return a substitute that takes any arguments."""
    if name in default_registry:
        return default_registry.get(name)
    return job(name=name, registry=Registry())(_anything)


def _anything(*args: Any, **kwargs: Any) -> None:
    """The function of a job whose code this process doesn't have."""


def job_name(function: Callable[..., Any]) -> str:
    """Return a function's job name, `module.function`. In a script, the script's name replaces `__main__`."""
    module = function.__module__
    if module == "__main__":
        module = _main_module()
    return f"{module}.{function.__qualname__}"


def _main_module() -> str:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module
        return str(spec.name)
    path = getattr(main, "__file__", None)
    return Path(path).stem if path else "__main__"


def _check_function(function: Any) -> None:
    if (
        not callable(function)
        or isinstance(function, type | Job)
        or not hasattr(function, "__qualname__")
    ):
        hint = f"; a queue is @job(queue={function!r})" if isinstance(function, str) else ""
        raise ConfigError(f"use @job on a function, not on {function!r}{hint}")
    place, _, name = function.__qualname__.rpartition("<locals>.")[2].rpartition(".")
    if place and next(iter(inspect.signature(function).parameters), "") in ("self", "cls"):
        raise ConfigError(
            f"@job on the method {place}.{name}: messages don't contain an object to call it on; put @job on a "
            f"function, "
            "or below @staticmethod, and pass what it needs as arguments"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(
            f"@job on the generator {function!r}: jobq wouldn't consume it; return a list"
        )
