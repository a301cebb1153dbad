"""A rejection after a lost reply isn't about the first try, so it must not count as the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobq.chaos.proxy import ProxiedConnection, Proxy
from jobq.client.connection import Client, connect
from jobq.config import ServerSettings
from jobq.errors import ServerFullError, UnavailableError
from jobq.queue.queue import Queue


@pytest.fixture
def far(server: Any, redis: Any) -> Iterator[tuple[Client, Proxy]]:
    """A client by way of a proxy."""
    proxy = Proxy(server.socket)
    client = connect(settings=ServerSettings(url=f"redis://127.0.0.1:{proxy.port}", patience_s=5))
    yield client, proxy
    redis.config_set("maxmemory", 0)
    client.close()
    proxy.close()


@pytest.fixture
def full_once_lost(monkeypatch: pytest.MonkeyPatch, redis: Any) -> Callable[[], None]:
    """From the moment at which a reply is lost, the server is full."""
    reset = ProxiedConnection.reset

    def fill_and_reset(pair: ProxiedConnection) -> None:
        redis.config_set("maxmemory", 1)
        reset(pair)

    return lambda: monkeypatch.setattr(ProxiedConnection, "reset", fill_and_reset)


def test_full_at_once_is_told(far, redis):
    queue = Queue("low", far[0])
    queue.enqueue(b"x", mid="a")
    redis.config_set("maxmemory", 1)
    with pytest.raises(ServerFullError):
        queue.enqueue(b"x", mid="b")
    assert queue.status("b").word == "nil"


def test_full_after_a_lost_reply_is_unknown_since_the_message_was_accepted(
    far, redis, queue, full_once_lost
):
    client, proxy = far
    there = Queue("low", client)
    there.enqueue(b"x", mid="a")
    full_once_lost()
    proxy.lose_reply(1)
    with pytest.raises(UnavailableError, match="unknown"):
        there.enqueue(b"x", mid="b")
    assert queue.status("b").word == "queued"
