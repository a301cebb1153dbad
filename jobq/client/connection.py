"""The blocking client: it sends one call at a time to the right node, and repeats the call while that can help.

Almost all calls are safe to repeat, because scripts record the number of their caller's last call. So a lost
connection, a failover or a restart only costs time. `numbered_calls` decides what is repeated and for how long; this
module does the I/O. redis-py's own retries are off, because they would also repeat calls that must not be repeated.
"""

from __future__ import annotations

import os
import select
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

from redis import exceptions as redis_errors
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.connection import Connection

from jobq.client.functions import called, called_by_sha
from jobq.client.names import checked_name
from jobq.client.numbered_calls import (
    AGAIN,
    FAILED,
    FIRST_PAUSE_S,
    GENERAL,
    LOST,
    MAX_PAUSE_S,
    PASSING,
    CallState,
    Following,
    ScriptCall,
    first_try_s,
    gave_up,
    reply_lost,
)
from jobq.client.runtime import runtime
from jobq.client.scripts import Argument, Command, Script, packed, wire, words_packed
from jobq.client.topology import Cluster, Topology, topology
from jobq.config import ServerSettings, settings_from_env
from jobq.errors import ConfigError, UnavailableError, masked

T = TypeVar("T")
#: Sends one command on a connection and returns the reply. If the last argument is True, it sends ASKING first.
Exchange = Callable[[Connection, Command, bool], Any]

