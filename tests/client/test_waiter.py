"""A dequeue behind the wait for a message: sent with it, made by the server once the wait ends."""

from __future__ import annotations

import select
import socket
from typing import Any

import pytest

import jobq
from jobq.chaos.proxy import DOWN, Proxy
from jobq.client.connection import Client, connect, longest_s
from jobq.client.numbered_calls import Caller, NumberedCall
from jobq.client.waiter import LONG_S, WakeWaiter
from jobq.config import ServerSettings
from jobq.queue.queue import Queue
from jobq.queue.types import Dequeued
from tests.waiting import until


@pytest.fixture
def sleep(client: Client, queue: Queue) -> Any:
    made = WakeWaiter(client, [queue.wake_key])
    yield made
    made.end(())


@pytest.fixture
def ahead(queue: Queue) -> NumberedCall[Dequeued]:
    queue.dequeue()  # brings the script to the server
    return queue.dequeue_call(10, lease=15, crash_limit=3, caller=Caller())


def test_message_comes_with_the_wake_when_a_dequeue_waits_behind_it(
    queue: Queue, redis: Any, sleep: WakeWaiter, ahead: NumberedCall[Dequeued]
) -> None:
    files = sleep.begin(30, ahead.sent())
    queue.enqueue(b"v", mid="m")
    redis.config_resetstat()

    assert sleep.end(files)

    [message] = ahead.take(sleep.reply).messages
    assert (message.mid, message.content) == ("m", b"v")
    assert redis.info("commandstats").keys() <= {"cmdstat_config|resetstat"}


def test_nothing_is_handed_out_when_the_wait_ends_by_its_time(
    sleep: WakeWaiter, ahead: NumberedCall[Dequeued]
) -> None:
    assert sleep.wait(0.01, (), ahead.sent())

    dequeued = ahead.take(sleep.reply)
    assert dequeued.messages == []
    assert dequeued.poll_after_ms > 0


def test_wait_ends_by_the_clock_of_its_own_when_nobody_wakes_it(
    sleep: WakeWaiter, redis: Any
) -> None:
    redis.config_resetstat()

    # Servers look only ten times a second whose time is over: the wait itself would end later.
    assert [sleep.wait(0.005, ()) for _ in range(5)] == [True] * 5

    stats = redis.info("commandstats")
    assert stats["cmdstat_client|unblock"]["calls"] > 0
    assert stats["cmdstat_client|id"]["calls"] == 1  # on the one connection that all waits used


def test_wait_ends_by_the_servers_clock_when_its_user_may_not_unblock(
    client: Client, queue: Queue, redis: Any
) -> None:
    redis.acl_setuser(
        "idler", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-client|unblock"]
    )
    scheme, _, rest = client.url.partition("://")
    able = jobq.connect(f"{scheme}://idler:any@{rest}")
    sleep = WakeWaiter(able, [queue.wake_key])
    try:
        assert [sleep.wait(0.005, ()) for _ in range(3)] == [True] * 3
    finally:
        sleep.end(())
        redis.acl_deluser("idler")


def test_call_behind_a_wait_that_ends_early_is_made_and_read(
    queue: Queue, sleep: WakeWaiter, redis: Any
) -> None:
    """A connection that is dropped instead may have it made later, when nobody reads what it hands out."""
    queue.dequeue()  # brings the script to the server
    caller = Caller()
    for _ in range(50):
        ahead = queue.dequeue_call(10, lease=15, crash_limit=3, caller=caller)
        sleep.begin(30, ahead.sent())
        assert sleep.end(())
        assert ahead.take(sleep.reply).messages == []
    queue.enqueue(b"v", mid="m")

    assert redis.info("clients")["blocked_clients"] == 0
    assert [message.mid for message in queue.dequeue().messages] == ["m"]


