"""The queues of jobs and results, without importing redis early.

Declaring a job doesn't need redis. So this module only declares the methods of clients and queues that jobs use, and
imports the real classes at their first use.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Protocol, cast

from jobq.config import ServerSettings
from jobq.queue.types import Enqueued, Status


class ClientLike(Protocol):
    """The part of `jobq.Client` that jobs use."""

    @property
    def settings(self) -> ServerSettings: ...
    @property
    def queues(self) -> MutableMapping[str, Any]: ...
    @property
    def command(self) -> Callable[..., Any]: ...


class QueueLike(Protocol):
    """The part of `jobq.Queue` that jobs use."""

    @property
    def name(self) -> str: ...
    @property
    def client(self) -> ClientLike: ...
    @property
    def admin(self) -> Any: ...
    @property
    def enqueue(self) -> Callable[..., Enqueued]: ...
    @property
    def enqueue_many(self) -> Callable[..., Sequence[Enqueued]]: ...
    def status(self, mid: str) -> Status: ...
    def content(self, mid: str) -> bytes | None: ...
    def cancel(self, *mids: str) -> list[str]: ...
    def result_key(self, mid: str) -> str: ...


def queue_of(name: str, client: ClientLike | None, partitions: int | None = None) -> QueueLike:
    """Return this process's shared object for a queue. Without a client, use the default client.

    Args:
        partitions: Number of partitions, if the queue doesn't exist yet.
    """
    from jobq.client.connection import default_client

    if client is None:
        client = default_client()
    return client.queues.get(name) or _first(name, client, partitions)


def _first(name: str, client: Any, partitions: int | None) -> QueueLike:
    from jobq.queue.queue import Queue

    if partitions is not None:
        from jobq.queue.partitioning import created

        created(client, name, partitions)
    return cast("QueueLike", client.queues.setdefault(name, Queue(name, client)))
