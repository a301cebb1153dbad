"""The asyncio client: the same calls as `connection.Client`, without blocking the event loop.

Import it where an event loop runs; `connection` does without asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from redis import exceptions as refused
from redis.asyncio.connection import AbstractConnection

from jobq.client.connection import LEAST_WAIT_S, Client, packed
from jobq.client.numbered_calls import (
    AGAIN,
    FAILED,
    LOST,
    CallState,
    Command,
    Following,
    ScriptCall,
    reply_lost,
)

T = TypeVar("T")
AsyncExchange = Callable[[AbstractConnection, Command, bool], Awaitable[Any]]


class AsyncClient:
    """Calls to the deployment of `client`, for one event loop. Any number of coroutines may share it.

    It has connections of its own; the settings, and what is known about the nodes, are those of `client`. A
    coroutine that is cancelled closes its connection: whether its call took effect is unknown.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._idle: dict[Hashable, list[AbstractConnection]] = {}

    def __repr__(self) -> str:
        return f"Async{self.client!r}"

    async def ask(self, call: ScriptCall[T]) -> T:
        """As Client.ask."""
        client, by = self.client, exchange if call.repeatable else exchange_once
        while True:
            words = client.words(call.script, call.keys, call.args)
            state = CallState(client, words, call.script)
            reply = await self.perform(call.keys[0] if call.keys else "", state, by)
            if reply[0] != AGAIN:
                return call.read(reply)

    async def perform(self, key: str, state: CallState, by: AsyncExchange | None = None) -> Any:
        """As Client.perform."""
        by = by or exchange
        load = False
        while True:
            node: Hashable | None = None
            connection: AbstractConnection | None = None
            try:
                node = state.redirect or await self._locate(key)
                # The first try has the whole time of a socket; the others end with the caller's patience.
                left_s = state.left_s
                async with asyncio.timeout(None if left_s is None else max(LEAST_WAIT_S, left_s)):
                    connection = self._connection(node)
                    await connection.connect()
                    if load and state.script is not None:
                        await exchange(connection, ("SCRIPT", "LOAD", state.script.source))
                    state.sending()
                    reply = await by(connection, state.command, state.redirect is not None)
            except FAILED as error:
                if connection is not None:
                    await self._take_back(node, connection, error)
                load = await self._prepare(state.failed(error), node, error)
            except BaseException:
                if connection is not None:
                    await connection.disconnect(nowait=True)
                raise
            else:
                self._keep(node, connection)
                return reply

    async def close(self) -> None:
        """Close what is open; the next call opens anew."""
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                await connection.disconnect(nowait=True)

    async def _locate(self, key: str) -> Hashable:
        """The node that serves `key`; asked in a thread where it isn't known."""
        topology = self.client.topology
        known = topology.known(key)
        return known if known is not None else await asyncio.to_thread(topology.locate, key)

    def _connection(self, node: Hashable) -> AbstractConnection:
        idle = self._idle.get(node)
        return idle.pop() if idle else self.client.topology.open_async(node)

    def _keep(self, node: Hashable | None, connection: AbstractConnection) -> None:
        self._idle.setdefault(node, []).append(connection)

    async def _take_back(
        self, node: Hashable | None, connection: AbstractConnection, error: Exception
    ) -> None:
        if isinstance(error, refused.ResponseError):
            self._keep(node, connection)
        else:
            await connection.disconnect(nowait=True)

    async def _prepare(self, following: Following, node: Hashable | None, error: Exception) -> bool:
        """As Client._prepare."""
        if following.forget:
            self.client.topology.forget(node if following.silent else None)
        if following.close:
            for connection in self._idle.pop(node, []):
                await connection.disconnect(nowait=True)
        if following.error is not None:
            raise following.error from error
        await asyncio.sleep(following.pause_s)
        return following.load


def ensure_open(connection: AbstractConnection) -> None:
    """A connection that was closed while it was idle fails here, before anything is sent on it."""
    reader, writer = connection._reader, connection._writer
    if reader is None or reader.at_eof() or writer is None or writer.transport.is_closing():
        raise refused.ConnectionError("the server closed the connection while it was idle")


async def exchange(connection: AbstractConnection, command: Command, asking: bool = False) -> Any:
    """One command and its reply."""
    ensure_open(connection)
    if asking:
        await connection.send_command("ASKING")
        await connection.read_response()
    await connection.send_packed_command(packed(command))
    return await connection.read_response()


async def exchange_once(
    connection: AbstractConnection, command: Command, asking: bool = False
) -> Any:
    """An exchange that is not repeated after its command was sent whole and no reply came."""
    ensure_open(connection)
    if asking:
        await connection.send_command("ASKING")
        await connection.read_response()
    await connection.send_packed_command(packed(command))
    try:
        return await connection.read_response()
    except (refused.ResponseError, refused.BusyLoadingError):
        raise
    except LOST as error:
        raise reply_lost(error) from error
