"""Send many calls on one connection without waiting for each reply. Each call has its own result or error."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from redis import exceptions as redis_errors
from redis.connection import Connection

from jobq.client.connection import (
    Client,
    answered,
    ensure_open,
    receive,
    receive_patiently,
    send,
)
from jobq.client.numbered_calls import (
    AGAIN,
    FAILED,
    LOST,
    CallState,
    ScriptCall,
    is_full_for_now,
    refusal,
    reply_lost,
)
from jobq.client.scripts import Argument, Command, packed, wire
from jobq.errors import JobqError, UnavailableError

#: Maximum number of calls to send before the first reply is read.
IN_FLIGHT = 1_000
#: Number of calls to write to the connection at a time.
AT_ONCE = 100
_OPEN = object()


def commands(
    client: Client, key: str, many: Sequence[Sequence[Argument]], *, keep_errors: bool = False
) -> list[Any]:
    """Send plain commands together to the node that serves `key`; return their replies.

    All commands must be harmless to repeat. If a command fails, the other commands still take effect, and then the
    first error is raised.

    Args:
        keep_errors: Return errors among the replies instead of raising them.
    """
    together = b"".join(packed(tuple(words)) for words in many)
    asked = b"".join(packed(("ASKING",)) + packed(tuple(words)) for words in many)

    def exchange_all(connection: Connection, _: Command, asking: bool = False) -> list[Any]:
        try:
            send(connection, asked if asking else together)
            replies = [_reply(connection) for _ in range(len(many) * (1 + asking))][
                asking :: 1 + asking
            ]
        except BaseException:
            connection.disconnect()
            raise
        for reply in replies:
            if isinstance(reply, Exception) and not keep_errors:
                raise reply
        return replies

    results: list[Any] = client.perform(key, CallState(client, together), exchange_all)
    return results


def _reply(connection: Connection) -> Any:
    """Read a reply and return it, even if it is an error."""
    try:
        return receive(connection)
    except redis_errors.ResponseError as error:
        return error


class PipelinedCalls:
    """Sends calls of one client together. Only one thread may use it at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def run(self, calls: Sequence[ScriptCall[Any]]) -> list[Any]:
        """Make calls and return the result or the error of each, in order. One node must serve all keys.

        The calls also take effect in this order, except for calls that a busy server rejects: these are sent again.
        Errors of calls are returned, never raised.
        """
        outcomes: list[Any] = []
        for first in range(0, len(calls), IN_FLIGHT):
            outcomes += self._perform(calls[first : first + IN_FLIGHT])
        return outcomes

    def _perform(self, calls: Sequence[ScriptCall[Any]]) -> list[Any]:
        pipeline = _Pipeline(self._client, calls)
        lead = calls[0]
        try:
            state = CallState(self._client, self._client.words(*lead[:3]), lead.script)
            self._client.perform(lead.keys[0], state, pipeline.exchange)
        except JobqError as error:
            pipeline.end(error)
        return [_read(call, reply) for call, reply in zip(calls, pipeline.replies, strict=True)]


def run_each(client: Client, calls: Sequence[ScriptCall[Any]]) -> list[Any]:
    """Make calls and return the result or JobqError of each, in order.

    On one server, the calls are sent together; on a Cluster, one by one. Raises UnavailableError if the one server is
    unreachable. If a node of a Cluster is unreachable, the calls to that node return the error.
    """
    if client.is_cluster:
        return [PipelinedCalls(client).run([call])[0] for call in calls]
    replies = PipelinedCalls(client).run(calls)
    raise_first(replies, UnavailableError)
    return replies


def run_all(client: Client, calls: Sequence[ScriptCall[Any]]) -> list[Any]:
    """Make calls as `run_each` does, and return the result of each, in order. Raises the first error."""
    replies = run_each(client, calls)
    raise_first(replies, JobqError)
    return replies


