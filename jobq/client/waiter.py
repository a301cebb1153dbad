"""Blocking waits: a separate connection for one blocking command at a time, and waits for the wake markers of queues.

A marker is never a message, so no message is lost if a marker is lost with a connection. When a worker stops waiting
early, `collect` pushes the marker again.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Collection, Hashable, Iterable, Sequence
from time import monotonic
from typing import Any

from redis.connection import Connection
from redis.exceptions import RedisError, ResponseError

from jobq.client.clock import boot_ns
from jobq.client.connection import Client
from jobq.client.numbered_calls import PASSING, error_code
from jobq.client.scripts import Argument, Command, wire
from jobq.errors import JobqError, ScriptError, UnavailableError

#: Error code of a blocking command that a failover or CLIENT UNBLOCK ended.
UNBLOCKED = "UNBLOCKED"
#: Attribute of a connection: its socket, and its id at the server.
_CLIENT_ID = "jobq_client_id"
#: Maximum time to wait after the server's timeout: a connection that died silently never answers.
GRACE_S = 2.0
#: A wait of at least LONG_S may end LATE_S later, because servers check for expired waits ten times a second. Ending
#: such a wait earlier would need a second connection.
LONG_S, LATE_S = 10.0, 0.15
#: Maximum time to wait after the server's timeout if the caller has set a time limit.
SHORT_GRACE_S = 0.5


class BlockingConnection:
    """Sends blocking commands to the node that serves `key`. It connects at the first command.

    Any error closes the connection; the next `send` opens another. Read a reply only after `file` has become readable,
    because a read has the usual timeout.

    Args:
        lent: Use one of the client's connections. After `give_back`, the client's own calls use it again.
    """

    def __init__(self, client: Client, key: str, *, lent: bool = False) -> None:
        self._client, self._key, self._lent = client, key, lent
        self._connection: Connection | None = None
        self._node: Hashable = None
        self._name = ""

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    @property
    def file(self) -> int:
        """The file descriptor that becomes readable when a reply arrives.

        Raises UnavailableError if the connection is closed.
        """
        if self._connection is None:
            raise UnavailableError("the connection was closed")
        return self._client.fileno(self._connection)

    def open(self) -> Connection:
        """Return the connection, which is opened if necessary. Raises UnavailableError."""
        if self._connection is None:
            if self._lent:
                self._node, self._connection = self._client.lend(self._key)
            else:
                self._connection = self._client.open_connection(self._key)
        return self._connection

    def give_back(self) -> None:
        """Let the client's own calls use the connection. The connection must not have pending replies."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._client.give_back(self._node, connection)

    def client_id(self) -> int | None:
        """Return the connection's id at the server; None if the user may not read it. Raises UnavailableError."""
        connection = self.open()
        sock, known = getattr(connection, _CLIENT_ID, (None, None))
        if sock is not connection._sock:
            try:
                self.send(("CLIENT", "ID"))
                known = self.reply()
            except ScriptError:
                known = None
            setattr(connection, _CLIENT_ID, (connection._sock, known))
        return known

    def send(self, *commands: Command) -> None:
        """Send commands together, without reading replies. Raises UnavailableError."""
        first = commands[0]
        self._name = str(first[0]) if isinstance(first, tuple) else "a call"
        try:
            self.open().send_packed_command((b"".join(map(wire, commands)),))
        except (RedisError, OSError) as error:
            self.close()
            raise UnavailableError(f"no connection for a blocking wait: {error}") from error

    def reply(self) -> Any:
        """Read one reply.

        Raises ScriptError if the server rejected the command, and UnavailableError if no reply came.
        """
        if self._connection is None:
            raise UnavailableError("the connection was closed")
        try:
            return self._connection.read_response()
        except (RedisError, OSError, ValueError) as error:
            self.close()
            passes = isinstance(error, PASSING) or error_code(error) == UNBLOCKED
            if isinstance(error, ResponseError) and not passes:
                raise ScriptError(
                    f"the server refused {self._name} {self._key}: {error}"
                ) from error
            raise UnavailableError(f"a blocking wait was interrupted: {error}") from error

    def interrupt(self) -> None:
        """End the wait now, from any thread: `file` becomes readable, and `reply` raises UnavailableError."""
        connection = self._connection
        sock = connection._sock if connection else None
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the socket was already closed

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()


def item_wait(key: str, seconds: float) -> tuple[Argument, ...]:
    """Return the command that waits for the first item of the list at `key`.

    The command removes the item and puts it back in the same place. So the list and its expiry don't change, and all
    waiting clients get the item.
    """
    return "BLMOVE", key, key, "LEFT", "LEFT", f"{max(0.001, seconds):.3f}"


def first_item(client: Client, key: str, seconds: float) -> bytes | None:
    """Wait for the first item of the list at `key` and return it. The item stays in the list.

    Return None if no item came in time, or if the connection broke.
    """
    connection = BlockingConnection(client, key)
    connection.open()
    try:
        connection.send(item_wait(key, seconds))
        polled = select.poll()
        polled.register(connection.file, select.POLLIN)
        item: bytes | None = connection.reply() if polled.poll(1000 * seconds) else None
        return item
    except UnavailableError:
        return None
    finally:
        connection.close()


def lateness(seconds: float) -> float:
    """Return the extra seconds to wait for a reply, because servers end long blocking commands late."""
    return LATE_S if seconds >= LONG_S else 0.0


