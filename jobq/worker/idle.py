"""Sleeping until a message is ready: a blocking pop of the wake marker, which any signal ends.

The marker is never a job, so losing one with a connection loses no message; whoever stops waiting early
lets the engine's collect push it again.
"""

from __future__ import annotations

import selectors
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from jobq.engine.connection import Client
from jobq.errors import Unavailable

#: After the server's own limit: a connection that died without a word answers never.
GRACE_S = 2.0

if TYPE_CHECKING:
    from redis.connection import Connection


class Sleep:
    """Waits on the wake keys of some queues: one connection, or one per queue on a Cluster."""

    def __init__(self, client: Client, wake_keys: Sequence[str]) -> None:
        self._client = client
        self._groups = [[key] for key in wake_keys] if client.is_cluster else [list(wake_keys)]
        self._waiting: dict[int, Connection] = {}

    def begin(self, seconds: float) -> list[int]:
        """Ask to be woken within so many seconds; the files that become readable then, if all goes well.

        Raises RedisError, OSError or Unavailable.
        """
        for number, group in enumerate(self._groups):
            if number not in self._waiting:
                connection = self._client.open_connection(group[0])
                self._waiting[number] = connection
            self._waiting[number].send_command("BLPOP", *group, f"{max(seconds, 0.001):.3f}")
        return [self._client.fileno(connection) for connection in self._waiting.values()]

    def end(self, ready: Iterable[int]) -> bool:
        """Read what came on these files; whether all waits are over. Else they are dropped."""
        ready = set(ready)
        whole = True
        for number, connection in list(self._waiting.items()):
            try:
                if self._client.fileno(connection) in ready:
                    connection.read_response()
                    continue
            except (RedisError, OSError, Unavailable):
                pass  # it was closed when it couldn't be written to
            whole = False
            connection.disconnect()
            del self._waiting[number]
        return whole

    def wait(self, seconds: float, others: Iterable[int]) -> bool:
        """Sleep; True if woken or the time is over, False if one of `others` became readable."""
        try:
            files = self.begin(seconds)
        except (RedisError, OSError):
            self.end(())
            return True
        with selectors.DefaultSelector() as selector:
            for file in (*files, *others):
                selector.register(file, selectors.EVENT_READ)
            ready = [key.fd for key, _ in selector.select(seconds + GRACE_S)]
        woken = not ready or any(file in files for file in ready)
        self.end(ready)
        return woken
