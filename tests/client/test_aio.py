"""Replies go on with their coroutines at once, whatever these do then."""

from __future__ import annotations

import asyncio
import gc
import ssl
from typing import Any

import pytest
import trustme

from jobq.client.aio import LateReplyError, Reply, async_client
from jobq.client.connection import Client, connect
from jobq.client.scripts import packed
from jobq.config import ServerSettings
from jobq.queue.aio import aenqueue
from jobq.queue.queue import Queue

pytestmark = pytest.mark.one_server


async def connected(client: Any) -> Any:
    """The connection of this event loop."""
    return await async_client(client)._connect(client.topology.locate("k"), None)


def sent(connection: Any, *values: str) -> list[Reply]:
    """ECHO of each value, under way."""
    return [connection.send(packed(("ECHO", value))) for value in values]


def test_replies_that_come_together_go_to_their_coroutines_in_order(client):
    """Some of them send again, or close the connection, as soon as they have theirs."""
    seen: list[str] = []

    async def main() -> None:
        connection = await connected(client)

        async def echo(name: str) -> None:
            seen.append(f"{name}: {await sent(connection, name)[0]!r}")
            if name == "a":
                seen.append(f"again: {await sent(connection, 'again')[0]!r}")
            if name == "c":
                connection.retire()

        await asyncio.gather(*[echo(name) for name in "abcd"])
        assert not connection.is_open

    asyncio.run(main())
    assert seen == ["a: b'a'", "b: b'b'", "c: b'c'", "d: b'd'", "again: b'again'"]


def test_coroutine_that_ends_the_loop_takes_no_reply_of_another(client):
    """Its SystemExit leaves the loop in the middle of the replies that came together."""

    async def echo(connection: Any, name: str) -> Any:
        reply = await sent(connection, name)[0]
        if name == "a":
            raise SystemExit(3)
        return reply

    async def main() -> list[asyncio.Task[Any]]:
        connection = await connected(client)
        return [asyncio.ensure_future(echo(connection, name)) for name in "abc"]

    loop = asyncio.new_event_loop()
    first, *others = loop.run_until_complete(main())
    with pytest.raises(SystemExit):
        loop.run_until_complete(asyncio.wait([first]))
    assert isinstance(first.exception(), SystemExit)
    assert loop.run_until_complete(asyncio.gather(*others)) == [b"b", b"c"]
    loop.run_until_complete(_close(client))
    loop.close()


def test_reply_that_is_read_while_a_task_runs_waits_for_the_next_turn(client):
    """Some programs run a loop within a task of the same loop."""

    async def main() -> None:
        connection = await connected(client)
        task = asyncio.ensure_future(_await(sent(connection, "a")[0]))
        await asyncio.sleep(0)
        connection._sock.setblocking(True)
        connection._receive()
        connection._sock.setblocking(False)
        assert not task.done() and await task == b"a"

    asyncio.run(main())


@pytest.mark.parametrize("whole", [False, True])
def test_cancelled_coroutine_gets_its_reply_only_if_it_must_not_miss_it(client, whole):
    async def main() -> None:
        connection = await connected(client)
        task = asyncio.ensure_future(_await(connection.send(packed(("ECHO", "a")), None, whole)))
        await asyncio.sleep(0)
        assert task.cancel() and task.cancel()
        with pytest.raises(asyncio.CancelledError) as ended:
            await task
        assert isinstance(ended.value, LateReplyError) is whole
        assert not whole or ended.value.reply == b"a"
        assert await sent(connection, "b")[0] == b"b"

    asyncio.run(main())


def test_coroutine_that_must_not_miss_its_reply_is_cancelled_when_none_comes(client):
    async def main() -> None:
        connection = await connected(client)
        reply = connection.send(packed(("BLPOP", "nothing", 0)), None, whole=True)
        task = asyncio.ensure_future(_await(reply))
        await asyncio.sleep(0)
        task.cancel()
        connection.close()
        with pytest.raises(asyncio.CancelledError) as ended:
            await task
        assert not isinstance(ended.value, LateReplyError)

    asyncio.run(main())


def test_connection_is_closed_when_its_client_is_dropped_after_its_loop(server):
    async def use() -> Any:
        client = connect(settings=ServerSettings(url=server.url))
        return (await connected(client))._connection

    # The reference keeps redis-py from closing it.
    kept = asyncio.run(use())
    gc.collect()
    assert not kept.is_connected


async def _await(reply: Reply) -> Any:
    return await reply


async def _close(client: Any) -> None:
    async_client(client).close()


def test_calls_travel_through_tls(server, redis, tmp_path):
    """Commands that the socket takes in parts, and replies of more than one record, each to its coroutine."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        inside_reader, inside_writer = await asyncio.open_unix_connection(server.socket)
        try:
            await asyncio.gather(_copy(reader, inside_writer), _copy(inside_reader, writer))
        finally:
            inside_writer.transport.abort()
            writer.transport.abort()

    async def main() -> None:
        front = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = front.sockets[0].getsockname()[1]
        url = f"rediss://localhost:{port}?ssl_ca_certs={tmp_path / 'ca.pem'}"
        far = Client(ServerSettings(url=url, patience_s=120))
        queue = Queue("far", far)
        done = await aenqueue(queue, b"v")
        assert done.action == "added"
        connection = await async_client(far)._connect(far.topology.locate("k"), None)
        texts = [chr(97 + number % 26) * (number * number) for number in range(200)]
        replies = await asyncio.gather(*[_await(sent(connection, text)[0]) for text in texts])
        assert replies == [text.encode() for text in texts]
        await _close(far)
        far.close()
        front.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    serving: list[Any] = []
    asyncio.run(main())


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
