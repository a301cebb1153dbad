"""The queues that jobs go to and results come from, without loading redis before the first of them is needed.

Declaring a job needs neither a server nor redis. So jobs describe here what they use of a client and of a queue,
and this module alone imports the real ones, when they are first used.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Protocol, cast

from jobq.config import ServerSettings
from jobq.queue.types import Enqueued, Status


class ClientLike(Protocol):
    """What jobs use of a `jobq.Client`."""

    @property
    def settings(self) -> ServerSettings: ...
    @property
    def queues(self) -> MutableMapping[str, Any]: ...
    @property
    def command(self) -> Callable[..., Any]: ...


class QueueLike(Protocol):
    """What jobs use of a `jobq.Queue`."""

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


def queue_of(name: str, client: ClientLike | None) -> QueueLike:
    """The queue object that all senders of this process share; of the default client where none is given."""
    from jobq.client.connection import default_client

    if client is None:
        client = default_client()
    return client.queues.get(name) or _first(name, client)


def _first(name: str, client: Any) -> QueueLike:
    from jobq.queue.queue import Queue

    return cast("QueueLike", client.queues.setdefault(name, Queue(name, client)))
