"""From calls to messages: what `Job.enqueue` does, within the enqueue middleware."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, ParamSpec

from jobq.errors import ConfigError
from jobq.jobs import middleware
from jobq.jobs.codec import LIMIT, encode
from jobq.jobs.receipt import Receipt
from jobq.jobs.signing import seal_of
from jobq.queue.mids import new_mid
from jobq.queue.types import PER_CALL

if TYPE_CHECKING:
    from jobq.client.connection import Client
    from jobq.jobs.job import Job
    from jobq.queue.queue import Queue


P = ParamSpec("P")
Arguments = tuple[Sequence[Any], dict[str, Any]]


class Args(Generic[P]):
    """The arguments of one call, for Job.enqueue_many; made by Job.args."""

    __slots__ = ("args", "job", "kwargs")

    def __init__(self, job: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.job, self.args, self.kwargs = job, args, kwargs

    def __repr__(self) -> str:
        return f"<Args of {self.job}>"


class Outgoing:
    """Up to 250 calls of one job on their way to one queue; middleware may change all but the job.

    `headers` go with each of them. With `mid` there is one call. `size` is their bytes, once encoded.
    """

    __slots__ = ("calls", "headers", "job", "mid", "queue", "size")

    def __init__(self, job: Job[..., Any], calls: list[Arguments]) -> None:
        self.job = job
        self.queue: str = job.queue
        self.mid: str | None = job.settings.get("mid")
        self.headers: dict[str, str] = dict(job.settings.get("headers") or {})
        self.calls = calls
        self.size = 0


def send(job: Job[..., Any], calls: list[Arguments]) -> list[Receipt[Any]]:
    """Enqueue the calls in one round trip, within the middleware of all jobs and of the job's registry."""
    middleware.settle_awaited()
    layers = middleware.everywhere.layers + job.registry.middleware.layers
    return middleware.around_enqueue(layers, _deliver)(Outgoing(job, calls))


def send_many(
    job: Job[..., Any], arguments: Iterable[Sequence[Any] | Args[...]]
) -> list[Receipt[Any]]:
    """Enqueue a call per tuple of arguments or Args, 250 in a round trip."""
    if job.settings.get("mid") is not None:
        raise ConfigError(
            f"mid={job.settings['mid']!r} can't be the mid of many messages; enqueue them one by one"
        )
    receipts: list[Receipt[Any]] = []
    rest = iter(arguments)
    while batch := list(islice(_calls(job, rest), PER_CALL)):
        receipts += send(job, batch)
    return receipts


def queue_of(name: str, client: Client | None) -> Queue:
    """The queue object that all senders of this process share."""
    known = client.queues.get(name) if client is not None else None
    return known or _first_queue_of(name, client)


def _first_queue_of(name: str, client: Client | None) -> Queue:
    # Imported here, so that a job can be declared without redis.
    from jobq.client.connection import default_client
    from jobq.queue.queue import Queue

    client = client or default_client()
    queue: Queue = client.queues.get(name) or client.queues.setdefault(name, Queue(name, client))
    return queue


def _calls(
    job: Job[..., Any], arguments: Iterator[Sequence[Any] | Args[...]]
) -> Iterator[Arguments]:
    for item in arguments:
        if isinstance(item, Args):
            if item.job != job.name:
                raise ConfigError(
                    f"{item!r} can't be enqueued as {job.name}; take {job.name}.args(…)"
                )
            yield item.args, item.kwargs
        elif isinstance(item, tuple | list):
            job.check_arguments(item, {})
            yield item, {}
        else:
            raise ConfigError(
                f"enqueue_many of {job.name} takes tuples of arguments, not {item!r:.80}; for one argument give (x,)"
            )


def _due_ms(now_ms: int, delay_s: float | None, at_s: float | None) -> float:
    return at_s * 1000 if at_s is not None else now_ms + (delay_s or 0) * 1000


def _deliver(outgoing: Outgoing) -> list[Receipt[Any]]:
    job, settings = outgoing.job, outgoing.job.settings
    queue = queue_of(outgoing.queue, settings.get("client"))
    now = time.time_ns() // 1_000_000
    limit = getattr(getattr(queue.client, "settings", None), "max_content", LIMIT)
    contents: list[tuple[str | None, bytes]] = [
        (outgoing.mid, encode(job.name, args, kwargs, now, outgoing.headers, job.overrides, limit))
        for args, kwargs in outgoing.calls
    ]
    if (seal := seal_of(queue.client)) is not None:
        mids = [mid or new_mid() for mid, _ in contents]
        due_ms = _due_ms(now, settings.get("delay"), settings.get("at"))
        contents = [
            (mid, seal.close_call(queue.name, mid, content, due_ms))
            for mid, (_, content) in zip(mids, contents, strict=True)
        ]
    outgoing.size = sum([len(content) for _, content in contents])
    if len(contents) == 1:
        ((mid, content),) = contents
        accepted = [queue.enqueue(content, mid=mid, **job.queue_options)]
    else:
        accepted = queue.enqueue_many(contents, **job.queue_options)
    return [Receipt(mid, action, reason, job=job, queue=queue) for mid, action, reason in accepted]
