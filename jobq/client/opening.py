"""Connect without blocking the event loop: awaitable versions of the steps of redis-py's `connect`."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from redis import exceptions as redis_errors
from redis.connection import SSLConnection, UnixDomainSocketConnection
from redis.credentials import UsernamePasswordCredentialProvider

from jobq.client.scripts import Argument, packed


async def connected(connection: Any) -> bool:
    """Connect the socket. Return False if that needs a blocking call: a name look-up or a TLS handshake."""
    made = _socket(connection)
    if made is None:
        return False
    sock, address = made
    timeout_s = connection.socket_connect_timeout
    try:
        sock.setblocking(False)
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException as error:
        sock.close()
        if isinstance(error, TimeoutError):
            raise redis_errors.TimeoutError("Timeout connecting to server") from error
        if isinstance(error, OSError):
            raise redis_errors.ConnectionError(f"{error} connecting to {address}.") from error
        raise
    connection._sock, connection.pid = sock, os.getpid()
    return True


def _socket(connection: Any) -> tuple[socket.socket, Any] | None:
    if isinstance(connection, UnixDomainSocketConnection):
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), connection.path
    if isinstance(connection, SSLConnection):
        return None
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            connection.host, connection.port, connection.socket_type, socket.SOCK_STREAM,
            flags=socket.AI_NUMERICHOST,
        )  # fmt: skip
    except OSError:
        return None
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if connection.socket_keepalive:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in connection.socket_keepalive_options.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return sock, address


async def greet(send: Callable[[bytes], Awaitable[Any]], connection: Any) -> None:
    """Log in, name the client and select the database, with the same commands as redis-py."""
    login = connection.credential_provider
    if login is None and (connection.username or connection.password):
        login = UsernamePasswordCredentialProvider(connection.username, connection.password)
    if login is not None:
        await send(packed(("AUTH", *await login.get_credentials_async())))
    needed, useful = _introduction(connection)
    replies = [send(packed(command)) for command in (*useful, *needed)]
    for reply in replies[: len(useful)]:
        with suppress(redis_errors.ResponseError):
            await reply
    for reply in replies[len(useful) :]:
        await reply


def _introduction(connection: Any) -> tuple[list[tuple[Argument, ...]], list[tuple[Argument, ...]]]:
    """Return the commands that introduce the client: required commands, and commands that servers may reject."""
    needed: list[tuple[Argument, ...]] = []
    if connection.client_name:
        needed.append(("CLIENT", "SETNAME", connection.client_name))
    if connection.db:
        needed.append(("SELECT", connection.db))
    driver = getattr(connection, "driver_info", None)
    name = driver.formatted_name if driver else connection.lib_name
    version = driver.lib_version if driver else connection.lib_version
    words = (("LIB-NAME", name), ("LIB-VER", version))
    return needed, [("CLIENT", "SETINFO", word, value) for word, value in words if value]
