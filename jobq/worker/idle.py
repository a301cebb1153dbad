"""Sleeping until a message is ready: a blocking pop of the wake marker, which any signal ends.

The marker is never a job, so losing one with a connection loses no message; whoever stops waiting early
lets the engine's collect push it again.
"""

from __future__ import annotations

import select
from collections.abc import Collection, Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError, ResponseError

from jobq.client.connection import Argument, Client, exchange, packed
from jobq.errors import JobqError, UnavailableError
from jobq.worker.clock import boot_ns

#: After the server's own limit: a connection that died without a word answers never.
GRACE_S = 2.0

if TYPE_CHECKING:
    from redis.connection import Connection


class Sleep:
    """Waits on the wake keys of some queues: one connection, or one per queue on a Cluster."""

    def __init__(self, client: Client, wake_keys: Sequence[str]) -> None:
        self._client = client
        self._keys = list(wake_keys)
        everything = list(range(len(wake_keys)))
        self._groups = [[index] for index in everything] if client.is_cluster else [everything]
        self._waiting: dict[int, Connection] = {}
        self._ids: dict[int, int] = {}
        self._may_unblock = True
        self._many = len(self._keys) > 1
        self._behind = False
        self._numbers = {key: index for index, key in enumerate(self._keys)}
        #: Queues that a marker was got for, or may have been: they are to be asked.
        self.woken: list[int] = []
        #: To the command behind the wait that `end` ended, if that was sent and answered.
        self.reply: Any = None
        #: Queues whose server couldn't be asked, and when it was (boot_ns).
        self.silent: list[tuple[int, int]] = []

    def begin(
        self,
        seconds: float,
        behind: tuple[Argument, ...] | None = None,
        passed_over: Collection[int] = (),
    ) -> list[int]:
        """Ask to be woken within so many seconds; the files that become readable then, if all goes well.

        behind: a command that the server carries out as soon as the wait is over; only where there is one
        queue. passed_over: queues not to wait for. Raises RedisError, OSError or UnavailableError where nobody can
        be asked.
        """
        self._behind, self.reply = behind is not None, None
        self.woken.clear()
        for number, group in enumerate(self._groups):
            keys = [self._keys[index] for index in group if index not in passed_over]
            if not keys:
                self._drop(number)
                continue
            asked_at = boot_ns()
            try:
                if number not in self._waiting:
                    self._open(number, keys[0])
                words = packed(("BLPOP", *keys, f"{max(seconds, 0.001):.3f}"))
                if behind is not None:
                    words += packed(behind)
                self._waiting[number].send_packed_command((words,))
            except (RedisError, OSError, UnavailableError):
                self._drop(number)
                self.silent.append((group[0], asked_at))
                if len(self._groups) == 1:
                    raise
        return [self._client.fileno(connection) for connection in self._waiting.values()]

    def _open(self, number: int, key: str) -> None:
        # A reply that breaks off halfway must not hold the child for ever.
        connection = self._client.open_connection(key, blocking=False)
        self._waiting[number] = connection
        try:
            self._ids[number] = exchange(connection, ("CLIENT", "ID"))
        except ResponseError:
            self._may_unblock = False

    def _drop(self, number: int) -> None:
        connection = self._waiting.pop(number, None)
        if connection is not None:
            connection.disconnect()

    def cut_short(self) -> list[int]:
        """Have the server end the waits now: by itself it looks only every 100 ms whose time is over.

        The files of those waits whose server doesn't answer: they are given up.
        """
        given_up = []
        for number, connection in list(self._waiting.items()):
            if not self._may_unblock:
                break
            asked_at = boot_ns()
            key = self._keys[self._groups[number][0]]
            try:
                self._client.command("CLIENT", "UNBLOCK", self._ids[number], routed_by=key)
            except UnavailableError:
                given_up.append(self._client.fileno(connection))
                self._drop(number)
                self.silent.append((self._groups[number][0], asked_at))
            except JobqError:
                self._may_unblock = False  # this user may not: the server's own time must do
        return given_up

    def end(self, ready: Iterable[int]) -> bool:
        """Read what came on these files, and end the other waits; whether that went well. Else they are dropped."""
        ready = set(ready)
        whole = True
        for number, connection in list(self._waiting.items()):
            try:
                if self._client.fileno(connection) in ready or self._stopped(number):
                    reply = connection.read_response()
                    if self._behind:
                        self.reply = connection.read_response()
                    if reply is not None:
                        self._note(number, self._numbers[reply[0].decode()])
                    continue
            except (RedisError, OSError, UnavailableError):
                pass  # it was closed when it couldn't be written to
            whole = False
            # A marker may have been on its way.
            self.woken += self._groups[number]
            self._drop(number)
        return whole

    def _note(self, number: int, index: int) -> None:
        """Its marker is the last to be taken next time: one queue's markers without end hide no other's."""
        self.woken.append(index)
        if self._many:
            self._groups[number].remove(index)
            self._groups[number].append(index)

    def by_priority(self) -> None:
        """Take the first queue's marker first again."""
        for group in self._groups:
            group.sort()

    def _stopped(self, number: int) -> bool:
        """Whether the server ended this wait, so that its reply comes now."""
        if not self._many or not self._may_unblock or number not in self._ids:
            return False
        key, polled = self._keys[self._groups[number][0]], select.poll()
        polled.register(self._client.fileno(self._waiting[number]), select.POLLIN)
        # It may hear of the end of the wait before it hears of the wait.
        for pause_ms in (0, 0, 1, 5, 20, 100):
            try:
                if self._client.command("CLIENT", "UNBLOCK", self._ids[number], routed_by=key):
                    return True
            except JobqError:
                return False
            if polled.poll(pause_ms):
                return True
        return False

    def look(self, asleep: Sequence[int], seconds: float) -> int:
        """Take a marker of these queues if one is there, without waiting; how many of them were looked at.

        On a Cluster that is a command for each, and as many are looked at as so much time allows.
        """
        if not self._client.is_cluster:
            keys = [self._keys[index] for index in asleep]
            reply = self._client.command("LMPOP", len(keys), *keys, "LEFT", routed_by=keys[0])
            if reply is not None:
                self.woken.append(self._numbers[reply[0].decode()])
            return len(asleep)
        until = monotonic() + seconds
        for nlooked, index in enumerate(asleep, 1):
            if self._client.command("LPOP", self._keys[index]) is not None:
                self.woken.append(index)
            if monotonic() >= until:
                return nlooked
        return len(asleep)

    def wait(
        self,
        seconds: float,
        others: Iterable[int],
        behind: tuple[Argument, ...] | None = None,
        passed_over: Collection[int] = (),
    ) -> bool:
        """Sleep; True if woken or the time is over, False if one of `others` became readable."""
        try:
            files = self.begin(seconds, behind, passed_over)
        except (RedisError, OSError, UnavailableError):
            self.end(())
            return True
        polled = select.poll()
        for file in (*files, *others):
            polled.register(file, select.POLLIN)
        found = polled.poll(1000 * seconds)
        if not found:
            for number in self.cut_short():
                polled.unregister(number)
            found = polled.poll(1000 * GRACE_S) if self._waiting else []
        ready = [file for file, _ in found]
        woken = not ready or any(file in files for file in ready)
        self.end(ready)
        return woken
