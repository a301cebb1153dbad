"""Adds jobs to Ruby's lists without duplicates, and waits until a list has jobs.

To wait, a client makes a blocking move of the list's next job to the same end of the list. That leaves the list
unchanged, so a broken connection can't lose a job.
"""

from __future__ import annotations

import secrets
import selectors
from collections.abc import Sequence

from jobq.client.bound_scripts import bound
from jobq.client.connection import Client
from jobq.client.waiter import GRACE_S, BlockingConnection
from jobq.errors import JobqError
from jobq.protocols.ruby.key_names import RubyQueueName, beside


class ListWaiter:
    """Waits until one of several lists has a job, with one connection per list."""

    def __init__(self, client: Client, ruby_queues: Sequence[RubyQueueName]) -> None:
        self._ruby_queues = ruby_queues
        self._connections = [
            BlockingConnection(client, ruby_queue.list_key) for ruby_queue in ruby_queues
        ]
        #: Lists whose wait hasn't ended.
        self._waiting: set[int] = set()

    def wait(self, seconds: float, others: Sequence[int]) -> None:
        """Wait until a list has a job, until one of `others` becomes readable, or until `seconds` have passed."""
        try:
            files = {
                self._begin(number, seconds): number for number in range(len(self._ruby_queues))
            }
        except JobqError:
            self.close()
            files = {}
        with selectors.DefaultSelector() as selector:
            for file in (*files, *others):
                selector.register(file, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(seconds + (GRACE_S if files else 0))}
        if not ready:
            self.close()
        for file, number in files.items():
            if file in ready:
                self._end(number)

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections:
            connection.close()
        self._waiting.clear()

    def _begin(self, number: int, seconds: float) -> int:
        """Start waiting for a job in a list, unless a wait is pending. Return the connection's file descriptor."""
        connection = self._connections[number]
        if number not in self._waiting:
            key, end = self._ruby_queues[number].list_key, self._ruby_queues[number].oldest
            connection.send(("BLMOVE", key, key, end, end, f"{max(seconds, 0.001):.3f}"))
            self._waiting.add(number)
        return connection.file

    def _end(self, number: int) -> None:
        self._waiting.discard(number)
        try:
            self._connections[number].reply()
        except JobqError:
            pass  # the next claim reports a wrong type, a missing right or a lost connection


def push(client: Client, ruby_queue: RubyQueueName, jobs: Sequence[bytes], once: str = "") -> bool:
    """Add jobs at the end of their queue, in order; return False if this push was already made.

    Args:
        once: Identifies this push for ten minutes, so that a repetition is ignored.
    """
    client.command("SADD", ruby_queue.key("queues"), ruby_queue.queue)
    return append(client, ruby_queue.list_key, ruby_queue.newest, jobs, once)


def append(client: Client, list_key: str, side: str, jobs: Sequence[bytes], once: str = "") -> bool:
    """Add jobs to a list. Return False if an earlier call with the id `once` already added them."""
    mark = beside(list_key, client.namespace, f"pushed:{once or secrets.token_urlsafe(12)}")
    keys = {"target": list_key, "pushed": mark}
    return bool(client.run(*bound("ruby", "push", keys.__getitem__, {"side": side}, jobs)))