def test_call_is_made_by_itself_when_a_wait_that_ends_early_is_dropped(
    queue: Queue, sleep: WakeWaiter, ahead: NumberedCall[Dequeued]
) -> None:
    sleep._may_unblock = False
    sleep.begin(30, ahead.sent())
    sleep.end(())
    queue.enqueue(b"v", mid="m")

    assert sleep.reply is None
    assert [message.mid for message in ahead.make().messages] == ["m"]


def test_same_messages_come_again_when_the_reply_behind_a_wake_was_lost(
    queue: Queue, sleep: WakeWaiter, ahead: NumberedCall[Dequeued]
) -> None:
    files = sleep.begin(30, ahead.sent())
    queue.enqueue(b"v", mid="m")
    sleep.end(files)
    [first] = ahead.take(sleep.reply).messages

    [again] = ahead.make().messages

    assert again == first
    assert queue.status("m").attempts == 1


def test_call_is_made_by_itself_when_the_server_lost_its_scripts(
    queue: Queue, redis: Any, sleep: WakeWaiter, ahead: NumberedCall[Dequeued]
) -> None:
    redis.script_flush()
    files = sleep.begin(30, ahead.sent())
    redis.lpush(queue.wake_key, "1")

    assert not sleep.end(files)

    assert sleep.reply is None
    assert ahead.make().poll_after_ms > 0


def open_to(redis: Any) -> set[str]:
    """The ids of the connections to the server but the test's own."""
    own = str(redis.client_id())
    return {each["id"] for each in redis.client_list()} - {own}


def test_wait_and_calls_use_one_connection_when_they_take_turns(server: Any, redis: Any) -> None:
    before = open_to(redis)
    client = connect(server.url)
    sleep = WakeWaiter(client, ["wake"])
    for _ in range(3):
        client.command("PING")
        redis.rpush("wake", "x")
        assert sleep.wait(5.0, ())
    assert sleep.woken == [0]
    assert len(open_to(redis) - before) == 1
    client.close()


def test_calls_may_take_their_usual_time_on_a_connection_that_a_wait_opened(server: Any) -> None:
    client = connect(settings=ServerSettings(url=server.url, patience_s=2, socket_timeout_s=7))
    sleep = WakeWaiter(client, ["wake"])
    assert sleep.wait(0.001, ())
    node, connection = client.borrow("wake")
    assert connection.socket_timeout == 1.0  # a first try leaves time for another
    assert longest_s(connection) == 7
    client.give_back(node, connection)
    client.close()


def test_long_wait_closes_connections_that_calls_left(server: Any, redis: Any) -> None:
    before = open_to(redis)
    client = connect(server.url)
    sleep = WakeWaiter(client, ["wake"])
    files = sleep.begin(LONG_S - 1)
    client.command("PING")  # on a second connection
    assert len(open_to(redis) - before) == 2
    redis.rpush("wake", "x")
    select.select(files, [], [])
    assert sleep.end(files)
    files = sleep.begin(LONG_S)
    until(lambda: len(open_to(redis) - before) == 1)
    redis.rpush("wake", "x")
    select.select(files, [], [])
    assert sleep.end(files) and sleep.woken == [0]
    client.close()


class Breaking(Proxy):
    """Of what is longer than a KB only the first KB arrives; the connection stays open."""

    def forward(self, sink: socket.socket, data: bytes, way: str) -> None:
        super().forward(sink, data[:1024] if way == DOWN else data, way)


def test_call_is_made_by_itself_when_its_reply_breaks_off_and_nothing_is_closed(
    server: Any, queue: Queue, ahead: NumberedCall[Dequeued]
) -> None:
    proxy = Breaking(server.socket)
    url = f"redis://127.0.0.1:{proxy.port}"
    sleep = WakeWaiter(
        connect(settings=ServerSettings(url=url, socket_timeout_s=0.5, patience_s=60)),
        [queue.wake_key],
    )
    files = sleep.begin(30, ahead.sent())
    queue.enqueue(b"v" * 10_000, mid="m")
    select.select(files, [], [])

    assert not sleep.end(files)

    assert sleep.reply is None
    assert [message.mid for message in ahead.make().messages] == ["m"]
    proxy.close()
