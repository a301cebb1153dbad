"""Clients: one call at a time to the right node, repeated while that can help.

Every call that jobq makes is safe to repeat (scripts know their caller's number), so a lost connection, a
failover or a restart costs time and nothing else. A call whose script keeps a record is repeated only while
that record surely lives (`caller.REPEAT_S`). redis-py's own retries are off: they would repeat blindly, and
also where nothing may be repeated.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import hiredis
from redis import exceptions as refused

from jobq.client import numbered_calls as caller
from jobq.client.functions import called, called_by_sha
from jobq.client.numbered_calls import Tries
from jobq.client.scripts import Script
from jobq.client.topology import Cluster, Topology, topology
from jobq.config import ServerSettings, settings_from_env
from jobq.errors import ConfigError, ScriptError, ServerFullError, UnavailableError, masked
from jobq.queue.keys import checked_name

if TYPE_CHECKING:
    from redis.connection import Connection

    from jobq.queue.outage import OutageBuffer
    from jobq.queue.queue import Queue

Argument = str | bytes | int
#: Sends one command on a connection and reads its reply; `True`: after ASKING.
Exchange = Callable[["Connection", tuple[Argument, ...], bool], Any]

#: What passes: a lost connection, a server that loads, moves, fails over or is busy.
PASSING = (
    refused.ConnectionError, refused.TimeoutError, refused.TryAgainError, refused.ClusterDownError,
    refused.ReadOnlyError, refused.MovedError, refused.AskError, OSError,
)  # fmt: skip
_LASTING = (refused.AuthenticationError, refused.AuthorizationError)
#: A server whose disk is full, or that misses its replicas, refuses writes until that is mended.
FOR_NOW = ("MISCONF ", "NOREPLICAS ")
_KEYLESS = frozenset(
    ("ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "INFO", "PING", "SCRIPT", "TIME", "WAITAOF")
)  # fmt: skip
LONGEST_PAUSE_S = 1.0
#: What a server adds to a script's own error.
_PLACE_IN_SCRIPT = re.compile(r",? script: \S+, on @?\w+:-?\d+\.$")
#: One command as the bytes to send.
packed = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)
LOADS = 10
#: A try that is made is given so much time, however little is left.
LEAST_WAIT_S = 0.05


class Client:
    """Calls to one deployment in one namespace. Threads may share it, forked children too."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.namespace = checked_name("namespace", settings.namespace)
        self._topology: Topology = topology(settings)
        # Settled here, so that a bad URL fails where it is given.
        self.url = settings.url or str(self._topology.locate(""))
        self.is_cluster = isinstance(self._topology, Cluster)
        self._named = called if settings.functions else called_by_sha
        #: What every enqueue asks for unless it says otherwise.
        self.durability = settings.durability
        self.outage: OutageBuffer | None = None
        if settings.outage_buffer and _may_buffer:
            from jobq.queue.outage import OutageBuffer

            self.outage = OutageBuffer(settings)
        #: Asked while a call waits for the server; True ends the wait with UnavailableError.
        self.enough: Callable[[], bool] = lambda: False
        #: Queues that all senders of this process share, by name.
        self.queues: dict[str, Queue] = {}
        self._idle: dict[Hashable, list[Connection]] = {}
        _clients.add(self)

    def __repr__(self) -> str:
        return f"Client({masked(self.url)!r}, namespace={self.namespace!r})"

    def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Argument],
        by: Exchange | None = None,
        *,
        tries: Tries | None = None,
        renew: Callable[[], Sequence[Argument]] | None = None,
    ) -> Any:
        """Call a script; the raw reply. Raises UnavailableError, ServerFullError or ScriptError.

        `by` makes each exchange, so that more than one command can share the script's connection. `tries`: those
        that were made of this call before. `renew` gives the arguments of another call, under a new number, for
        when this one may not be repeated any more; only for what tokens fence besides.
        """
        command = self.words(script, keys, args)
        if tries is None and script.recorded:
            tries = Tries()
        anew = renew and (lambda: self.words(script, keys, renew()))
        return self._repeat(keys[0] if keys else "", command, script, by or exchange, tries, anew)

    def words(
        self, script: Script, keys: Sequence[str], args: Sequence[Argument]
    ) -> tuple[Argument, ...]:
        """The command that calls a script."""
        return (*self._named(script), len(keys), *keys, *args)

    def command(self, *args: Argument, routed_by: str | None = None) -> Any:
        """One plain command that is harmless to repeat; the raw reply.

        routed_by: its key, where that isn't its first argument.
        """
        if routed_by is not None:
            return self._repeat(routed_by, args)
        keyless = str(args[0]).upper() in _KEYLESS
        return self._repeat("" if keyless else str(args[1]), args)

    def open_connection(self, key: str, *, blocking: bool = True) -> Connection:
        """A connection of the caller's own to the node that serves `key`, for blocking commands.

        blocking: its reads never time out; else they do as usual, for who reads only what has begun to
        come. The caller disconnects it.
        """
        deadline, pause = time.monotonic() + self.settings.patience_s, 0.0
        while True:
            node: Hashable | None = None
            try:
                node = self._topology.locate(key)
                connection = self._topology.open(node, blocking=blocking)
                connection.connect()
                return connection
            except PASSING as error:
                self._topology.forget(node)
                self._give_up(error, deadline, unknown=False)
                pause = _wait(pause, deadline)

    def open_everywhere(self) -> Iterator[Connection]:
        """A connection to every node that serves keys, not yet connected; the caller disconnects them."""
        return map(self._topology.open, self._topology.nodes())

    def shares_node(self, key: str, other: str) -> bool:
        """Whether the same server served both when last that was known; nobody is asked."""
        home = self._topology.last_home(key)
        return home is not None and home == self._topology.last_home(other)

    def look_again(self) -> None:
        """Ask anew where to call: who answers may be a master that was replaced and doesn't know."""
        self._topology.forget()

    def fileno(self, connection: Connection) -> int:
        """What `select` takes for an open connection."""
        sock = connection._sock
        if sock is None:
            raise UnavailableError("the connection was closed")
        return int(sock.fileno())

    @property
    def nbuffered(self) -> int:
        """How many messages wait in the outage buffer."""
        return self.outage.nmessages if self.outage else 0

    def flush(self, within_s: float | None = None) -> None:
        """Wait until the outage buffer is empty, as long as the client's patience; else UnavailableError.

        Also UnavailableError, with their mids, when the outcome of some became unknown since the last flush, because an
        outage lasted longer than a call may be repeated. Processes that end by themselves do this at exit.
        """
        if self.outage:
            self.outage.flush(within_s)

    def close(self) -> None:
        """Close what is open; the next call opens anew."""
        if self.outage:
            self.outage.close()
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.disconnect()

    def abandon(self) -> None:
        """In a forked child: close the parent's sockets here without a word to the server."""
        if self.outage:
            self.outage.forget()
        self.close()  # redis-py doesn't shut down a socket that another process opened

    def _repeat(
        self,
        key: str,
        command: tuple[Argument, ...],
        script: Script | None = None,
        by: Exchange | None = None,
        tries: Tries | None = None,
        anew: Callable[[], tuple[Argument, ...]] | None = None,
    ) -> Any:
        by = by or exchange
        deadline, pause, unknown = time.monotonic() + self.settings.patience_s, 0.0, False
        left_s: float | None = None
        asked: Hashable | None = None
        while True:
            node: Hashable | None = None
            try:
                node = asked or self._topology.locate(key)
                return self._once(node, command, script, bool(asked), by, tries, left_s)
            except (*PASSING, refused.ResponseError) as error:
                for_now = str(error).startswith(FOR_NOW)
                # ServerFullError after a try whose reply was lost tells nothing of that try: ask until it is known.
                if not for_now and not (unknown and isinstance(error, refused.OutOfMemoryError)):
                    refuse(error, command, script)
                # Without a node, or a connection to it, nothing was sent.
                unsent = node is None or isinstance(error, _UnreachedError)
                unknown = unknown or not (for_now or unsent)
                asked = self._elsewhere(error, node)
                if tries is not None and tries.over:
                    if anew is None:
                        raise self._unknown(error) from error
                    command, tries = anew(), Tries()
                self._give_up(error, deadline, unknown)
                pause = _wait(pause, deadline)
                # The first try has the whole time of a socket; the others end with the caller's patience.
                left_s = deadline - time.monotonic()

    def _once(
        self,
        node: Hashable,
        command: tuple[Argument, ...],
        script: Script | None,
        asking: bool,
        by: Exchange,
        tries: Tries | None,
        left_s: float | None,
    ) -> Any:
        hurried = False
        idle = self._idle.get(node)
        if idle is None:
            idle = self._idle.setdefault(node, [])
        try:
            connection = idle.pop()
        except IndexError:
            connection = self._topology.open(node)
            hurried = left_s is not None and left_s < self.settings.socket_timeout_s
            if hurried:
                _wait_at_most(connection, max(LEAST_WAIT_S, left_s or 0.0))
        if connection._sock is None:
            _reach(connection)
        if tries is not None:
            if tries.over:
                connection.disconnect()
                raise refused.TimeoutError("the time to repeat this call is over")
            tries.sent()
        try:
            reply = _exchanged(connection, command, script, asking, by)
        except refused.ResponseError:
            if tries is not None:
                tries.refused()
            idle.append(connection)
            raise
        except refused.BusyLoadingError:
            if tries is not None:
                tries.refused()
            raise
        finally:
            if hurried:
                _wait_at_most(connection, self.settings.socket_timeout_s)
        idle.append(connection)
        return reply

    def _elsewhere(self, error: Exception, node: Hashable | None) -> Hashable | None:
        """After a passing error of `node`: the one that a Cluster names for this once, if it does."""
        if isinstance(error, refused.AskError) and not isinstance(error, refused.MovedError):
            return (error.host, error.port)
        broken = not isinstance(error, refused.ResponseError)
        if not isinstance(error, refused.TryAgainError):
            self._topology.forget(node if broken else None)
        if broken or isinstance(error, refused.ReadOnlyError):
            # One connection is broken: the others to that place are, or will be soon.
            for connection in self._idle.pop(node, []):
                connection.disconnect()
        return None

    def _unknown(self, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"no answer from {masked(self.url)} for {caller.REPEAT_S:g} s ({error}); the server keeps the record that "
            f"makes a repetition harmless for {caller.RECORD_S:g} s, so the call isn't repeated any more. Whether "
            "it took effect is unknown: look, or call again if twice does no harm"
        )

    def _give_up(self, error: Exception, deadline: float, unknown: bool) -> None:
        """Raise, if it is time. unknown: the call may have taken effect."""
        if isinstance(error, _LASTING):
            raise ConfigError(
                f"{masked(self.url)} refused the login ({error}); check user and password in the URL"
            ) from error
        over = time.monotonic() >= deadline or self.enough()
        if over and not unknown and str(error).startswith(FOR_NOW):
            raise ServerFullError(
                f"the server takes no writes now, nothing was changed: {error}"
            ) from error
        if over or "CERTIFICATE_VERIFY_FAILED" in str(error):
            what = "no answer from" if unknown else "no connection to"
            known = (
                "whether the last call took effect is unknown" if unknown else "nothing was sent"
            )
            raise UnavailableError(
                f"{what} {masked(self.url)} within {self.settings.patience_s:g} s ({error}); {known}. JOBQ_URL says "
                "where the server is, JOBQ_PATIENCE how long a call waits for it"
            ) from error


