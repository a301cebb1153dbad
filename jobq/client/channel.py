"""Listening to a pub/sub channel, to end a wait early. Whoever waits must also look by himself.

A message published while nobody is connected is lost, so a wait may always end for no reason, or late.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterable

from redis import exceptions as refused
from redis.connection import Connection

from jobq.client.connection import Client
from jobq.errors import UnavailableError


class Channel:
    """One channel; connected when it is first waited on. A server that forbids it is only slower."""

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
        """Begin to listen; the file that becomes readable, None where there is nothing to listen to."""
        if self._connection is None and not self._forbidden:
            try:
                self._connection = self._client.open_connection(self._name)
                self._connection.send_command("SUBSCRIBE", self._name)
                self._connection.read_response()
            except refused.ResponseError:
                self._forbidden = True
                self.close()
            except (refused.RedisError, OSError, UnavailableError):
                self.close()
        return self.open_file

    @property
    def open_file(self) -> int | None:
        """What becomes readable when something is published, without connecting for it."""
        return None if self._connection is None else self._client.fileno(self._connection)

    def wait(self, seconds: float, others: Iterable[int] = ()) -> bool:
        """Sleep until something is published or one of `others` is readable; whether one of those is."""
        others = list(others)
        file = self.open()
        if file is None and not others:
            time.sleep(seconds)
            return False
        with selectors.DefaultSelector() as selector:
            for one in others if file is None else (file, *others):
                selector.register(one, selectors.EVENT_READ)
            ready = [key.fd for key, _ in selector.select(seconds)]
        if file in ready:
            self.drain()
        return any(one in others for one in ready)

    def drain(self) -> None:
        """Read what was published; many wakes are one."""
        try:
            while self._connection is not None and self._connection.can_read(0):
                self._connection.read_response()
        except (refused.RedisError, OSError):
            self.close()

    def close(self) -> None:
        """Listen no more, until it is waited on again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
