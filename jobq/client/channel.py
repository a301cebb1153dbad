"""Listen to a pub/sub channel in order to end a wait early. The waiting program must also poll.

A message published while the connection is down is lost, so a wait may end late. A wait may also end too early.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterable

from redis import exceptions as redis_errors
from redis.connection import Connection

from jobq.client.connection import Client
from jobq.errors import UnavailableError


class Channel:
    """A pub/sub channel, which connects at the first wait.

    If the user may not subscribe, published messages don't end a wait early.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._connection: Connection | None = None
        self._forbidden = False

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> int | None:
        """Subscribe if necessary, and return the connection's file descriptor; None if there is no connection."""
        if self._connection is None and not self._forbidden:
            try:
                self._connection = self._client.open_connection(self._name)
                self._connection.send_command("SUBSCRIBE", self._name)
                self._connection.read_response()
            except redis_errors.ResponseError:
                self._forbidden = True
                self.close()
            except (redis_errors.RedisError, OSError, UnavailableError):
                self.close()
        return self.open_file

    @property
    def open_file(self) -> int | None:
        """The file descriptor that becomes readable when a message is published; None without a connection."""
        return None if self._connection is None else self._client.fileno(self._connection)

    def wait(self, seconds: float, others: Iterable[int] = ()) -> bool:
        """Sleep for `seconds`, or until a message is published or a file descriptor in `others` is readable.

        Return whether a file descriptor in `others` is readable.
        """
        others = list(others)
        file = self.open()
        if file is None and not others:
            time.sleep(seconds)
            return False
        with selectors.DefaultSelector() as selector:
            for source in others if file is None else (file, *others):
                selector.register(source, selectors.EVENT_READ)
            ready = [key.fd for key, _ in selector.select(seconds)]
        if file in ready:
            self.drain()
        return any(source in others for source in ready)

    def drain(self) -> None:
        """Read and drop all published messages."""
        try:
            while self._connection is not None and self._connection.can_read(0):
                self._connection.read_response()
        except (redis_errors.RedisError, OSError):
            self.close()

    def close(self) -> None:
        """Stop listening until the next wait."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
