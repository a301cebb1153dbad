"""Enqueues of which many are under way at once, while replies are lost: nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from jobq import Queue
from jobq.chaos.proxy import HOST, Proxy
from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.queue.aio import aenqueue


@pytest.fixture
def proxy(server, redis) -> Iterator[Proxy]:
    proxy = Proxy(server.socket)
    yield proxy
    proxy.close()


@pytest.fixture
def far(proxy) -> Iterator[Queue]:
    """The queue `low` by way of the proxy."""
    client = Client(ServerSettings(url=f"redis://{HOST}:{proxy.port}", patience_s=20))
    yield Queue("low", client)
    client.close()


def test_coroutines_that_share_a_connection_enqueue_once_each_when_it_breaks(far, proxy, queue):
    async def many() -> list[str]:
        found = []
        for _ in range(3):
            proxy.lose_reply(1)
            done = await asyncio.gather(*(aenqueue(far, b"%d" % n) for n in range(100)))
            assert {one.action for one in done} == {"added"}
            found += [one.mid for one in done]
        return found

    mids = asyncio.run(many())
    assert proxy.lost
    assert sorted(entry.mid for entry in queue.admin.every_entry("ready")) == sorted(mids)
