"""Waiting in line for a ticket: one blocking pop of the server, which serves who blocked first.

A ticket is no message: a client that dies with one loses nothing, and the scripts issue another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from redis.exceptions import RedisError, ResponseError

from jobq.client.numbered_calls import PASSING
from jobq.errors import ScriptError, UnavailableError

if TYPE_CHECKING:
    from redis.connection import Connection

    from jobq.client.connection import Client


class TicketWait:
    """A place in the line for tickets of some queues, kept until a ticket comes, the time is over or it is left."""

    def __init__(self, client: Client, tickets: Sequence[str]) -> None:
        self._client = client
        self._tickets = tickets
        self._connection: Connection | None = None
        #: Whether the last answer was none because the connection ended.
        self.broke = False

    @property
    def stands(self) -> bool:
        """Whether the server knows of us."""
        return self._connection is not None

    def stand(self, seconds: float | None) -> None:
        """Get in line for so long, None: for ever. Raises UnavailableError."""
        timeout = "0" if seconds is None else f"{max(seconds, 0.001):.3f}"
        try:
            connection = self._client.open_connection(self._tickets[0])
            self._connection = connection
            connection.send_command("BLPOP", *self._tickets, timeout)
        except (RedisError, OSError):
            self.leave()

    def file(self) -> int:
        """What becomes readable when there is an answer."""
        assert self._connection is not None
        return self._client.fileno(self._connection)

    def answer(self) -> tuple[bytes, bytes] | None:
        """The key and the ticket that we got; None when the time is over or the connection broke (`broke`).

        Waits for the answer if there is none yet. Raises ScriptError where this user may not wait.
        """
        connection = self._connection
        self.broke = False
        try:
            reply = connection.read_response() if connection else None
        except (*PASSING, UnavailableError):
            self.broke, reply = True, None
        except ResponseError as error:
            if not str(error).startswith("UNBLOCKED"):
                raise ScriptError(
                    f"the server refused BLPOP {self._tickets[0]}: {error}"
                ) from error
            self.broke, reply = True, None
        finally:
            self.leave()
        return (reply[0], reply[1]) if reply else None

    def leave(self) -> None:
        """Give the place up. A ticket that is just coming is lost, which the scripts mend."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
