"""Send calls of one job, known here or only by name, through the enqueue middleware like any other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jobq.cli.arguments import Given
from jobq.errors import ConfigError
from jobq.jobs.enqueue import send
from jobq.jobs.job import Job, SyncJob
from jobq.jobs.registry import Registry, default_registry
from jobq.queue.binding import PER_CALL

if TYPE_CHECKING:
    from jobq.jobs.receipt import Receipt


def find(name: str, *, known: bool) -> Job[..., Any]:
    """The registered job; or, where nothing was imported, one of this name that takes any arguments."""
    return (
        default_registry.get(name)
        if known
        else SyncJob(_anything, {"name": name, "registry": Registry()})
    )


def is_known(name: str) -> bool:
    """Whether a job of this name is registered."""
    return name in default_registry


def deliver(job: Job[..., Any], calls: Iterable[Given]) -> Iterator[list[Receipt[Any]]]:
    """Enqueue in order: calls without a mid a thousand in a round trip, one with its own mid alone."""
    for batch in _batches(_checked(job, calls)):
        one = batch[0].mid
        target = job.options(mid=one) if one else job
        yield send(target, [(call.args, call.kwargs) for call in batch])


def _checked(job: Job[..., Any], calls: Iterable[Given]) -> Iterator[Given]:
    for call in calls:
        try:
            job.check_arguments(call.args, call.kwargs)
        except TypeError as error:
            raise ConfigError(f"{error}; see the signature of {job.name}") from error
        yield call


def _batches(calls: Iterable[Given]) -> Iterator[Sequence[Given]]:
    batch: list[Given] = []
    for call in calls:
        if batch and (call.mid or len(batch) == PER_CALL):
            yield batch
            batch = []
        if call.mid:
            yield [call]
        else:
            batch.append(call)
    if batch:
        yield batch


def _anything(*args: Any, **kwargs: Any) -> None:
    """What a job is to a producer that hasn't its code."""
