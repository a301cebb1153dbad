"""What RSMQ's tests share: a clock of their own, a queue, and all that Redis holds, as plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobq.protocols.rsmq import Rsmq

#: Epoch microseconds; in base 36 its first ten characters are `hochb5vvsh`.
BEGINNING_US = 1_795_203_951_424_433


class Clock:
    """The time that scripts are given."""

    def __init__(self) -> None:
        self.us = BEGINNING_US

    def __call__(self) -> int:
        return self.us

    @property
    def ms(self) -> int:
        return self.us // 1000

    def advance(self, seconds: float) -> None:
        self.us += int(seconds * 1_000_000)


@pytest.fixture
def clock() -> Clock:
    """The server's time as these tests set it."""
    return Clock()


@pytest.fixture
def rsmq(client: Any, clock: Clock) -> Rsmq:
    """RSMQ under the tests' clock."""
    return Rsmq(client, clock=clock)


@pytest.fixture
def q(rsmq: Rsmq) -> str:
    """The queue `q`, vt 30 s."""
    rsmq.create_queue("q")
    return "q"


def plain(redis: Any, key: bytes) -> tuple[str, Any]:
    """Type and whole value of a key, as text and numbers."""
    kind = redis.type(key).decode()
    if kind == "hash":
        return kind, {name.decode(): value.decode() for name, value in redis.hgetall(key).items()}
    if kind == "set":
        return kind, {name.decode() for name in redis.smembers(key)}
    assert kind == "zset", (key, kind)
    return kind, [
        (name.decode(), score) for name, score in redis.zrange(key, 0, -1, withscores=True)
    ]


@pytest.fixture
def stored(redis: Any) -> Callable[[], dict[str, tuple[str, Any]]]:
    """stored(): every key of the server with its type and value."""
    return lambda: {key.decode(): plain(redis, key) for key in sorted(redis.keys())}
