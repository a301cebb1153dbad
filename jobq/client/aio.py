"""The asyncio client: it makes the calls of `connection.Client` without blocking the event loop.

Import this module only in asyncio programs, so that other programs don't import asyncio.
"""

from __future__ import annotations

import asyncio
import math
import os
import ssl
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Hashable
from contextvars import Context
from typing import Any, TypeVar

import hiredis
from redis import exceptions as redis_errors
from redis.connection import Connection, DefaultParser

from jobq.client.connection import IDLE_S, MIN_WAIT_S, PING, Client
from jobq.client.numbered_calls import (
    AGAIN,
    FAILED,
    LOST,
    CallState,
    ScriptCall,
    reply_lost,
)
from jobq.client.opening import connected, greet
from jobq.client.scripts import packed, wire
from jobq.client.threads import in_thread
from jobq.errors import JobqError

T = TypeVar("T")
READ_BYTES = 65_536
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_ASKING = packed(("ASKING",))


class LateReplyError(asyncio.CancelledError):
    """The coroutine was cancelled while it waited for a reply that it must not miss; `reply` is that reply."""

    def __init__(self, reply: Any) -> None:
        super().__init__()
        self.reply = reply


class NotSentError(JobqError, redis_errors.ConnectionError):
    """The connection broke before the whole command was sent, so the server didn't execute the command."""


class Reply:
    """The reply to one command, awaited by one coroutine.

    It works like a future, except that `arrived` resumes the coroutine without another turn of the event loop. Tasks
    wait for any object that has `_asyncio_future_blocking`; see asyncio.isfuture.

    Args:
        whole: Delay a cancellation of the coroutine until the reply has arrived.
        once: The command must not be repeated.
    """

    __slots__ = (
        "_asyncio_future_blocking", "_context", "_error", "_loop", "_value", "_wake", "_whole", "is_done", "once",
    )  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, whole: bool = False, once: bool = False
    ) -> None:
        self._loop, self._whole, self.once = loop, whole, once
        self._asyncio_future_blocking = self.is_done = False
        self._error: BaseException | None = None
        self._wake: Callable[[Reply], object] | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.is_done:
            self._asyncio_future_blocking = True
            try:
                yield self
            except asyncio.CancelledError:
                if self._whole and self.is_done and self._error is None:
                    raise LateReplyError(self._value) from None
                raise
        return self.result()

    def arrived(self, reply: Any) -> None:
        """Set the reply and resume the coroutine. Call this only while no task runs, as in a callback of the loop."""
        if self.is_done:
            return
        self.is_done = True
        if isinstance(reply, Exception):
            self._error = reply
        else:
            self._value = reply
        if self._wake is not None:
            self._context.run(self._wake, self)

    def fail(self, error: BaseException) -> None:
        """Set an error instead of a reply; the coroutine resumes in the next turn of the loop."""
        if not self.is_done:
            self._error, self.is_done = error, True
            if self._wake is not None:
                self._loop.call_soon(self._wake, self, context=self._context)

    def result(self) -> Any:
        """Return the reply or raise the error. Call this only after one of them was set; see Future.result."""
        if self._error is not None:
            raise self._error
        return self._value

    def add_done_callback(self, wake: Callable[[Reply], object], *, context: Context) -> None:
        """Set the callback that resumes the waiting task. The task calls this once; see Future.add_done_callback."""
        self._wake, self._context = wake, context

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the wait; see Future.cancel. If this returns False, the task raises CancelledError when it resumes."""
        if self.is_done or self._whole:
            return False
        self.fail(asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg))
        return True

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop; see Future.get_loop."""
        return self._loop