class _UnreachedError(refused.ConnectionError):
    """No connection came about, so nothing was sent."""


def _reach(connection: Connection) -> None:
    try:
        connection.connect()
    except _LASTING:
        raise
    except (refused.ConnectionError, refused.TimeoutError, OSError) as error:
        raise _UnreachedError(str(error)) from error


def exchange(connection: Connection, command: tuple[Argument, ...], asking: bool = False) -> Any:
    """One command and its reply; a connection on which that broke off is closed."""
    try:
        if asking:
            connection.send_command("ASKING")
            connection.read_response()
        # redis-py's own packing looks at every argument once more.
        connection.send_packed_command((packed(command),))
        return connection.read_response()
    except refused.ResponseError:
        raise
    except BaseException:
        # Half an exchange is on the wire: a later call would read this one's reply.
        connection.disconnect()
        raise


def _wait_at_most(connection: Connection, seconds: float) -> None:
    connection.socket_timeout = connection.socket_connect_timeout = seconds
    if connection._sock is not None:
        connection._sock.settimeout(seconds)


def refuse(error: Exception, command: tuple[Argument, ...], script: Script | None) -> None:
    """Raise what a repetition wouldn't change."""
    if isinstance(error, refused.OutOfMemoryError):
        raise ServerFullError(
            f"the server is at its memory limit, nothing was changed: {error}"
        ) from error
    if not isinstance(error, PASSING) and not str(error).startswith("BUSY "):
        named = f"script {script.name}" if script else " ".join(map(str, command[:2]))
        remedy = "; run jobq functions load" * ("Function not found" in str(error))
        told = _PLACE_IN_SCRIPT.sub("", str(error))
        raise ScriptError(f"the server refused {named}: {told}{remedy}") from error


