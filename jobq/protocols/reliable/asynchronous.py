"""The same queue for asyncio: calls run in threads, waits on the event loop, so that any number may wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from jobq.protocols.reliable.queue import ReliableQueue
from jobq.protocols.reliable.replies import (
    DeadItem,
    Info,
    PendingItem,
    Popped,
    Recovered,
    WaitingItem,
)
from jobq.protocols.reliable.steps import Ask, Nap, Steps

if TYPE_CHECKING:
    from jobq.client.connection import Client

P = ParamSpec("P")
Answer = TypeVar("Answer")


class AsyncReliableQueue:
    """ReliableQueue with a coroutine for each method.

    A pop or recover that is cancelled gives back what it got: nobody has to wait until it is recovered.
    """

    def __init__(self, client: Client | None = None, ns: str = "reliable") -> None:
        self.sync = ReliableQueue(client, ns)

    def __repr__(self) -> str:
        return f"AsyncReliableQueue(ns={self.sync.ns!r})"

    async def push(self, key: str, *items: str | bytes, now: int | None = None) -> list[str]:
        """See ReliableQueue.push."""
        return await _called(self.sync.push, key, *items, now=now)

    async def pop(
        self,
        count: int = 1,
        block: int = 0,
        *keys: str,
        token: str = "",
        recover_ms: int | None = None,
        now: int | None = None,
    ) -> list[Popped] | None:
        """See ReliableQueue.pop."""
        return await drive(self.sync._popping(count, block, keys, token, recover_ms, now))

    async def ack(
        self, key: str, *ids: str, token: str = "", now: int | None = None
    ) -> list[str] | None:
        """See ReliableQueue.ack."""
        return await _called(self.sync.ack, key, *ids, token=token, now=now)

    async def nack(
        self, key: str, *ids: str, token: str = "", front: bool = False, now: int | None = None
    ) -> list[str] | None:
        """See ReliableQueue.nack."""
        return await _called(self.sync.nack, key, *ids, token=token, front=front, now=now)

    async def release(
        self, key: str, *ids: str, token: str = "", now: int | None = None
    ) -> list[str] | None:
        """See ReliableQueue.release."""
        return await _called(self.sync.release, key, *ids, token=token, now=now)

    async def extend(
        self, key: str, *ids: str, token: str = "", now: int | None = None
    ) -> list[str] | None:
        """See ReliableQueue.extend."""
        return await _called(self.sync.extend, key, *ids, token=token, now=now)

    async def recover(
        self,
        key: str,
        count: int,
        elapsed: int,
        *,
        block: int = 0,
        token: str = "",
        now: int | None = None,
    ) -> list[Recovered] | None:
        """See ReliableQueue.recover."""
        return await drive(self.sync._recovering(key, count, elapsed, block, token, now))

    @overload
    async def inspect(
        self,
        key: str,
        start: int,
        count: int,
        pending: Literal[False] = False,
        *,
        now: int | None = None,
    ) -> list[WaitingItem]: ...
    @overload
    async def inspect(
        self, key: str, start: int, count: int, pending: Literal[True], *, now: int | None = None
    ) -> list[PendingItem]: ...
    async def inspect(
        self, key: str, start: int, count: int, pending: bool = False, *, now: int | None = None
    ) -> list[WaitingItem] | list[PendingItem]:
        """See ReliableQueue.inspect."""
        # The overloads take literals, which a bool isn't.
        inspect: Any = self.sync.inspect
        found: list[WaitingItem] | list[PendingItem] = await _called(
            inspect, key, start, count, pending, now=now
        )
        return found

    async def dead(
        self, key: str, start: int = 0, count: int = 100, *, now: int | None = None
    ) -> list[DeadItem]:
        """See ReliableQueue.dead."""
        return await _called(self.sync.dead, key, start, count, now=now)

    async def revive(self, key: str, *ids: str, now: int | None = None) -> list[str] | None:
        """See ReliableQueue.revive."""
        return await _called(self.sync.revive, key, *ids, now=now)

    async def purge(self, key: str, *ids: str, now: int | None = None) -> list[str] | None:
        """See ReliableQueue.purge."""
        return await _called(self.sync.purge, key, *ids, now=now)

    async def info(self, key: str) -> Info:
        """See ReliableQueue.info."""
        return await _called(self.sync.info, key)

    async def length(self, key: str) -> int:
        """See ReliableQueue.length."""
        return await _called(self.sync.length, key)

    async def configure(self, key: str, *, max_deliveries: int) -> None:
        """See ReliableQueue.configure."""
        return await _called(self.sync.configure, key, max_deliveries=max_deliveries)

    async def clear(self, key: str) -> int | None:
        """See ReliableQueue.clear."""
        return await _called(self.sync.clear, key)

    async def delete(self, key: str) -> int | None:
        """See ReliableQueue.delete."""
        return await _called(self.sync.delete, key)


async def drive(steps: Steps[Answer]) -> Answer:
    """Do the steps on the running loop."""
    try:
        step = next(steps)
        while True:
            try:
                done = await (_asked(step) if isinstance(step, Ask) else _nap(step))
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(done)
    except StopIteration as end:
        answer: Answer = end.value
        return answer


async def _called(call: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> Answer:
    return await asyncio.to_thread(call, *args, **kwargs)


async def _asked(ask: Ask) -> Any:
    """The result of a call; what it got for a caller who was cancelled meanwhile is undone."""
    lock, results, cancelled = threading.Lock(), list[Any](), threading.Event()

    def call() -> Any:
        result = ask.call()
        with lock:
            results.append(result)
            late = cancelled.is_set()
        if late and ask.undo and result:
            ask.undo(result)
        return result

    try:
        return await asyncio.to_thread(call)
    except asyncio.CancelledError:
        with lock:
            cancelled.set()
            missed = results[0] if results else None
        if missed and ask.undo:
            threading.Thread(target=partial(ask.undo, missed)).start()
        raise


async def _nap(nap: Nap) -> bool:
    if nap.file is None:
        await asyncio.sleep(nap.seconds)
        return False
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    loop.add_reader(nap.file, came.set)
    try:
        await asyncio.wait_for(came.wait(), nap.seconds)
        return True
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(nap.file)
