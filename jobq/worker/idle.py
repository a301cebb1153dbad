"""Sleeping until a message is ready: a blocking pop of the wake marker, which any signal ends.

The marker is never a job, so losing one with a connection loses no message; whoever stops waiting early
lets the engine's collect push it again.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError, ResponseError

from jobq.engine.connection import Argument, Client, exchange, packed
from jobq.errors import JobqError, Unavailable

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
        self._ids: dict[int, int] = {}
        self._may_unblock = True
        self._behind = False
        #: To the command behind the wait that `end` ended, if that was sent and answered.
        self.reply: Any = None

    def begin(self, seconds: float, behind: tuple[Argument, ...] | None = None) -> list[int]:
        """Ask to be woken within so many seconds; the files that become readable then, if all goes well.

        behind: a command that the server carries out as soon as the wait is over; only where there is one
        queue. Raises RedisError, OSError or Unavailable.
        """
        self._behind, self.reply = behind is not None, None
        for number, group in enumerate(self._groups):
            if number not in self._waiting:
                self._open(number, group[0])
            words = packed(("BLPOP", *group, f"{max(seconds, 0.001):.3f}"))
            if behind is not None:
                words += packed(behind)
            self._waiting[number].send_packed_command((words,))
        return [self._client.fileno(connection) for connection in self._waiting.values()]

    def _open(self, number: int, key: str) -> None:
        # A reply that breaks off halfway must not hold the child for ever.
        connection = self._client.open_connection(key, blocking=False)
        self._waiting[number] = connection
        try:
            self._ids[number] = exchange(connection, ("CLIENT", "ID"))
        except ResponseError:
            self._may_unblock = False

    def cut_short(self) -> None:
        """Have the server end the waits now: by itself it looks only every 100 ms whose time is over."""
        for number, group in enumerate(self._groups):
            if not (self._may_unblock and number in self._waiting):
                return
            try:
                self._client.command("CLIENT", "UNBLOCK", self._ids[number], routed_by=group[0])
            except Unavailable:
                return
            except JobqError:
                self._may_unblock = False  # this user may not: the server's own time must do

    def end(self, ready: Iterable[int]) -> bool:
        """Read what came on these files; whether all waits are over. Else they are dropped."""
        ready = set(ready)
        whole = True
        for number, connection in list(self._waiting.items()):
            try:
                if self._client.fileno(connection) in ready:
                    connection.read_response()
                    if self._behind:
                        self.reply = connection.read_response()
                    continue
            except (RedisError, OSError, Unavailable):
                pass  # it was closed when it couldn't be written to
            whole = False
            connection.disconnect()
            del self._waiting[number]
        return whole

    def wait(
        self, seconds: float, others: Iterable[int], behind: tuple[Argument, ...] | None = None
    ) -> bool:
        """Sleep; True if woken or the time is over, False if one of `others` became readable."""
        try:
            files = self.begin(seconds, behind)
        except (RedisError, OSError):
            self.end(())
            return True
        polled = select.poll()
        for file in (*files, *others):
            polled.register(file, select.POLLIN)
        found = polled.poll(1000 * seconds)
        if not found:
            self.cut_short()
            found = polled.poll(1000 * GRACE_S)
        ready = [file for file, _ in found]
        woken = not ready or any(file in files for file in ready)
        self.end(ready)
        return woken
