"""Shared parts of the engine's tests: a beginning of time, ending an attempt, looking at facts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Message


@pytest.fixture
def at() -> Callable[[int], int]:
    """at(ms): an epoch so long after the test's own beginning of time."""
    return lambda ms: 1_700_000_000_000 + ms


@pytest.fixture
def end() -> Callable[..., str]:
    """end(queue, message, outcome, now=…): finish one attempt; the reply's word."""

    def finish(
        queue: Queue, message: Message, outcome: Any = "done", now: int | None = None, **more: Any
    ) -> str:
        ending = Ending(mid=message.mid, token=message.token, outcome=outcome, **more)
        return queue.finish([ending], now=now).replies[0]

    return finish


@pytest.fixture
def facts(redis: Any) -> Callable[[], dict[bytes, bytes]]:
    """facts(): every key of a queue that doesn't expire, as the bytes of its value."""

    def dump() -> dict[bytes, bytes]:
        return {key: redis.dump(key) for key in sorted(redis.keys("*{*")) if redis.ttl(key) == -1}

    return dump


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


@pytest.fixture
def leftovers(redis: Any) -> Callable[[], set[str]]:
    """leftovers(): keys that don't expire, without meta, events and the wake marker."""

    def names() -> set[str]:
        lasting = {
            key.decode().rpartition(":")[2] for key in redis.keys("*{*") if redis.ttl(key) == -1
        }
        return lasting - {"meta", "events", "wake"}

    return names
