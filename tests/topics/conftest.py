"""What the topic tests share: a topic, a beginning of time, facts of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobq.client.runtime import runtime
from jobq.topics import Topic


@pytest.fixture
def topic(client: Any) -> Topic:
    """The topic `orders` on an emptied server."""
    runtime.listed_topics.clear()
    return Topic("orders", client)


@pytest.fixture
def at() -> Callable[[int], int]:
    """at(ms): an epoch so long after the test's own beginning of time."""
    return lambda ms: 1_700_000_000_000 + ms


@pytest.fixture
def facts(redis: Any) -> Callable[[], dict[bytes, bytes]]:
    """facts(): every key that doesn't expire, as the bytes of its value."""

    def dump() -> dict[bytes, bytes]:
        return {key: redis.dump(key) for key in sorted(redis.keys("*")) if redis.ttl(key) == -1}

    return dump


@pytest.fixture
def contents() -> Callable[[Any], list[bytes | None]]:
    """contents(batch or messages): what they say, in order."""

    def listed(messages: Any) -> list[bytes | None]:
        return [message.content for message in getattr(messages, "messages", messages)]

    return listed


@pytest.fixture
def commands(redis: Any) -> Callable[[Callable[[], Any]], int]:
    """commands(call): how many commands the server ran inside the scripts that `call` called."""

    def count(call: Callable[[], Any]) -> int:
        redis.config_resetstat()
        call()
        ran = redis.info("commandstats")
        outside = ("evalsha", "script", "config", "info", "ping", "hello", "client", "select")
        return sum(
            stat["calls"]
            for name, stat in ran.items()
            if not name.removeprefix("cmdstat_").startswith(outside)
        )

    return count
