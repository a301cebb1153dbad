"""A client that doesn't need a server, because it only records enqueued calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Never

from jobq.client.clock import wall
from jobq.client.connection import set_default_client
from jobq.client.runtime import runtime
from jobq.config import ServerSettings, duration_s
from jobq.errors import ConfigError
from jobq.jobs.codec import decode
from jobq.queue.mids import checked_mid, new_mid
from jobq.queue.types import Enqueued
from jobq.testing.waiting import EnqueuedCall


class RecordingClient:
    """Replaces the client while a job runs without a server, and records enqueued calls."""

    durability = "memory"
    #: Not None, so that coroutines make their calls in a thread, where `RecordingQueue.enqueue` records them.
    outage = True

    def __init__(self) -> None:
        self.settings = ServerSettings(url="redis://recorded", patience_s=0)
        #: The enqueued calls.
        self.calls: list[EnqueuedCall] = []
        self.queues: dict[str, Any] = _Queues(self)

    @property
    def command(self) -> Callable[..., Any]:
        """Return a function that rejects every command, because there is no server."""
        return refused


class RecordingQueue:
    """Replaces a queue, and accepts and records every message."""

    def __init__(self, name: str, client: RecordingClient) -> None:
        self.name, self.client = name, client

    def enqueue(self, content: bytes, *, mid: str | None = None, **options: Any) -> Enqueued:
        """Record one message."""
        mid = new_mid() if mid is None else checked_mid(mid)
        envelope, now = decode(content), wall.s()
        delay, at = options.get("delay"), options.get("at")
        due = at.timestamp() if isinstance(at, datetime) else at or 0.0
        if delay is not None:
            due = now + duration_s(delay)
        self.client.calls.append(
            EnqueuedCall(
                envelope.job, envelope.args, envelope.kwargs, self.name, mid, envelope.headers,
                due, max(0.0, due - now) if due else 0.0, content=content,
            )
        )  # fmt: skip
        return Enqueued(mid, "added")

    def enqueue_many(self, contents: Iterable[Any], **options: Any) -> Sequence[Enqueued]:
        """Record several messages."""
        done = []
        for item in contents:
            mid, content = (None, item) if isinstance(item, bytes) else item[:2]
            done.append(self.enqueue(content, mid=mid, **options))
        return done

    def __getattr__(self, name: str) -> Never:
        if name.startswith("__"):
            raise AttributeError(name)
        refused(name)


class _Queues(dict[str, Any]):
    def __init__(self, client: RecordingClient) -> None:
        super().__init__()
        self._client = client

    def get(self, name: str, default: Any = None) -> Any:
        """Return the queue with this name, which is created at first use."""
        return self.setdefault(name, RecordingQueue(name, self._client))


def refused(*words: object, **_: object) -> Never:
    """Raise ConfigError, because the call needs a server."""
    raise ConfigError(
        f"{str(words[0]).removesuffix('_call') if words else 'this'} needs a server, but this job runs without a "
        f"server; use the fixture jobq: enqueue and drain()"
    )


@contextmanager
def recorded() -> Iterator[list[EnqueuedCall]]:
    """Record calls enqueued with the default client in this context."""
    before, client = runtime.default, RecordingClient()
    set_default_client(client)  # type: ignore[arg-type]
    try:
        yield client.calls
    finally:
        set_default_client(before)