def raise_first(replies: Iterable[Any], kind: type[JobqError]) -> None:
    """Raise the first reply that is an error of this kind, if there is such a reply."""
    for reply in replies:
        if isinstance(reply, kind):
            raise reply


class Read(NamedTuple):
    """A plain command as a value. It only reads, or is harmless to repeat.

    Attributes:
        key: The node that serves this key gets the command.
    """

    key: str
    words: tuple[Argument, ...]


def read_together(client: Client, asked: Sequence[Read | ScriptCall[Any]]) -> list[Any]:
    """Make reads and return the reply, the result or the JobqError of each, in order.

    On one server, this takes one round trip; on a Cluster, one per read. Raises UnavailableError if the one server is
    unreachable. If a node of a Cluster is unreachable, the reads from that node return the error.
    """
    if client.is_cluster or not asked:
        return [_read_alone(client, call) for call in asked]
    together = b"".join(
        packed(call.words) if isinstance(call, Read) else client.words(*call[:3]) for call in asked
    )

    def exchange_all(connection: Connection, *_: Any) -> list[Any]:
        try:
            send(connection, together)
            return [_reply(connection) for _ in asked]
        except BaseException:
            connection.disconnect()
            raise

    key = asked[0].key if isinstance(asked[0], Read) else asked[0].keys[0]
    replies = client.perform(key, CallState(client, together), exchange_all)
    return [_taken(client, call, reply) for call, reply in zip(asked, replies, strict=True)]


def _taken(client: Client, call: Read | ScriptCall[Any], reply: Any) -> Any:
    """Convert a reply to its result or error. After a temporary error or a missing script, repeat the read."""
    if not isinstance(reply, Exception):
        return reply if isinstance(call, Read) else _read(call, reply)
    command, script = (call.words, None) if isinstance(call, Read) else ((), call.script)
    missing = isinstance(reply, redis_errors.NoScriptError)
    final = None if missing else refusal(reply, command, script)
    if final is not None:
        final.__cause__ = reply
    return final or _read_alone(client, call)


def _read_alone(client: Client, call: Read | ScriptCall[Any]) -> Any:
    try:
        if isinstance(call, Read):
            return client.command(*call.words, routed_by=call.key)
        # Not Client.ask: a script that reads may reply with an empty list.
        state = CallState(client, client.words(*call[:3]), call.script)
        return call.read(client.perform(call.keys[0], state))
    except JobqError as error:
        if client.is_lost(error):
            raise
        return error


class OverlappingCalls:
    """Sends repeatable calls on one connection without waiting for the previous replies.

    The server runs the calls in order, except calls that the client has to repeat because a reply was lost or the
    server couldn't accept the call yet. Only one thread may use this object at a time. Each numbered call needs its own
    caller.
    """

    def __init__(self, client: Client, key: str) -> None:
        self._client, self._key = client, key
        self._node: Hashable | None = None
        self._connection: Connection | None = None
        #: Calls that `reply` hasn't returned yet, each with its reply or error so far.
        self._calls: deque[tuple[CallState, list[Any]]] = deque()

    def send(self, state: CallState) -> None:
        """Send one call. If that fails, `reply` handles the error."""
        outcome = [_OPEN]
        self._calls.append((state, outcome))
        try:
            if self._connection is None:
                self._node, self._connection = self._client.borrow(self._key)
            state.sending()
            send(self._connection, wire(state.command))
        except FAILED as error:
            self._break_off(error)

    def reply(self) -> Any:
        """Return the reply to the earliest call that has no reply yet.

        After a temporary error, the call is repeated. Other errors are raised as in Client.perform.
        """
        state, outcome = self._calls[0]
        self._read(outcome)
        [reply] = outcome
        if isinstance(reply, Exception):
            # While this call is repeated, no later call may be in flight.
            for _, other in self._calls:
                self._read(other)
            following = state.failed(reply)
            if following.error is not None:
                raise following.error from reply
            reply = self._client.perform(self._key, state)
        self._calls.popleft()
        return reply

    def close(self) -> None:
        """Give the connection back to the client, or close it if replies are still pending."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if any(outcome[0] is _OPEN for _, outcome in self._calls):
            connection.disconnect()
        else:
            self._client.give_back(self._node, connection)

    def _read(self, outcome: list[Any]) -> None:
        if outcome[0] is not _OPEN or self._connection is None:
            return
        try:
            outcome[0] = receive(self._connection)
        except redis_errors.ResponseError as error:
            outcome[0] = error
        except FAILED as error:
            self._break_off(error)

    def _break_off(self, error: Exception) -> None:
        """Close a broken connection; all calls without a reply get the error."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
        for _, outcome in self._calls:
            if outcome[0] is _OPEN:
                outcome[0] = error


