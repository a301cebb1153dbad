"""Topics for asyncio: the same verbs, each in a thread, so that one client serves both worlds.

Who is cancelled while it waits for messages takes none with it: what its last call was handed is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from jobq.errors import JobqError
from jobq.topics.group import TopicGroup
from jobq.topics.messages import (
    Description,
    Lag,
    Position,
    Record,
    Retention,
    TopicBatch,
    TopicMessage,
)
from jobq.topics.reader import Commit, Reader
from jobq.topics.topic import Topic

if TYPE_CHECKING:
    from jobq.client.connection import Client

P = ParamSpec("P")
T = TypeVar("T")
PAGE = 500


class AsyncTopic:
    """A Topic whose methods are awaited; see there for what each does."""

    def __init__(self, name: str, client: Client | None = None) -> None:
        self.sync = Topic(name, client)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sync.name!r})"

    async def append(
        self, content: bytes | None, *, key: str | None = None, headers: Mapping[str, str] | None = None,
        durability: str | None = None,
    ) -> int:  # fmt: skip
        """Topic.append."""
        return await _thread(
            self.sync.append, content, key=key, headers=headers, durability=durability
        )

    async def append_many(
        self, records: Iterable[bytes | Record], *, durability: str | None = None
    ) -> list[int]:
        """Topic.append_many."""
        return await _thread(self.sync.append_many, list(records), durability=durability)

    def reader(
        self, group: str, *, commit: Commit = "manual", start: Position = "earliest",
        lease: float | timedelta = 30, out_of_range: str = "earliest",
    ) -> AsyncReader:  # fmt: skip
        """Topic.reader; for one coroutine at a time."""
        return AsyncReader(
            self.sync.reader(group, commit=commit, start=start, lease=lease, out_of_range=out_of_range)
        )  # fmt: skip

    def group(self, name: str) -> AsyncTopicGroup:
        """Topic.group."""
        return AsyncTopicGroup(self.sync.group(name))

    async def read(
        self,
        start: Position = "earliest",
        end: Position | None = None,
        *,
        out_of_range: str = "error",
    ) -> AsyncIterator[TopicMessage]:
        """Topic.read."""
        reading = await _thread(self.sync.read, start, end, out_of_range=out_of_range)
        while page := await _thread(lambda: list(islice(reading, PAGE))):
            for message in page:
                yield message

    async def get(self, index: int) -> TopicMessage | None:
        """Topic.get."""
        return await _thread(self.sync.get, index)

    async def find(self, at: datetime | float) -> int:
        """Topic.find."""
        return await _thread(self.sync.find, at)

    async def groups(self) -> list[str]:
        """Topic.groups."""
        return await _thread(self.sync.groups)

    async def describe(self) -> Description:
        """Topic.describe."""
        return await _thread(self.sync.describe)

    async def set_limits(self, **limits: Any) -> Retention:
        """Topic.set_limits."""
        return await _thread(partial(self.sync.set_limits, **limits))

    async def limits(self) -> Retention:
        """Topic.limits."""
        return await _thread(self.sync.limits)

    async def trim(self, before: int | None = None) -> int:
        """Topic.trim."""
        return await _thread(self.sync.trim, before)

    async def compact(self) -> int:
        """Topic.compact."""
        return await _thread(self.sync.compact)

    async def delete(self) -> None:
        """Topic.delete."""
        await _thread(self.sync.delete)


class AsyncTopicGroup:
    """A TopicGroup whose methods are awaited."""

    def __init__(self, sync: TopicGroup) -> None:
        self.sync = sync

    async def subscribe(
        self, start: Position = "earliest", *, out_of_range: str = "earliest"
    ) -> bool:
        """TopicGroup.subscribe."""
        return await _thread(self.sync.subscribe, start, out_of_range=out_of_range)

    async def unsubscribe(self) -> bool:
        """TopicGroup.unsubscribe."""
        return await _thread(self.sync.unsubscribe)

    async def seek(self, place: Position) -> int:
        """TopicGroup.seek."""
        return await _thread(self.sync.seek, place)

    async def pause(self) -> None:
        """TopicGroup.pause."""
        await _thread(self.sync.pause)

    async def resume(self) -> None:
        """TopicGroup.resume."""
        await _thread(self.sync.resume)

    async def set_out_of_range(self, policy: str) -> None:
        """TopicGroup.set_out_of_range."""
        await _thread(self.sync.set_out_of_range, policy)

    async def lag(self, *, exact: bool = False) -> Lag:
        """TopicGroup.lag."""
        return await _thread(self.sync.lag, exact=exact)

    async def peek(self, count: int = 10) -> list[TopicMessage]:
        """TopicGroup.peek."""
        return await _thread(self.sync.peek, count)


class AsyncReader:
    """A Reader whose methods are awaited, and which is iterated by `async for`."""

    def __init__(self, sync: Reader) -> None:
        self.sync = sync
        self._undoing: asyncio.Task[None] | None = None

    async def poll(self, count: int = 100, block: float | timedelta = 0) -> TopicBatch:
        """Reader.poll. Cancelling ends the wait, and gives back what the last call brought; with commit='read',
        which can't, the next poll has it."""
        if self._undoing:
            await asyncio.shield(self._undoing)
        polling = asyncio.ensure_future(_thread(self.sync.poll, count, block))
        try:
            return await asyncio.shield(polling)
        except asyncio.CancelledError:
            self.sync.interrupt()
            # A task of its own, so that cancelling twice doesn't break it off.
            self._undoing = asyncio.ensure_future(self._undo(polling))
            await asyncio.shield(self._undoing)
            raise

    async def _undo(self, polling: asyncio.Future[TopicBatch]) -> None:
        try:
            with suppress(JobqError):
                # Short: the wait is over, at most one call is in flight.
                batch = await polling
                await _thread(self.sync.take_back, batch)
        finally:
            self.sync.go_on()
            self._undoing = None

    async def commit(self, done: TopicBatch | TopicMessage | None = None) -> int:
        """Reader.commit."""
        return await _thread(self.sync.commit, done)

    async def extend(
        self, lease: float | timedelta | None = None, batch: TopicBatch | None = None
    ) -> None:
        """Reader.extend."""
        await _thread(self.sync.extend, lease, batch)

    async def release(self, batch: TopicBatch | None = None) -> None:
        """Reader.release."""
        await _thread(self.sync.release, batch)

    async def __aiter__(self) -> AsyncIterator[TopicMessage]:
        """Reader's iteration."""
        while True:
            batch = await self.poll(block=3600)
            for message in batch.messages:
                if not await _thread(self.sync.begin, batch, message):
                    break
                yield message
            self.sync.finish()
            if self.sync.interrupted:
                return

    def interrupt(self) -> None:
        """Reader.interrupt; doesn't wait, so that signal handlers can call it."""
        self.sync.interrupt()

    def go_on(self) -> None:
        """Reader.go_on."""
        self.sync.go_on()

    async def close(self) -> None:
        """Reader.close."""
        await _thread(self.sync.close)

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        await _thread(self.sync.__exit__, kind, error, trace)


async def _thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.to_thread(call, *args, **kwargs)
