"""The calls of redismq's programs, step by step, for comparison with topics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis
from redis.exceptions import WatchError

import jobq

GROUP = "bench"


class Program:
    """A producer and a consumer like redismq's: a transaction per message, restarted when another client was
    faster."""

    def __init__(self, topic: str, server: redis.Redis) -> None:
        self._server = server
        self._counter, self._position = f"{topic}:nextIndex", f"{topic}:{GROUP}:nextIndex"
        self._messages = f"{topic}:messages:"

    def send(self, content: bytes) -> None:
        """Send a message in four round trips."""
        while True:
            key = f"{self._messages}{self._number(self._counter) + 1}"
            with self._server.pipeline() as steps:
                steps.watch(self._counter, key)
                steps.multi()
                steps.incr(self._counter)
                steps.set(key, content)
                try:
                    steps.execute()
                    return
                except WatchError:
                    continue

    def poll(self) -> bytes | str | None:
        """Receive a message in eight round trips; return None if there is none."""
        while True:
            newest = self._number(self._counter)
            with self._server.pipeline() as steps:
                steps.watch(self._position)
                if newest <= self._number(self._position):
                    return None
                steps.multi()
                steps.incr(self._position)
                try:
                    key = f"{self._messages}{steps.execute()[0]}"
                except WatchError:
                    continue
            if self._server.exists(key):
                return self._server.get(key)

    def _number(self, key: str) -> int:
        return int(self._server.get(key) or 0) if self._server.exists(key) else 0


@contextmanager
def program(topic: str, client: jobq.Client) -> Iterator[Program]:
    """Yield a program with one connection to the client's server."""
    with redis.Redis(unix_socket_path=client.url.removeprefix("unix://")) as server:
        yield Program(topic, server)