class _Pipeline:
    """Collects the replies to pipelined calls. The client repeats `exchange`, which sends calls that lack a reply."""

    def __init__(self, client: Client, calls: Sequence[ScriptCall[Any]]) -> None:
        self._client = client
        self._calls = calls
        self._missing = False
        self.replies: list[Any] = [_OPEN] * len(calls)

    def end(self, error: JobqError) -> None:
        """Set this error as the result of every call without a reply."""
        self.replies = [error if reply is _OPEN else reply for reply in self.replies]

    def exchange(self, connection: Connection, _: Any, asking: bool = False) -> None:
        """Send all calls that have no reply yet, and read their replies."""
        left = [number for number, reply in enumerate(self.replies) if reply is _OPEN]
        while left:
            ensure_open(connection)
            try:
                self._send(connection, left, asking)
                passing = self._receive(connection, left, asking)
                answered(connection)
            except LOST as error:
                connection.disconnect()
                self._give_up_on(left, error)
                raise
            except BaseException:
                connection.disconnect()
                raise
            if passing:
                raise passing
            left = [number for number in left if self.replies[number] is _OPEN]

    def _send(self, connection: Connection, left: list[int], asking: bool) -> None:
        commands: list[bytes] = []
        # The first call of each script contains the script's text. If the server lacked the script, the first call
        # would be repeated after later calls.
        by_sha = self._client.settings.functions or not (self._missing or len(left) > 1)
        brought: set[str] = set()
        for count, number in enumerate(left, 1):
            script, keys, args, *_ = self._calls[number]
            if asking:
                commands.append(packed(("ASKING",)))
            if by_sha or script.sha in brought:
                commands.append(self._client.words(script, keys, args))
            else:
                commands.append(packed(("EVAL", script.source, len(keys), *keys, *args)))
                brought.add(script.sha)
            if count % AT_ONCE == 0 or count == len(left):
                # Send these calls now, so that the server starts while later calls are packed.
                send(connection, b"".join(commands))
                commands.clear()

    def _receive(self, connection: Connection, left: list[int], asking: bool) -> Exception | None:
        passing: Exception | None = None
        for number in left:
            try:
                if asking:
                    receive(connection)
                self._take(number, receive_patiently(connection))
            except redis_errors.NoScriptError:
                self._missing = True
            except (redis_errors.ResponseError, redis_errors.BusyLoadingError) as error:
                passing = self._refused(number, error) or passing
        return passing

    def _take(self, number: int, reply: Any) -> None:
        if reply[0] != AGAIN:
            self.replies[number] = reply

    def _refused(self, number: int, error: Exception) -> Exception | None:
        """Store an error as the call's result, and return None. If the server may accept the call later, return the
        error.
        """
        if is_full_for_now(error):
            return error
        final = refusal(error, (), self._calls[number].script)
        if final is None:
            return error
        self.replies[number] = final
        return None

    def _give_up_on(self, left: list[int], error: Exception) -> None:
        for number in left:
            if self.replies[number] is _OPEN and not self._calls[number].repeatable:
                self.replies[number] = reply_lost(error)


def _read(call: ScriptCall[Any], reply: Any) -> Any:
    if isinstance(reply, JobqError):
        return reply
    try:
        return call.read(reply)
    except JobqError as error:
        return error