class AsyncClient:
    """Makes calls to the deployment of `client` on one event loop. Any number of coroutines may share it.

    It has one connection to each node for all calls. Calls made while other calls wait for replies are sent together,
    in order. It shares the settings and the known nodes of `client`. Cancelling a coroutine doesn't cancel its call:
    the reply is read and dropped.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._connections: dict[Hashable, SharedConnection] = {}
        self._opening: dict[Hashable, asyncio.Future[SharedConnection]] = {}
        #: The waits for items, created at the first wait; see `item_waits`.
        self.item_waits: Any = None

    def __repr__(self) -> str:
        return f"Async{self.client!r}"

    def ask(self, call: ScriptCall[T]) -> Coroutine[Any, Any, T]:
        """Make a call and return its result; see Client.ask."""
        client, keys = self.client, call.keys
        state = CallState(client, client.words(call.script, keys, call.args), call.script)
        key = keys[0] if keys else ""
        return self.perform(key, state, once=not call.repeatable, read=call.read)

    async def perform(
        self,
        key: str,
        state: CallState,
        *,
        once: bool = False,
        whole: bool = False,
        read: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Make a call; see Client.perform.

        Args:
            once: If the whole call was sent but no reply came, raise UnavailableError instead of repeating the call.
            whole: After a cancellation, still wait for the reply, and raise a LateReplyError with the reply.
            read: Turns the raw reply into the result; see ScriptCall.
        """
        while True:
            node: Hashable | None = None
            connection: SharedConnection | None = None
            reply: Reply | None = None
            try:
                node = state.redirect or self.client.nodes.node or await self.locate(key)
                connection = self._connections.get(node)
                if connection is None or not connection.is_open:
                    connection = await self._connect(node, state.left_s)
                script = state.script
                if (script and script.sha not in connection.scripts) or state.redirect:
                    self._prepare_for(connection, state)
                if once and connection.is_idle:
                    await connection.prove()
                state.sending()
                reply = connection.send(wire(state.command), state.left_s, whole, once)
                raw = await reply
            except FAILED as error:
                if once and reply is not None and _is_lost(error):
                    raise reply_lost(error) from error
                await self._prepare(state, node, connection, error)
            else:
                instead = self._instead(state, raw, read is not None)
                if instead is None:
                    return raw if read is None else read(raw)
                state = instead

    def _instead(self, state: CallState, reply: Any, is_read: bool) -> CallState | None:
        """Return the call to make after `reply`, or None if `reply` is the final reply."""
        if not is_read:
            return state.as_general() if state.is_left_by(reply) else None
        if reply and reply[0] == AGAIN:
            return CallState(self.client, state.command, state.script)
        return None

    def close(self) -> None:
        """Close all connections; the next call opens a new connection."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()
        if self.item_waits is not None:
            self.item_waits.close()

    def _prepare_for(self, connection: SharedConnection, state: CallState) -> None:
        """Send SCRIPT LOAD before a script's first call on this connection, and ASKING before a redirected call."""
        script = state.script
        if script is not None and script.sha not in connection.scripts:
            connection.scripts.add(script.sha)
            if not self.client.settings.functions:
                connection.send_blindly(packed(("SCRIPT", "LOAD", script.source)))
        if state.redirect is not None:
            connection.send_blindly(_ASKING)

    async def locate(self, key: str) -> Hashable:
        """Return the node that serves `key`. If it isn't known, a thread looks it up."""
        topology = self.client.topology
        known = topology.known(key)
        return known if known is not None else await in_thread(topology.locate, key)

    async def connection(self, node: Hashable, left_s: float | None = None) -> SharedConnection:
        """Return the shared connection to `node`. Open it if it isn't open."""
        known = self._connections.get(node)
        return known if known and known.is_open else await self._connect(node, left_s)

    async def _connect(self, node: Hashable, left_s: float | None) -> SharedConnection:
        """Open the shared connection to `node` and return it. It is opened once for all waiting coroutines."""
        opening = self._opening.get(node)
        if opening is None or opening.done():
            opening = self._opening[node] = asyncio.ensure_future(self._open(node))
            opening.add_done_callback(_retrieve)
        within_s = None if left_s is None else max(MIN_WAIT_S, left_s)
        done, _ = await asyncio.wait((opening,), timeout=within_s)
        if not done:
            raise redis_errors.TimeoutError("no connection within the call's timeout")
        return opening.result()

    async def _open(self, node: Hashable) -> SharedConnection:
        made = await self.open(node)
        self._connections[node] = made
        return made

    async def open(self, node: Hashable, *, blocking: bool = False) -> SharedConnection:
        """Return a new connection to `node`.

        Args:
            blocking: Wait for replies without a time limit.
        """
        connection = self.client.topology.open(node)
        is_new = await connected(connection)
        if not is_new:
            # The look-up of a name and the TLS handshake are blocking calls.
            await in_thread(connection.connect)
        try_s = self.client.try_s(connection)
        if blocking:
            connection.socket_timeout, try_s = None, math.inf
        made = SharedConnection(connection, try_s)
        try:
            if is_new:
                async with asyncio.timeout(connection.socket_connect_timeout):
                    await greet(made.send, connection)
        except BaseException:
            made.close()
            raise
        return made

    async def _prepare(
        self,
        state: CallState,
        node: Hashable | None,
        connection: SharedConnection | None,
        error: Exception,
    ) -> None:
        """Prepare the next try; see Client._prepare. Keep a connection that another coroutine has just opened."""
        following = state.failed(error)
        if isinstance(error, redis_errors.NoScriptError) and connection and state.script:
            connection.scripts.discard(state.script.sha)
        if connection is None or self._connections.get(node) is connection:
            if following.forget:
                self.client.topology.forget(node if following.silent else None)
            if following.close and connection is not None:
                connection.retire()
        if following.error is not None:
            raise following.error from error
        await asyncio.sleep(following.pause_s)


