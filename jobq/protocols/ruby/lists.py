"""Sleeping until a Ruby list holds something, without taking anything.

A blocking move of the next job onto its own ruby_queue: it wakes as soon as there is one, and changes nothing, so a
connection that dies meanwhile costs no job. One connection per list.
"""

from __future__ import annotations

import secrets
import selectors
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobq.client.numbered_calls import PASSING
from jobq.client.scripts import load
from jobq.errors import JobqError
from jobq.protocols.ruby.key_names import RubyQueueName, beside

if TYPE_CHECKING:
    from jobq.client.connection import Client

#: After the server's own limit: a connection that died without a word answers never.
GRACE_S = 2.0


class ListWaiter:
    """Waits until one of several lists holds something; one connection per list."""

    def __init__(self, client: Client, ruby_queues: Sequence[RubyQueueName]) -> None:
        self._client, self._ruby_queues = client, ruby_queues
        self._waiting: dict[int, Any] = {}
        self._spare: dict[int, Any] = {}

    def wait(self, seconds: float, others: Sequence[int]) -> None:
        """Until a list holds something, one of `others` becomes readable, or the time is over."""
        try:
            files = [self._ask(number, seconds) for number in range(len(self._ruby_queues))]
        except (*PASSING, JobqError):
            self.close()
            files = []
        with selectors.DefaultSelector() as selector:
            for file in (*files, *others):
                selector.register(file, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(seconds + (GRACE_S if files else 0))}
        if not ready:
            self.close()
        for number, connection in list(self._waiting.items()):
            self._answered(number, connection, ready)

    def close(self) -> None:
        """Drop every connection."""
        for connection in (*self._waiting.values(), *self._spare.values()):
            connection.disconnect()
        self._waiting.clear()
        self._spare.clear()

    def _ask(self, number: int, seconds: float) -> int:
        """Begin one wait, unless it goes on still."""
        if number not in self._waiting:
            ruby_queue = self._ruby_queues[number]
            connection = self._spare.pop(number, None)
            connection = connection or self._client.open_connection(ruby_queue.list_key)
            key, end = ruby_queue.list_key, ruby_queue.oldest
            connection.send_command("BLMOVE", key, key, end, end, f"{max(seconds, 0.001):.3f}")
            self._waiting[number] = connection
        return self._client.fileno(self._waiting[number])

    def _answered(self, number: int, connection: Any, ready: set[int]) -> None:
        try:
            if self._client.fileno(connection) not in ready:
                return
            del self._waiting[number]
            connection.read_response()
            self._spare[number] = connection
        except Exception:  # no list, no right, no connection: the next claim says which
            connection.disconnect()
            self._waiting.pop(number, None)


def push(client: Client, ruby_queue: RubyQueueName, jobs: Sequence[bytes], once: str = "") -> bool:
    """Make jobs the newest of their queue, in their order; False if that was done before.

    once: names this push for ten minutes, so that whoever repeats it adds nothing.
    """
    client.command("SADD", ruby_queue.key("queues"), ruby_queue.queue)
    return append(client, ruby_queue.list_key, ruby_queue.newest, jobs, once)


def append(client: Client, list_key: str, side: str, jobs: Sequence[bytes], once: str = "") -> bool:
    """The same for any list."""
    mark = beside(list_key, client.namespace, f"pushed:{once or secrets.token_urlsafe(12)}")
    return bool(client.run(load("ruby", "push"), [list_key, mark], [side, *jobs]))
