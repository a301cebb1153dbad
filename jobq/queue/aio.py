"""Enqueue from an event loop: the asyncio versions of `Queue.enqueue` and `Queue.enqueue_many`.

Import this module only in asyncio programs, so that other programs don't import asyncio.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from time import monotonic
from typing import Any, Unpack

from jobq.client.aio import async_client
from jobq.client.scripts import Argument
from jobq.client.threads import in_thread
from jobq.errors import UnavailableError
from jobq.queue.queue import (
    ADDED,
    SEALED,
    Content,
    EnqueueOptions,
    Queue,
    Values,
    batches_of,
    prepared,
)
from jobq.queue.types import Enqueued, EnqueuedMany


def aenqueue(
    queue: Queue,
    content: bytes,
    *,
    mid: str | None = None,
    durability: str | None = None,
    **options: Unpack[EnqueueOptions],
) -> Coroutine[Any, Any, Enqueued]:
    """Enqueue one message; see Queue.enqueue. Simultaneous calls of coroutines are sent together.

    If the call waits for a disk or for replicas, or may use an outage buffer, it runs in a thread.
    """
    batch, client = prepared(content, mid, options), queue.client
    if client.outage is not None or (durability or client.durability) != "memory":
        return in_thread(queue.enqueue, content, mid=mid, durability=durability, **options)
    return send(queue, *batch, single=True)


async def aenqueue_many(
    queue: Queue,
    contents: Iterable[Content],
    *,
    durability: str | None = None,
    **options: Unpack[EnqueueOptions],
) -> Sequence[Enqueued]:
    """Enqueue messages; see Queue.enqueue_many. Other coroutines can run between two round trips."""
    client = queue.client
    if client.outage is not None or (durability or client.durability) != "memory":
        return await in_thread(queue.enqueue_many, contents, durability=durability, **options)
    batches, done = batches_of(contents, options), EnqueuedMany()
    under_way: deque[asyncio.Task[Sequence[Enqueued]]] = deque()
    try:
        for batch in batches:
            if isinstance(batch, Exception):
                await asyncio.gather(*under_way)
                raise batch
            before = under_way[-1] if under_way else None
            under_way.append(asyncio.create_task(send(queue, *batch, before=before)))
            # The task sends; the next batch is prepared while the server processes this batch.
            await asyncio.sleep(0)
            if len(under_way) > 1:
                done.add(await under_way.popleft())
        while under_way:
            done.add(await under_way.popleft())
    except UnavailableError as error:
        for other in await asyncio.gather(*under_way, return_exceptions=True):
            error.mids += other.mids if isinstance(other, UnavailableError) else ()
        raise
    finally:
        for task in under_way:
            task.cancel()
    return done


async def send(
    queue: Queue,
    values: Values,
    rows: Sequence[Argument],
    mids: Sequence[str],
    single: bool = False,
    before: asyncio.Task[Sequence[Enqueued]] | None = None,
) -> Any:
    """Make one enqueue call; see Queue.send.

    Args:
        single: Return the result of a single message instead of a sequence.
        before: The previous call. Calls to partitions wait for it, because only calls to one queue arrive in order.
    """
    if queue.routes is not None:
        await _ended(before)
        routed = await in_thread(queue.send, "memory", values, rows, mids, None)
        return routed[0] if single else routed
    if monotonic() >= queue.listed_until:
        await in_thread(queue.register)
    own = queue.callers.take()
    state = queue.enqueue_call(own, values, rows, mids)
    try:
        reply = await async_client(queue.client).perform(queue.wake_key, state)
    except UnavailableError as error:
        error.mids = tuple(mids) if state.arrived else ()
        raise
    if reply == ADDED:
        done: Sequence[Enqueued] = (Enqueued(mids[0], "added"),)
    elif reply[0] == SEALED:
        await _ended(before)
        routes = await in_thread(queue.routed)
        done = await in_thread(routes.send, "memory", values, rows, mids)
    else:
        done = queue.accepted(own, reply, mids)
    queue.callers.give_back(own)  # not after a cancellation: the call may still arrive
    return done[0] if single else done


async def _ended(before: asyncio.Task[Sequence[Enqueued]] | None) -> None:
    if before is not None:
        await asyncio.wait([before])