class SharedConnection:
    """A connection on which coroutines of one event loop send commands without waiting for each other's replies."""

    def __init__(self, connection: Connection, try_s: float) -> None:
        """Let coroutines share a connection.

        Args:
            connection: An open connection that nothing else uses.
            try_s: If the server doesn't answer for this time, repeat the repeatable calls on another connection.
        """
        sock: Any = connection._sock
        if sock is None:
            raise redis_errors.ConnectionError("the connection was closed")
        sock.setblocking(False)
        self._connection, self._pid = connection, os.getpid()
        # An event loop may end without closing its client. Python would then warn about an unclosed socket.
        weakref.finalize(self, connection.disconnect).atexit = False
        #: None after the connection is closed.
        self._sock: Any = sock
        self._pending = getattr(sock, "pending", int)  # number of bytes decrypted by TLS
        self._longest_s: float = connection.socket_timeout or math.inf
        self._timeout_s = min(try_s, self._longest_s)
        self._reader = hiredis.Reader(
            protocolError=redis_errors.InvalidResponse, replyError=DefaultParser.parse_error
        )
        self._buffer: Any = bytearray(READ_BYTES)
        #: An entry for each command that has no reply yet; None if the reply is dropped.
        self._waiting: deque[Reply | None] = deque()
        #: Commands that weren't sent in full yet, and whether the loop will send them.
        self._unsent: list[bytes] = []
        self._scheduled = False
        self._watch: asyncio.TimerHandle | None = None
        #: The pending PING that shows whether the peer is still there, or None.
        self._proof: asyncio.Future[None] | None = None
        self._retired = False
        self.is_open = True
        #: Hashes of the scripts that were called here.
        self.scripts: set[str] = set()
        self._loop = asyncio.get_running_loop()
        #: When the server last answered while replies were pending, or a command was last sent with none pending.
        self._progress = self._loop.time()
        self._loop.add_reader(sock.fileno(), self._receive)

    @property
    def is_idle(self) -> bool:
        """Whether the connection has been idle long enough for the peer to have disappeared without closing it."""
        if self._proof is not None:
            return True
        return not self._waiting and self._loop.time() - self._progress > IDLE_S

    async def prove(self) -> None:
        """Wait until the server answers a PING. If there is no answer, raise a connection error; see `LOST`."""
        if self._proof is None:
            self._proof = asyncio.ensure_future(self._ping())
            self._proof.add_done_callback(_retrieve)
        await asyncio.shield(self._proof)

    async def _ping(self) -> None:
        try:
            await self.send(PING)
        except redis_errors.ResponseError:
            pass  # an error is also an answer
        finally:
            self._proof = None

    def send(
        self,
        command: bytes,
        within_s: float | None = None,
        whole: bool = False,
        once: bool = False,
    ) -> Reply:
        """Send a command and return its awaitable reply. While earlier replies are pending, commands are sent together.

        Args:
            within_s: Time limit for the reply.
            whole: After a cancellation, still wait for the reply; see Reply.
            once: The command must not be repeated, so allow its reply the connection's full timeout.
        """
        loop = self._loop
        reply = Reply(loop, whole, once)
        alone = not self._waiting
        self._waiting.append(reply)
        self._unsent.append(command)
        if alone:
            self._flush()
            # Do this after sending, while the server works.
            self._progress = loop.time()
            if self._watch is None and self._timeout_s < math.inf:
                self._watch = loop.call_later(self._timeout_s, self._look)
        elif not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._flush)
        if within_s is not None:
            late = redis_errors.TimeoutError("no reply within the call's timeout")
            loop.call_later(max(MIN_WAIT_S, within_s), reply.fail, late)
        return reply

    def send_blindly(self, command: bytes) -> None:
        """Send a command together with the next command, and drop its reply."""
        if not self._waiting:
            self._progress = self._loop.time()
        self._waiting.append(None)
        self._unsent.append(command)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def retire(self) -> None:
        """Stop using this connection for new commands, and close it after all replies have arrived."""
        self._retired, self.is_open = True, False
        if not self._waiting:
            self.close()

    def close(self) -> None:
        """Close the connection immediately; waiting coroutines get an error."""
        self._lose(redis_errors.ConnectionError, "the connection was closed")

    def _flush(self) -> None:
        """Send as many waiting commands as the socket accepts."""
        self._scheduled = False
        unsent = self._unsent
        if not unsent or self._sock is None:
            return
        data = unsent[0] if len(unsent) == 1 else b"".join(unsent)
        try:
            left = self._sock.send(data)
        except _LATER:
            left = 0
        except OSError as error:
            self._lose(redis_errors.ConnectionError, f"sending failed: {error}")
            return
        if left == len(data):
            unsent.clear()
            return
        whole = 0
        while left >= len(unsent[whole]):
            left -= len(unsent[whole])
            whole += 1
        unsent[: whole + 1] = [unsent[whole][left:]]
        self._scheduled = True
        self._loop.add_writer(self._sock.fileno(), self._go_on)

    def _go_on(self) -> None:
        """Continue sending when the socket is writable."""
        self._loop.remove_writer(self._sock.fileno())
        self._flush()

    def _receive(self) -> None:
        """Read replies and pass them to the waiting coroutines."""
        reader, waiting, buffer = self._reader, self._waiting, self._buffer
        came: list[tuple[Reply, Any]] = []
        try:
            nbytes = self._sock.recv_into(buffer)
            while nbytes > 0:
                reader.feed(buffer, 0, nbytes)
                nbytes = self._sock.recv_into(buffer) if self._pending() else -1
            while (reply := reader.gets()) is not False:
                waiter = waiting.popleft()
                if waiter is not None:
                    came.append((waiter, reply))
        except _LATER:
            return
        except (OSError, redis_errors.RedisError, IndexError) as error:
            self._lose(redis_errors.ConnectionError, f"no reply can be read: {error!r}")
        else:
            if not nbytes:
                self._lose(redis_errors.ConnectionError, "the server closed the connection")
            if waiting:
                self._progress = self._loop.time()
            elif self._retired:
                self.close()
        # This comes last, because the coroutines resume here and may send commands or close the connection.
        self._hand_out(came)

    def _hand_out(self, came: list[tuple[Reply, Any]]) -> None:
        if asyncio.current_task(self._loop) is not None:
            # The program runs the loop inside a task of the same loop, so no other task can resume now.
            for waiter, reply in came:
                self._loop.call_soon(waiter.arrived, reply)
            return
        if len(came) == 1:
            waiter, reply = came[0]
            waiter.arrived(reply)
            return
        left = iter(came)
        try:
            for waiter, reply in left:
                waiter.arrived(reply)
        except BaseException:
            # A coroutine raised SystemExit or KeyboardInterrupt, which stops the loop, perhaps only for a while.
            for waiter, reply in left:
                self._loop.call_soon(waiter.arrived, reply)
            raise

    def _look(self) -> None:
        """Close the connection if calls wait for replies and the server has been silent for too long."""
        self._watch = None
        if not self._waiting:
            return
        left_s = self._progress + self._timeout_s - self._loop.time()
        if left_s <= 0 and not self._waits_on():
            self._lose(redis_errors.TimeoutError, f"no reply within {self._timeout_s:g} s")
            return
        if left_s <= 0:
            left_s += self._longest_s - self._timeout_s
            self._timeout_s = self._longest_s
        self._watch = self._loop.call_later(left_s, self._look)

    def _waits_on(self) -> bool:
        """Return whether to wait longer for the replies to calls that must not be repeated.

        If so, time out all other calls.
        """
        if self._timeout_s >= self._longest_s or not any(r and r.once for r in self._waiting):
            return False
        self.retire()
        late = redis_errors.TimeoutError(f"no reply within {self._timeout_s:g} s")
        for reply in self._waiting:
            if reply is not None and not reply.once:
                reply.fail(late)
        return True

    def _lose(self, kind: type[redis_errors.RedisError], text: str) -> None:
        """Close the connection. Each waiting coroutine gets an error that shows whether its command was sent."""
        sock, self._sock, self.is_open = self._sock, None, False
        if sock is None:
            return
        # In a forked child, the selector belongs to the parent.
        if not self._loop.is_closed() and self._pid == os.getpid():
            self._loop.remove_reader(sock.fileno())
            self._loop.remove_writer(sock.fileno())
        if self._watch is not None:
            self._watch.cancel()
        self._connection.disconnect()
        waiting, self._waiting = self._waiting, deque()
        sent = len(waiting) - len(self._unsent)
        self._unsent.clear()
        if self._loop.is_closed():
            return
        for number, reply in enumerate(waiting):
            if reply is not None:
                reply.fail(kind(text) if number < sent else NotSentError(text))


def async_client(client: Client) -> AsyncClient:
    """Return the asyncio client of `client` for the running event loop."""
    loop = asyncio.get_running_loop()
    of_loop: AsyncClient | None = client.of_loops.get(loop)
    if of_loop is None:
        for other in [known for known in client.of_loops if known.is_closed()]:
            client.of_loops.pop(other).close()
        of_loop = client.of_loops[loop] = AsyncClient(client)
    return of_loop


def close_async(client: Client) -> None:
    """Close the client's connections of all event loops; the next calls open new connections."""
    for loop, aclient in list(client.of_loops.items()):
        if loop.is_running() and loop is not _running():
            loop.call_soon_threadsafe(aclient.close)
        else:
            aclient.close()


def _is_lost(error: Exception) -> bool:
    """Return whether the connection broke after the whole command was sent, so that no reply came."""
    answers = (redis_errors.ResponseError, redis_errors.BusyLoadingError, NotSentError)
    return isinstance(error, LOST) and not isinstance(error, answers)


def _retrieve(opening: asyncio.Future[Any]) -> None:
    """Mark a future's error as retrieved, so that asyncio doesn't log it if all waiting coroutines were cancelled."""
    if not opening.cancelled():
        opening.exception()


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
