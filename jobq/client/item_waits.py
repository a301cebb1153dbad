"""Wait for the first items of lists on one event loop, with a bounded number of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any

from jobq.client.aio import AsyncClient, SharedConnection
from jobq.client.numbered_calls import FAILED
from jobq.client.scripts import packed
from jobq.client.waiter import item_wait

#: Maximum number of waits that block at the server, each on its own connection. The server ends them when an item
#: arrives.
MAX_BLOCKING = 16
#: Interval at which the loop polls for the items of all other waits together.
POLL_S = 0.5
#: A wait may end this much later than its time, because servers check for expired waits ten times a second.
LATE_S = 0.15


class ItemWaits:
    """Lets any number of coroutines wait for the first items of lists.

    Up to MAX_BLOCKING waits block at the server; the loop polls the lists of all other waits.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._nblocking = 0
        self._idle: dict[Hashable, list[SharedConnection]] = {}
        self._polled: dict[str, set[asyncio.Future[bytes]]] = {}
        self._poller: asyncio.Task[None] | None = None

    async def first(self, key: str, seconds: float) -> bytes | None:
        """Return the first item of the list at `key`, and wait for it if the list is empty. The item stays in the list.

        Return None if no item came in time, or if a connection broke.
        """
        if self._nblocking >= MAX_BLOCKING:
            return await self._polled_for(key, seconds)
        self._nblocking += 1
        try:
            return await self._blocked_on(key, seconds)
        finally:
            self._nblocking -= 1

    async def _blocked_on(self, key: str, seconds: float) -> bytes | None:
        node = await self._client.locate(key)
        idle = self._idle.setdefault(node, [])
        connection = None
        while idle and (connection is None or not connection.is_open):
            connection = idle.pop()
        done = False
        try:
            if connection is None or not connection.is_open:
                connection = await self._client.open(node, blocking=True)
            async with asyncio.timeout(seconds + LATE_S):
                item: bytes | None = await connection.send(packed(item_wait(key, seconds)))
            done = True
        except FAILED:
            return None  # the caller's next call will show the error
        finally:
            if done and connection is not None:
                idle.append(connection)
            elif connection is not None:
                connection.close()
        return item

    async def _polled_for(self, key: str, seconds: float) -> bytes | None:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        waiting = self._polled.setdefault(key, set())
        waiting.add(future)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            return None
        finally:
            waiting.discard(future)
            if not waiting and self._polled.get(key) is waiting:
                del self._polled[key]

    async def _poll(self) -> None:
        while self._polled:
            await asyncio.sleep(POLL_S)
            try:
                for key, item in await self._items(list(self._polled)):
                    for future in self._polled.get(key, ()):
                        if not future.done():
                            future.set_result(item)
            except FAILED:
                pass  # the server is away, so the waits end when their time is over

    async def _items(self, keys: list[str]) -> list[tuple[str, bytes]]:
        """Return the keys whose lists have items, with their first items."""
        replies: list[tuple[str, Any]] = []
        for key in keys:
            connection = await self._client.connection(await self._client.locate(key))
            replies.append((key, connection.send(packed(("LINDEX", key, 0)))))
        items = []
        for key, reply in replies:
            try:
                item = await reply
            except FAILED:
                continue
            if item is not None:
                items.append((key, item))
        return items

    def close(self) -> None:
        """Close all idle connections."""
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()


def item_waits(client: AsyncClient) -> ItemWaits:
    """Return the ItemWaits of the client's event loop."""
    if client.item_waits is None:
        client.item_waits = ItemWaits(client)
    waits: ItemWaits = client.item_waits
    return waits
