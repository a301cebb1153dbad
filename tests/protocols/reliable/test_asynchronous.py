"""The queue for asyncio: every method, waits by the hundred, and cancelled ones that lose nothing."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from msgspec import structs

from jobq.protocols.reliable import AsyncReliableQueue, ReliableQueue


@pytest.fixture
def arq(client):
    return AsyncReliableQueue(client)


def test_every_method_has_its_coroutine_with_the_same_arguments():
    methods = {name for name in vars(ReliableQueue) if name[0] != "_"}
    assert methods == {name for name in vars(AsyncReliableQueue) if name[0] != "_"}
    for name in methods:
        one, other = (getattr(kind, name) for kind in (ReliableQueue, AsyncReliableQueue))
        assert inspect.iscoroutinefunction(other)
        assert inspect.signature(one).parameters == inspect.signature(other).parameters


def test_every_method_does_what_the_other_does(arq):
    async def live():
        ids = await arq.push("q", "a", "b", "c")
        assert await arq.length("q") == 3
        assert [one.id for one in await arq.pop(1, 0, "q", token="me")] == ids[:1]
        assert await arq.ack("q", ids[0], token="other") == []
        assert await arq.extend("q", ids[0], token="me") == ids[:1]
        assert await arq.release("q", ids[0]) == ids[:1]
        assert [one.deliveries for one in await arq.pop(1, 100, "q")] == [1]
        assert [one.id for one in await arq.recover("q", 1, 0, block=100)] == ids[:1]
        assert await arq.nack("q", ids[0], front=True) == ids[:1]
        assert [one.id for one in await arq.inspect("q", 0, 9)] == ids
        await arq.configure("q", max_deliveries=1)
        await arq.pop(3, 0, "q")
        assert len(await arq.pending("q", 0, 9)) == 3
        assert await arq.nack("q", *ids) == ids
        assert [one.id for one in await arq.dead("q")] == ids
        assert await arq.revive("q", ids[0]) == ids[:1] and await arq.purge("q", ids[1]) == ids[1:2]
        assert structs.astuple(await arq.info("q"))[1:4] == (1, 0, 1)
        assert await arq.clear("q") == 2 and await arq.delete("q") == 0
        assert await arq.pop(1, 20, "q") is None is await arq.recover("q", 1, 5, block=20)

    asyncio.run(live())


def test_hundred_wait_at_once_and_calls_go_on(arq, redis):
    async def live():
        waiting = [asyncio.create_task(arq.pop(1, 30_000, "q")) for _ in range(100)]
        while redis.info("clients")["blocked_clients"] < 100:
            await asyncio.sleep(0.005)
        ids = await arq.push("q", *map(str, range(100)))
        popped = [(await one)[0].id for one in waiting]
        assert sorted(popped) == sorted(ids)

    asyncio.run(live())


def test_cancelled_wait_leaves_the_line(arq, redis):
    async def live():
        waiting = asyncio.create_task(arq.pop(1, -1, "q"))
        while not redis.info("clients")["blocked_clients"]:
            await asyncio.sleep(0.005)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while redis.info("clients")["blocked_clients"]:
            await asyncio.sleep(0.005)
        await arq.push("q", "a")
        assert len(await arq.pop(1, 0, "q")) == 1

    asyncio.run(live())


@pytest.mark.parametrize("times", [1, 3])
def test_message_that_a_cancelled_pop_got_is_given_back_uncounted(arq, times):
    """Cancelled while its call is at the server, however often: what it brings is for nobody."""

    async def live():
        await arq.push("q", "a", "b")
        popping = asyncio.create_task(arq.pop(1, 0, "q", token="me"))
        for _ in range(times):
            await asyncio.sleep(0)  # the call is sent in the task's first step
            popping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await popping
        assert await arq.length("q") == 2

    asyncio.run(live())
    assert [(one.content, one.deliveries) for one in arq.blocking.pop(1, 0, "q")] == [(b"a", 1)]
