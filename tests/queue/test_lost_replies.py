"""Many concurrent enqueues, while replies are lost: nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator

import pytest

from jobq import Queue
from jobq.chaos.proxy import HOST, Proxy
from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.errors import CodecError, UnavailableError
from jobq.queue.aio import aenqueue, aenqueue_many
from jobq.queue.types import PER_CALL


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
    assert sorted(entry.mid for entry in queue.admin.iter_entries("ready")) == sorted(mids)


@pytest.mark.parametrize("way", ["blocking", "asyncio"])
def test_many_are_enqueued_once_each_when_replies_are_lost_and_connections_break(
    far, proxy, queue, way
):
    """Two calls are under way when the reply to either is lost."""

    def contents() -> Iterator[bytes]:
        for n in range(20 * PER_CALL):
            if n % (4 * PER_CALL) == 100:
                proxy.lose_reply(1 + n % 3)
            if n == 10 * PER_CALL:
                proxy.tear(3)
            if n == 15 * PER_CALL:
                proxy.reset_all()
            yield b"%d" % n

    done = (
        far.enqueue_many(contents())
        if way == "blocking"
        else asyncio.run(aenqueue_many(far, contents()))
    )
    assert proxy.lost and proxy.torn
    assert {one.action for one in done} == {"added"}
    entries = list(queue.admin.iter_entries("ready"))
    content = {entry.mid: entry.content for entry in entries}
    assert [content[one.mid] for one in done] == [b"%d" % n for n in range(20 * PER_CALL)]
    assert len(entries) == len(done) == len(content)


def test_what_was_sent_before_contents_end_in_an_error_stays_enqueued(far, queue):
    def contents() -> Iterator[bytes]:
        yield from [b"v"] * (3 * PER_CALL + 10)
        raise CodecError("no more")

    for count in (1, 2):
        with pytest.raises(CodecError, match="no more"):
            far.enqueue_many(contents())
        assert queue.admin.counts().ready == count * 3 * PER_CALL


def test_error_names_the_messages_of_both_calls_under_way(far, proxy):
    far.enqueue(b"v")
    far.client.should_give_up = lambda: True
    proxy.lose_reply(1)
    with pytest.raises(UnavailableError) as caught:
        far.enqueue_many((f"m{n}", b"v") for n in range(4 * PER_CALL))
    assert caught.value.mids == tuple(f"m{n}" for n in range(2 * PER_CALL))


@pytest.mark.one_server
def test_memory_of_many_enqueues_does_not_grow_with_their_number(queue):
    queue.enqueue_many([b"v"] * 3 * PER_CALL)
    tracemalloc.start()
    try:
        done = queue.enqueue_many(bytes(100) for _ in range(160 * PER_CALL))
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 100_000 and most < 1_000_000
    assert len(done) == 160 * PER_CALL
    assert done[-1] == done[160 * PER_CALL - 1] == list(done)[-1]
    assert len({one.mid for one in done}) == len(done)
    assert queue.status(done[5 * PER_CALL + 7].mid).word == "queued"