_KEYLESS = frozenset(
    ("ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "INFO", "PING", "SCRIPT", "TIME", "WAITAOF")
)  # fmt: skip
#: A command up to this size is sent whole within one time limit; each part of a larger command has that limit.
SENT_AT_ONCE = 65_536
#: Minimum time for a try, even if less time is left for the call.
MIN_WAIT_S = 0.05
#: A connection that answered less than this time ago isn't checked before the next command.
BUSY_S = 0.0001
#: After this time without traffic, the peer of a connection may be gone without having closed it.
IDLE_S = 1.0
_ANSWERED_AT = "jobq_answered_at"
#: Attribute of a connection: the longest time that a reply may take. A first try waits less.
_TIMEOUT_S = "jobq_timeout_s"
_ASKING = packed(("ASKING",))
PING = packed(("PING",))
#: Number of words before the keys of a call by hash or function: the verb, the name and the number of keys.
WORDS_BEFORE_KEYS = 3
#: Maximum number of prepared call prefixes per client.
MAX_HEADS = 1_000


class AttachedBuffer(Protocol):
    """The interface of the outage buffer that the queue layer attaches to a client."""

    nmessages: int

    @property
    def enqueue(self) -> Callable[..., Any]:
        """The function that sends an enqueue call, or keeps the call until the server is back."""
        ...

    def flush(self, within_s: float | None = None) -> None:
        """Wait until the buffer is empty."""
        ...

    def close(self) -> None:
        """Close idle connections."""
        ...

    def forget(self) -> None:
        """Drop all waiting messages in a forked child, because the parent process sends them."""
        ...


class Client:
    """Makes calls to one deployment, in one namespace. Threads and forked children may share it."""

    def __init__(self, settings: ServerSettings, clock: Callable[[], int] | None = None) -> None:
        """Create a client, which connects at its first call.

        Args:
            clock: Returns the time for scripts in epoch ms, for tests. By default, it is the server's clock.
        """
        self.settings = settings
        self.clock = clock
        self.namespace = checked_name("namespace", settings.namespace)
        #: Knows which node serves a key.
        self.topology: Topology = topology(settings)
        #: Known facts about the nodes, shared by all clients of this process.
        self.nodes = self.topology.nodes_known
        # The URL is read now, so that a bad URL raises an error here.
        self.url = settings.url or str(self.topology.locate(""))
        self.patience_s = settings.patience_s
        self.socket_timeout_s = settings.socket_timeout_s
        self.is_cluster = isinstance(self.topology, Cluster)
        #: Returns the first two words of a call of a script.
        self.verb = called if settings.functions else called_by_sha
        #: Default durability of enqueues.
        self.durability = settings.durability
        #: The outage buffer. The queue layer sets it if the settings enable one.
        self.outage: AttachedBuffer | None = None
        #: Called while a call waits for the server; True ends the wait with UnavailableError.
        self.should_give_up: Callable[[], bool] = bool
        #: Queues that all senders of this process share, by name. The queue layer fills it.
        self.queues: dict[str, Any] = {}
        #: The asyncio client of each event loop; see `aio.async_client`.
        self.of_loops: dict[Any, Any] = {}
        self._idle: defaultdict[Hashable, list[Connection]] = defaultdict(list)
        self._heads: dict[tuple[Script, tuple[str, ...]], bytes] = {}
        runtime.clients.add(self)

    def __repr__(self) -> str:
        return f"Client({masked(self.url)!r}, namespace={self.namespace!r})"

    def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Argument],
        by: Exchange | None = None,
    ) -> Any:
        """Call a script that is harmless to repeat; return the raw reply.

        Raises UnavailableError, ServerFullError or ScriptError.
        """
        state = CallState(self, self.words(script, keys, args), script)
        return self.perform(keys[0] if keys else "", state, by)

    def ask(self, call: ScriptCall[T], by: Exchange | None = None) -> T:
        """Make a call and return its result.

        Raises UnavailableError, ServerFullError, ScriptError, or an error of the call's `read`.

        Args:
            by: See `perform`.
        """
        by = by or (exchange if call.repeatable else exchange_once)
        while True:
            state = CallState(self, self.words(call.script, call.keys, call.args), call.script)
            reply = self.perform(call.keys[0] if call.keys else "", state, by)
            if not reply or reply[0] != AGAIN:
                return call.read(reply)

    def words(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> bytes:
        """Return the packed command that calls a script. Script names and keys are packed once and then cached."""
        keys = tuple(keys)
        head = self._heads.get((script, keys))
        if head is None:
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            head = words_packed((*self.verb(script), len(keys), *keys))
            self._heads[script, keys] = head
        tail = packed(tuple(args))
        nwords = WORDS_BEFORE_KEYS + len(keys) + len(args)
        return b"*%d\r\n%b%b" % (nwords, head, tail[tail.index(b"\n") + 1 :])

    def command(self, *args: Argument, routed_by: str | None = None) -> Any:
        """Run one plain command that is harmless to repeat; return the raw reply.

        Args:
            routed_by: The command's key, if the key isn't the command's first argument.
        """
        key = routed_by
        if key is None:
            key = "" if str(args[0]).upper() in _KEYLESS else str(args[1])
        return self.perform(key, CallState(self, args))

    def is_lost(self, error: BaseException) -> bool:
        """Return whether an error shows that the only server is unreachable, so that no other read can succeed."""
        return isinstance(error, UnavailableError) and not self.is_cluster

    def clock_ms(self, near: str = "") -> int:
        """Return the time by the server's clock, in epoch ms.

        Args:
            near: A key. In a Cluster, the clock of the node that serves this key is read.
        """
        if self.clock is not None:
            return self.clock()
        seconds, microseconds = self.command("TIME", routed_by=near or None)
        return int(seconds) * 1000 + int(microseconds) // 1000

    def perform(self, key: str, state: CallState, by: Exchange | None = None) -> Any:
        """Make one call on the node that serves `key`, repeat the call if necessary, and return the raw reply.

        Args:
            by: Function that sends a command and reads its reply, instead of the client's own function.
        """
        by = by or exchange
        load = opened = False
        while True:
            node: Hashable | None = None
            connection: Connection | None = None
            try:
                node = state.redirect or self.nodes.node or self.topology.locate(key)
                idle = self._idle[node]
                try:
                    connection = idle.pop()
                except IndexError:
                    connection, opened = self._open(node, state.left_s), True
                if connection._sock is None:
                    connection.connect()
                if load and state.script is not None:
                    exchange(connection, ("SCRIPT", "LOAD", state.script.source))
                state.sending()
                reply = by(connection, state.command, state.redirect is not None)
            except FAILED as error:
                if connection is not None:
                    self._take_back(node, connection, opened, error)
                load = self._prepare(state.failed(error), node, error)
                opened = False
            else:
                if opened:
                    self._settle(connection)
                idle.append(connection)
                if state.general is not None and reply[0] == GENERAL:
                    return self.perform(key, state.as_general(), by)
                return reply

    def borrow(self, key: str) -> tuple[Hashable, Connection]:
        """Return the node that serves `key`, and an open connection to it for the caller alone, until `give_back`."""
        node = self.nodes.node or self.topology.locate(key)
        try:
            connection = self._idle[node].pop()
        except IndexError:
            connection = self._open(node, None)
            connection.connect()
            self._settle(connection)
        if connection._sock is None:
            connection.connect()
        return node, connection

    def give_back(self, node: Hashable, connection: Connection) -> None:
        """Put a connection from `borrow` or `lend` back into the pool. All its replies must have been read."""
        self._idle[node].append(connection)

    def lend(self, key: str) -> tuple[Hashable, Connection]:
        """Return the node that serves `key`, and a connection to it for the caller alone, until `give_back`.

        Like `open_connection`, this waits for the server if a new connection is needed.
        """
        node = self.nodes.node
        idle = self._idle[node] if node is not None else []
        while idle:
            connection = idle.pop()
            if connection._sock is not None:
                return node, connection
        node, connection = self._open_separate(key)
        self._settle(connection)
        return node, connection

    def open_connection(self, key: str) -> Connection:
        """Return a separate connection to the node that serves `key`, for blocking commands.

        The caller must disconnect the connection. Wait until it is readable before you read, because reads time out.
        """
        return self._open_separate(key)[1]

    def _open_separate(self, key: str) -> tuple[Hashable, Connection]:
        deadline, pause = time.monotonic() + self.patience_s, 0.0
        while True:
            node: Hashable | None = None
            try:
                node = self.topology.locate(key)
                connection = self._open(node, None)
                connection.connect()
                return node, connection
            except PASSING as error:
                self.topology.forget(node)
                final = gave_up(error, self, deadline, unknown=False)
                if final is not None:
                    raise final from error
                time.sleep(pause)
                pause = min(MAX_PAUSE_S, max(FIRST_PAUSE_S, pause * 2))

    def open_everywhere(self) -> Iterator[Connection]:
        """Return a new connection for each node that serves keys; the caller connects and disconnects it."""
        return map(self.topology.open, self.topology.nodes())

    def shares_node(self, key: str, other: str) -> bool:
        """Return whether the same node served both keys in this process's last calls for them."""
        home = self.topology.last_home(key)
        return home is not None and home == self.topology.last_home(other)

    def look_again(self) -> None:
        """Look up the node again before the next call. A failover may have replaced the known node."""
        self.topology.forget()

    def fileno(self, connection: Connection) -> int:
        """Return the file descriptor of an open connection, for `select`."""
        sock = connection._sock
        if sock is None:
            raise UnavailableError("the connection was closed")
        return int(sock.fileno())

    @property
    def nbuffered(self) -> int:
        """Number of waiting messages in the outage buffer."""
        return self.outage.nmessages if self.outage else 0

    def flush(self, within_s: float | None = None) -> None:
        """Wait until the outage buffer is empty, by default for JOBQ_PATIENCE or 10 s, whichever is longer.

        Raises UnavailableError if the buffer isn't empty by then, or if an outage was so long that the outcome of some
        messages is unknown. The error's `mids` lists the messages with an unknown outcome. A process that exits
        normally flushes its buffers.
        """
        if self.outage:
            self.outage.flush(within_s)

    def close(self) -> None:
        """Close all connections; the next call opens a new connection."""
        if self.outage:
            self.outage.close()
        idle, self._idle = self._idle, defaultdict(list)
        for connections in idle.values():
            for connection in connections:
                connection.disconnect()

    def abandon(self) -> None:
        """Close the parent's connections in a forked child, without sending anything."""
        if self.outage:
            self.outage.forget()
        self.of_loops = {}
        self.close()  # redis-py doesn't shut down a socket that another process opened

    def _open(self, node: Hashable, left_s: float | None) -> Connection:
        """Return a new connection, which waits for each reply at most `left_s` if that is given."""
        connection = self.topology.open(node)
        usual_s = connection.socket_timeout or self.socket_timeout_s
        setattr(connection, _TIMEOUT_S, usual_s)
        if left_s is not None and left_s < usual_s:
            _wait_at_most(connection, max(MIN_WAIT_S, left_s))
        return connection

    def try_s(self, connection: Connection) -> float:
        """Return how long a first try may take on a connection that was used before."""
        return first_try_s(self.patience_s, longest_s(connection) or self.socket_timeout_s)

    def _settle(self, connection: Connection) -> None:
        """Limit how long later calls wait on this connection, so that they can still try another connection."""
        _wait_at_most(connection, self.try_s(connection))

    def _take_back(
        self, node: Hashable, connection: Connection, opened: bool, error: Exception
    ) -> None:
        """Keep the connection of a failed try if the server answered the try; else close the connection."""
        if not isinstance(error, redis_errors.ResponseError):
            connection.disconnect()
            return
        if opened:
            self._settle(connection)
        self._idle[node].append(connection)

    def _prepare(self, following: Following, node: Hashable | None, error: Exception) -> bool:
        """Prepare the next try; return whether to load the script first. Raises the final error if there is one."""
        if following.forget:
            self.topology.forget(node if following.silent else None)
        if following.close:
            for connection in self._idle.pop(node, []):
                connection.disconnect()
        if following.error is not None:
            raise following.error from error
        time.sleep(following.pause_s)
        return following.load


def exchange(connection: Connection, command: Command, asking: bool = False) -> Any:
    """Send one command and return its reply. If that fails without an answer, close the connection."""
    try:
        if asking:
            send(connection, _ASKING)
            receive(connection)
        sock = connection._sock
        if sock is None:
            raise redis_errors.ConnectionError("the connection was closed")
        # This bypasses redis-py's layers, which would examine every argument again.
        data = command if isinstance(command, bytes) else packed(command)
        if len(data) > SENT_AT_ONCE:
            send(connection, data)
        else:
            sock.sendall(data)
        parser: Any = connection._parser
        reader, buffer = parser._reader, parser._buffer
        # A reply usually arrives in one piece. If nothing was read, `receive` reports the closed connection.
        reader.feed(buffer, 0, sock.recv_into(buffer))
        reply = reader.gets()
        if reply is NOT_ENOUGH_DATA:
            return receive(connection)
        if isinstance(reply, Exception):
            raise reply
        return reply
    except redis_errors.ResponseError:
        raise
    except BaseException:
        # The exchange is incomplete, so the next call would read this call's reply.
        connection.disconnect()
        raise


def exchange_once(connection: Connection, command: Command, asking: bool = False) -> Any:
    """Send one command that must not be repeated, and return its reply.

    Raises UnavailableError if the whole command was sent but no reply came.
    """
    try:
        ensure_open(connection)
        if asking:
            send(connection, _ASKING)
            receive(connection)
        send(connection, wire(command))
    except redis_errors.ResponseError:
        raise
    except BaseException:
        connection.disconnect()
        raise
    try:
        reply = receive_patiently(connection)
        answered(connection)
        return reply
    except (redis_errors.ResponseError, redis_errors.BusyLoadingError):
        raise
    except LOST as error:
        connection.disconnect()
        raise reply_lost(error) from error
    except BaseException:
        connection.disconnect()
        raise


def send(connection: Connection, command: bytes) -> None:
    """Send one command. Raises a connection error, see `LOST`, if the connection is broken."""
    sock = connection._sock
    if sock is None:
        raise redis_errors.ConnectionError("the connection was closed")
    if len(command) <= SENT_AT_ONCE:
        sock.sendall(command)
        return
    # `sendall` has one time limit for the whole command, which a slow line would exceed.
    left = memoryview(command)
    while left:
        left = left[sock.send(left) :]


def receive(connection: Connection) -> Any:
    """Read and return one reply; raise an error reply.

    Raises a connection error, see `LOST`, if the connection is broken.
    """
    parser: Any = connection._parser
    sock, reader, buffer = connection._sock, parser._reader, parser._buffer
    if sock is None or reader is None:
        raise redis_errors.ConnectionError("the connection was closed")
    reply = reader.gets()
    while reply is NOT_ENOUGH_DATA:
        count = sock.recv_into(buffer)
        if not count:
            raise redis_errors.ConnectionError("the server closed the connection")
        reader.feed(buffer, 0, count)
        reply = reader.gets()
    if isinstance(reply, Exception):
        raise reply
    return reply


def receive_patiently(connection: Connection) -> Any:
    """Read one reply as `receive` does, but wait up to `longest_s` for it."""
    try:
        return receive(connection)
    except TimeoutError:
        if connection.socket_timeout == longest_s(connection):
            raise
        with waiting_longer(connection):
            return receive(connection)


def ensure_open(connection: Connection) -> None:
    """Raise an error, before anything is sent, if the connection was closed or has died while it was idle."""
    sock = connection._sock
    idle_s = time.monotonic() - getattr(connection, _ANSWERED_AT, 0.0)
    if sock is None or idle_s < BUSY_S:
        return
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if poll.poll(0):
        connection.can_read(0)
    if idle_s > IDLE_S:
        send(connection, PING)
        try:
            receive(connection)
        except redis_errors.ResponseError:
            pass  # an error is also an answer
        answered(connection)


def answered(connection: Connection) -> None:
    """Record that the server has just answered. `ensure_open` reads this record."""
    setattr(connection, _ANSWERED_AT, time.monotonic())


@contextmanager
def waiting_longer(connection: Connection) -> Iterator[None]:
    """In this `with` block, wait up to `longest_s` for each reply. Use it for commands that block at the server."""
    usual_s = connection.socket_timeout
    if connection._sock is not None:
        connection._sock.settimeout(longest_s(connection))
    try:
        yield
    finally:
        if connection._sock is not None:
            connection._sock.settimeout(usual_s)


def longest_s(connection: Connection) -> float | None:
    """Return how long a reply on this connection may take; None if unlimited. The first try of a call waits less."""
    return getattr(connection, _TIMEOUT_S, connection.socket_timeout)


def _wait_at_most(connection: Connection, seconds: float) -> None:
    connection.socket_timeout = connection.socket_connect_timeout = seconds
    if connection._sock is not None:
        connection._sock.settimeout(seconds)


def connect(
    url: str | None = None,
    *,
    namespace: str | None = None,
    durability: str | None = None,
    outage_buffer: int | None = None,
    settings: ServerSettings | None = None,
) -> Client:
    """Return a client for `url`, else for JOBQ_URL, else for REDIS_URL, else for the embedded server.

    It connects at the first call. Raises ConfigError if the URL can't be read.

    Args:
        durability: Where a message must be stored before an enqueue returns: memory, disk or replicas=n. Use n + 1
            replicas, so that one of them may fail. Default: JOBQ_DURABILITY, else memory.
        outage_buffer: Maximum number of messages that this process keeps in memory while the server is away. Default:
            JOBQ_OUTAGE_BUFFER, else 0.
    """
    if url is not None and not isinstance(url, str):
        raise ConfigError(
            f"url has the type {type(url).__qualname__}; pass an address as text, such as redis://queue.example:6379/0"
        )
    settings = settings or settings_from_env()
    return Client(
        replace(
            settings,
            url=url or settings.url,
            namespace=namespace or settings.namespace,
            durability=durability or settings.durability,
            outage_buffer=settings.outage_buffer if outage_buffer is None else outage_buffer,
        )
    )


def default_client() -> Client:
    """Return the default client. At first use, `connect()` creates it."""
    with runtime.lock:
        if runtime.default is None:
            runtime.default = connect()
        return cast("Client", runtime.default)


def set_default_client(client: Client | None) -> None:
    """Use `client` as the default client. If it is None, restore the client that the environment defines."""
    runtime.default = client


def _forked() -> None:
    runtime.forked()


os.register_at_fork(after_in_child=_forked)
