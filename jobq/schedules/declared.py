"""The decorator `@schedule`, used together with `@job` on a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack
from weakref import WeakSet

from msgspec import structs

from jobq.durations import Duration
from jobq.errors import CodecError, ConfigError
from jobq.jobs.functions import place
from jobq.jobs.job import Job
from jobq.jobs.registry import Registry
from jobq.schedules.definition import Missed, Overlap, Schedule, checked_schedule

F = TypeVar("F", bound=Callable[..., Any])
#: Attribute of a function or a job with its declarations. `@job` copies it from the function.
_KEPT = "__jobq_schedules__"
#: Functions and jobs with a schedule.
_functions: WeakSet[Callable[..., Any]] = WeakSet()


class ScheduleOptions(TypedDict, total=False):
    """Declare a schedule of a job.

    Args:
        every: An interval, instead of an expression.
        tz: The zone of the expression. Default: UTC.
        missed: How to handle ticks that passed while no worker ran. "one" runs only the latest tick, "all" runs up to
            100 ticks, and "skip" leaves out ticks over a minute late.
        overlap: What to do with a tick while the previous run isn't over: "skip" or "queue" the tick, "allow" both
            runs, or "cancel" the previous run.
        spread: Delay each tick by a fixed part of this time, so that schedules don't all start together.
        start, end: First and last possible time of a tick; a time without a zone is in tz.
        times: Maximum number of ticks, counted from start.
        name: Name of the schedule. Default: the job's name.
        args, kwargs: Arguments of the job.
    """

    every: Duration
    tz: str
    missed: Missed
    overlap: Overlap
    spread: Duration
    start: datetime | str
    end: datetime | str
    times: int
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class Declared(NamedTuple):
    """One use of `@schedule`, before the job's name is known."""

    cron: str | None
    options: dict[str, Any]

    def of(self, job: str) -> Schedule:
        """Return the schedule of this job."""
        options = dict(self.options)
        name, args, kwargs = (options.pop(key, None) for key in ("name", "args", "kwargs"))
        return checked_schedule(
            job if name is None else name, job, self.cron, options, args or (), kwargs
        )


def schedule(cron: str | None = None, /, **options: Unpack[ScheduleOptions]) -> Callable[[F], F]:
    """Schedule a job: workers enqueue a call at the times of a cron expression, or at each interval.

    Put this decorator on a function with `@job`, above or below `@job`, once for each schedule.
    """
    declared = Declared(cron, dict(options))
    declared.of("job")  # raises errors where the schedule is declared

    def mark(function: F) -> F:
        if not hasattr(function, "__dict__"):
            raise ConfigError(f"use @schedule on a function with @job, not on {function!r}")
        # Decorators apply from the bottom up, but schedules are listed in the order of the source.
        setattr(function, _KEPT, (declared, *getattr(function, _KEPT, ())))
        _functions.add(function)
        return function

    return mark


def without_job() -> list[str]:
    """Return a warning for each function with `@schedule` but without `@job`, because its schedule never runs."""
    jobs = {place(inspect.unwrap(job)) for registry in Registry.alive for job in registry}
    missing = {place(inspect.unwrap(function)) for function in _functions} - jobs
    return [
        f"@schedule on {name} has no effect, because it isn't a job; add @job"
        for name in sorted(missing)
    ]


def schedules_of(job: Job[..., Any]) -> list[Schedule]:
    """Return the schedules declared on a job's function; raise ConfigError if arguments don't fit the function."""
    schedules = [declared.of(job.name) for declared in getattr(job, _KEPT, ())]
    for at, spec in enumerate(schedules):
        try:
            job.check_arguments(spec.args, spec.kwargs)
            args, kwargs = job.encoded(spec.args, spec.kwargs)
            schedules[at] = structs.replace(spec, args=tuple(args), kwargs=kwargs)
        except (TypeError, CodecError) as error:
            raise ConfigError(
                f"schedule {spec.name!r} can't call {job.name}: {error}; pass @schedule(args=…, kwargs=…)"
            ) from error
    return schedules


def declared_in(registry: Registry) -> dict[str, dict[str, Schedule]]:
    """Return schedules by queue and name; raise ConfigError if two schedules of a queue have the same name."""
    by_queue: dict[str, dict[str, Schedule]] = {}
    for job in registry:
        for spec in schedules_of(job):
            names = by_queue.setdefault(job.queue, {})
            if spec.name in names:
                raise ConfigError(
                    f"two schedules of queue {job.queue} are named {spec.name!r}; pass name=… to one of them"
                )
            names[spec.name] = spec
    return by_queue
