"""Long polls: ended by a publish, right without one, and never asleep while a message is visible."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from jobq.client.channel import Channel
from jobq.protocols.rsmq import AsyncRsmq, QueueNotFoundError, Rsmq
from jobq.protocols.rsmq.messages import Received
from jobq.protocols.rsmq.steps import MAX_S, Pauses

LONG_S = 60


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls that nothing but a publish ends in time."""
    monkeypatch.setattr("jobq.protocols.rsmq.steps.FIRST_S", LONG_S)
    monkeypatch.setattr("jobq.protocols.rsmq.steps.MAX_S", LONG_S)


def once_subscribed(redis: Any, channel: str, then: Any) -> threading.Thread:
    """Calls `then` in a thread once somebody listens."""

    def wait() -> None:
        while redis.pubsub_numsub(channel)[0][1] == 0:
            time.sleep(0.005)
        then()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.fixture
def plain(client: Any) -> Rsmq:
    rsmq = Rsmq(client, realtime=True)
    rsmq.create_queue("q")
    return rsmq


def test_long_poll_returns_at_once_when_a_message_is_visible(plain, redis):
    plain.send_message("q", "x")
    assert plain.receive_message("q", wait=LONG_S).message == "x"
    assert redis.pubsub_channels() == []


def test_long_poll_is_ended_by_a_publish(plain, redis, slow):
    sender = once_subscribed(redis, "rsmq:rt:q", lambda: plain.send_message("q", "x"))
    assert plain.receive_message("q", wait=LONG_S).message == "x"
    sender.join()


def test_long_poll_sees_what_was_sent_while_it_subscribed(plain, monkeypatch, slow):
    opened = Channel.open

    def open_late(channel: Channel) -> int | None:
        plain.send_message("q", "x")
        return opened(channel)

    monkeypatch.setattr(Channel, "open", open_late)
    assert plain.receive_message("q", wait=LONG_S).message == "x"


def test_long_poll_finds_what_was_sent_without_realtime(client, plain, redis):
    silent = Rsmq(client)
    sender = once_subscribed(redis, "rsmq:rt:q", lambda: silent.send_message("q", "x"))
    assert plain.receive_message("q", wait=LONG_S).message == "x"
    sender.join()


def test_long_poll_ends_with_nothing_when_nothing_comes(plain, redis):
    assert plain.receive_message("q", wait=0.05) is None
    assert plain.receive_message("q", wait="50ms") is None
    assert redis.zcard("rsmq:q") == 0


def test_long_poll_is_woken_when_a_hidden_message_becomes_visible(plain, slow):
    plain.send_message("q", "x", delay=1)
    assert plain.receive_message("q", wait=LONG_S).message == "x"


def test_long_poll_works_where_subscribing_is_forbidden(server, redis, plain):
    redis.execute_command("ACL", "SETUSER", "deaf", "on", "nopass", "+@all", "~*", "resetchannels")
    try:
        deaf = Rsmq(server.url.replace("unix://", "unix://deaf:x@"))
        sender = threading.Thread(target=plain.send_message, args=("q", "x"))
        sender.start()
        assert deaf.receive_message("q", wait=LONG_S).message == "x"
        sender.join()
        deaf.close()
    finally:
        redis.execute_command("ACL", "DELUSER", "deaf")


def test_long_poll_of_an_unknown_queue_is_refused_at_once(plain):
    with pytest.raises(QueueNotFoundError):
        plain.receive_message("unknown", wait=LONG_S)


def test_poll_outlives_its_subscription(plain, redis):
    def cut_and_send() -> None:
        redis.client_kill_filter(_type="pubsub")
        plain.send_message("q", "x")

    sender = once_subscribed(redis, "rsmq:rt:q", cut_and_send)
    assert plain.receive_message("q", wait=LONG_S).message == "x"
    sender.join()


def test_async_long_poll_is_ended_by_a_publish(client, plain, redis, slow):
    async def both() -> str:
        rsmq = AsyncRsmq(client, realtime=True)
        look = asyncio.create_task(rsmq.receive_message("q", wait=LONG_S))
        while not redis.pubsub_numsub("rsmq:rt:q")[0][1]:
            await asyncio.sleep(0.005)
        await rsmq.send_message("q", "x")
        found = await look
        assert found is not None
        return found.message

    assert asyncio.run(both()) == "x"


def test_async_long_poll_ends_with_nothing_when_nothing_comes(client, plain):
    rsmq = AsyncRsmq(client)
    assert asyncio.run(rsmq.receive_message("q", wait=0.05)) is None


def test_pauses_grow_to_a_second_and_end_with_the_wait():
    patience = Pauses(1_000)
    pauses = [patience.next_s(Received([])) for _ in range(10)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.05 and pauses[-1] == MAX_S
    assert Pauses(0).next_s(Received([])) == 0


def test_pause_is_no_longer_than_until_the_next_message_is_visible():
    assert Pauses(1_000).next_s(Received([], next_s=0.003)) == 0.003