def _exchanged(
    connection: Connection,
    command: tuple[Argument, ...],
    script: Script | None,
    asking: bool,
    by: Exchange,
) -> Any:
    """By `by`, also where the server doesn't have the script yet."""
    try:
        return by(connection, command, asking)
    except refused.NoScriptError:
        assert script is not None
    for _ in range(LOADS):
        exchange(connection, ("SCRIPT", "LOAD", script.source))
        try:
            return by(connection, command, asking)
        except refused.NoScriptError:
            continue  # flushed again between the two
    raise refused.ConnectionError("the server's scripts are flushed again and again")


def _wait(pause: float, deadline: float) -> float:
    """Sleep, from the second time on; the next pause, twice as long."""
    if pause:
        time.sleep(max(0.0, min(pause * random.uniform(0.5, 1.0), deadline - time.monotonic())))
    return min(LONGEST_PAUSE_S, max(0.01, pause * 2))


def connect(
    url: str | None = None,
    *,
    namespace: str | None = None,
    durability: str | None = None,
    outage_buffer: int | None = None,
    settings: ServerSettings | None = None,
) -> Client:
    """A client for `url`, else JOBQ_URL, else REDIS_URL, else the embedded server.

    durability: what must hold before an enqueue returns: memory, disk or replicas=n (of n + 1, so that one
    may be away); else JOBQ_DURABILITY, else memory. outage_buffer: how many messages may wait in memory
    while the server is away; else JOBQ_OUTAGE_BUFFER, else 0. It connects at the first call. Raises
    ConfigError for a URL that can't be read.
    """
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


_may_buffer = True


def switch_off_buffers() -> None:
    """No client of this process, or forked from it, keeps messages in its memory alone any more."""
    global _may_buffer
    _may_buffer = False
    for client in list(_clients):
        client.outage = None


_clients: weakref.WeakSet[Client] = weakref.WeakSet()
_default: Client | None = None
_default_lock = threading.Lock()


def default_client() -> Client:
    """The client of everything that names none, made by `connect()` at first use."""
    global _default
    with _default_lock:
        if _default is None:
            _default = connect()
        return _default


def set_default_client(client: Client | None) -> None:
    """Use `client` where none is named; None: the one of the environment again."""
    global _default
    _default = client


def _after_fork() -> None:
    global _default_lock
    _default_lock = threading.Lock()
    for client in list(_clients):
        client.abandon()


os.register_at_fork(after_in_child=_after_fork)