class WakeWaiter:
    """Waits for the wake markers of some queues on one connection; on a Cluster, on one connection per queue.

    Between waits, the client makes its own calls on that connection, except on a Cluster. So an idle child has one
    connection.

    The number of a queue is its index in `wake_keys`. To wait, call `begin`, and call `end` when one of the file
    descriptors is readable. After a timeout, call `cut_short` before `end`. `wait` does all of this.
    """

    def __init__(self, client: Client, wake_keys: Sequence[str]) -> None:
        self._client = client
        self._keys = list(wake_keys)
        everything = list(range(len(wake_keys)))
        self._groups = [[index] for index in everything] if client.is_cluster else [everything]
        self._waiting: dict[int, BlockingConnection] = {}
        self._ids: dict[int, int] = {}
        self._may_unblock = True
        self._many = len(self._keys) > 1
        self._behind = False
        self._numbers = {key: index for index, key in enumerate(self._keys)}
        #: Queues whose marker came or may have come, so that they may have messages.
        self.woken: list[int] = []
        #: The reply to the command that was pipelined after the last wait; None if there is none.
        self.reply: Any = None
        #: Queues whose server couldn't be reached, each with the time of the attempt (boot_ns).
        self.silent: list[tuple[int, int]] = []

    def begin(
        self,
        seconds: float,
        behind: Command | None = None,
        passed_over: Collection[int] = (),
    ) -> list[int]:
        """Start a wait of at most `seconds`; return the file descriptors that become readable when the wait ends.

        Raises UnavailableError if the only server can't be reached.

        Args:
            behind: A command that the server runs immediately after the wait. Allowed only with a single queue.
            passed_over: Numbers of queues to skip.
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
                wait = ("BLPOP", *keys, f"{max(seconds, 0.001):.3f}")
                self._waiting[number].send(*((wait, behind) if behind is not None else (wait,)))
            except UnavailableError:
                self._drop(number)
                self.silent.append((group[0], asked_at))
                if len(self._groups) == 1:
                    raise
        if seconds >= LONG_S and not self._client.is_cluster:
            self._client.close()  # an idle child needs only the connection of its wait
        return [connection.file for connection in self._waiting.values()]

    def _open(self, number: int, key: str) -> None:
        connection = BlockingConnection(self._client, key, lent=not self._client.is_cluster)
        self._waiting[number] = connection
        if self._may_unblock:
            known = connection.client_id()
            if known is None:
                self._may_unblock = False
            else:
                self._ids[number] = known

    def _drop(self, number: int) -> None:
        connection = self._waiting.pop(number, None)
        if connection is not None:
            connection.close()

    def cut_short(self) -> list[int]:
        """Tell the servers to unblock the waiting connections now. The timeout on the server can be 100 ms late.

        Return the file descriptors of connections that were closed because the server didn't answer.
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
                given_up.append(connection.file)
                self._drop(number)
                self.silent.append((self._groups[number][0], asked_at))
            except JobqError:
                self._may_unblock = False  # UNBLOCK isn't allowed: wait for the server's timeout
        return given_up

    def end(self, ready: Iterable[int]) -> bool:
        """Read replies from these descriptors, and end all other waits. Return False if a connection was closed."""
        ready = set(ready)
        whole = True
        for number, connection in list(self._waiting.items()):
            try:
                if connection.file in ready or self._stopped(number):
                    reply = connection.reply()
                    if self._behind:
                        self.reply = connection.reply()
                    if reply is not None:
                        self._note(number, self._numbers[reply[0].decode()])
                    if not self._client.is_cluster:
                        self._waiting.pop(number).give_back()
                    continue
            except (ScriptError, UnavailableError):
                pass  # the connection was closed, or the server rejected the pipelined command
            whole = False
            # A marker may have been lost with the connection.
            self.woken += self._groups[number]
            self._drop(number)
        return whole

    def _note(self, number: int, index: int) -> None:
        self.woken.append(index)
        if self._many:  # the next wait checks this queue last
            self._groups[number].remove(index)
            self._groups[number].append(index)

    def by_priority(self) -> None:
        """Restore the order of `wake_keys`, so that the next wait checks the first queue first."""
        for group in self._groups:
            group.sort()

    def _stopped(self, number: int) -> bool:
        """Tell the server to end a wait; return whether the server will reply.

        For one queue without a pipelined command, return False, because closing the connection suffices. With a
        pipelined command, closing isn't safe: the server might still run the command after the client has repeated it
        elsewhere. Then nobody would get the fetched messages until their leases end.
        """
        wanted = self._many or self._behind
        if not wanted or not self._may_unblock or number not in self._ids:
            return False
        key, polled = self._keys[self._groups[number][0]], select.poll()
        polled.register(self._waiting[number].file, select.POLLIN)
        # The server may process the unblock before the wait itself.
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
        """Take one wake marker of these queues, without waiting. Return the number of checked queues.

        On a Cluster, take all markers, with one command per queue, and stop after `seconds`.
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
        behind: Command | None = None,
        passed_over: Collection[int] = (),
    ) -> bool:
        """Wait for wake markers; return False if a file descriptor in `others` became readable first."""
        try:
            files = self.begin(seconds, behind, passed_over)
        except UnavailableError:
            self.end(())
            return True
        polled = select.poll()
        for file in (*files, *others):
            polled.register(file, select.POLLIN)
        events = polled.poll(1000 * (seconds + lateness(seconds)))
        if not events:
            for number in self.cut_short():
                polled.unregister(number)
            events = polled.poll(1000 * GRACE_S) if self._waiting else []
        ready = [file for file, _ in events]
        woken = not ready or any(file in files for file in ready)
        self.end(ready)
        return woken
