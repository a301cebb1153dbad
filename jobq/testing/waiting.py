"""Read the waiting and dead messages of queues as calls of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jobq.client.connection import Client
from jobq.client.names import base_of, partition_in
from jobq.durations import lasting
from jobq.errors import CodecError
from jobq.jobs.codec import Envelope, decode
from jobq.jobs.signing import opened, seal_of, shown_text
from jobq.queue.directory import queue_names
from jobq.queue.queue import Queue, alone
from jobq.queue.types import Place

_PLACES: tuple[Place, ...] = ("ready", "due", "lines")
#: A call that isn't delayed may still be due a moment after its enqueue.
SOON_S = 0.0005


class EnqueuedCall(NamedTuple):
    """A waiting or dead call.

    Attributes:
        due: Earliest start time in epoch seconds, or 0 if the call can start immediately.
        delay: Seconds from the enqueue until `due`.
        attempts: Number of attempts so far.
        reason: Why the message is dead; '' if it isn't dead.
        content: The message's content, in bytes.
        partition: The queue's partition that has the message; '' if the queue has no partitions.
    """

    job: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str
    mid: str
    headers: Mapping[str, str] = {}
    due: float = 0.0
    delay: float = 0.0
    attempts: int = 0
    reason: str = ""
    content: bytes = b""
    partition: str = ""

    def __repr__(self) -> str:
        called = [repr(value) for value in self.args]
        called += [f"{name}={value!r}" for name, value in self.kwargs.items()]
        when = f", in {lasting(self.delay)}" if self.delay > SOON_S else ""
        ran = f", after {self.attempts} attempts" if self.attempts else ""
        return f"{self.job or '(unreadable)'}({', '.join(called)}) in {self.queue}{when}{ran}, mid {self.mid}"


def waiting(client: Client, queue: str | None = None) -> list[EnqueuedCall]:
    """Return all waiting calls in a queue, or in all queues: ready, delayed, or waiting for their key."""
    return [call for place in _queues(client, queue) for call in waiting_in(place)]


def dead(client: Client, queue: str | None = None) -> list[EnqueuedCall]:
    """Return all dead calls, newest first in each queue."""
    calls = []
    for place in _queues(client, queue):
        name = place.name
        for died in place.admin.iter_dead():
            envelope = _read(client, name, died.mid, died.content)
            reason = shown_text(seal_of(client), "reason", name, died.mid, died.reason)
            calls.append(
                EnqueuedCall(
                    envelope.job, envelope.args, envelope.kwargs, base_of(name), died.mid, envelope.headers,
                    attempts=max(0, died.attempts), reason=reason, content=died.content, partition=partition_in(name),
                )
            )  # fmt: skip
    return calls


def _queues(client: Client, queue: str | None) -> list[Queue]:
    return alone(client, queue_names(client) if queue is None else [queue])


def waiting_in(queue: Queue) -> Iterator[EnqueuedCall]:
    """Yield the waiting calls in this queue, without its partitions."""
    client, name = queue.client, queue.name
    for place in _PLACES:
        for entry in queue.admin.iter_entries(place):
            if not entry.status.startswith("queued"):
                continue
            envelope = _read(client, name, entry.mid, entry.content)
            due, since = entry.not_before / 1000, envelope.enqueued_at / 1000
            yield EnqueuedCall(
                envelope.job, envelope.args, envelope.kwargs, base_of(name), entry.mid, envelope.headers, due,
                max(0.0, due - since) if due and since else 0.0, entry.attempts, "", entry.content, partition_in(name),
            )  # fmt: skip


def _read(client: Client, queue: str, mid: str, content: bytes) -> Envelope:
    try:
        return decode(opened(seal_of(client), queue, mid, content))
    except CodecError:
        return Envelope("-", [])
