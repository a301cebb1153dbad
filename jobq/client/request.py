"""One call of a script, said beforehand: what is sent, what the reply means, whether it may be sent twice.

For protocols whose calls carry no number: a repeated send would send two messages. Such a request is
repeated while it is certain that the server didn't take it; once its reply is lost, that is told instead.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from redis import exceptions as refused

from jobq.client.connection import packed
from jobq.client.scripts import Script
from jobq.errors import UnavailableError

if TYPE_CHECKING:
    from redis.connection import Connection

    from jobq.client.connection import Client

Argument = str | bytes | int
T = TypeVar("T")
#: A reply that says: the same call again, there was more to do than one call may.
AGAIN = b"again"
LOST = (refused.ConnectionError, refused.TimeoutError, OSError)


class Request(NamedTuple, Generic[T]):
    """`read` makes the result of the reply, or raises what it says. `repeatable`: twice does no harm."""

    script: Script
    keys: tuple[str, ...]
    args: Sequence[Argument]
    read: Callable[[Any], T]
    repeatable: bool = True

    def run(self, client: Client) -> T:
        """Its result. Raises what `read` raises, UnavailableError, ServerFullError or ScriptError."""
        by = None if self.repeatable else once
        while True:
            reply = client.run(self.script, self.keys, self.args, by)
            if reply[0] != AGAIN:
                return self.read(reply)


def once(connection: Connection, command: Sequence[Argument], asking: bool = False) -> Any:
    """An exchange that is not repeated after its command was sent whole and no reply came."""
    try:
        ensure_open(connection)
        if asking:
            connection.send_command("ASKING")
            connection.read_response()
        # redis-py's own packing looks at every argument once more.
        connection.send_packed_command((packed(tuple(command)),))
    except refused.ResponseError:
        raise
    except BaseException:
        connection.disconnect()
        raise
    try:
        return connection.read_response()
    except (refused.ResponseError, refused.BusyLoadingError):
        raise
    except LOST as error:
        connection.disconnect()
        raise lost(error) from error
    except BaseException:
        connection.disconnect()
        raise


def ensure_open(connection: Connection) -> None:
    """A connection that the server closed while it was idle fails here, before anything is sent on it."""
    sock = connection._sock
    if sock is None:
        return
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if poll.poll(0):
        connection.can_read(0)


def lost(error: BaseException) -> UnavailableError:
    """What is said of a call whose reply was lost."""
    return UnavailableError(
        f"the reply was lost ({error}), whether the call took effect is unknown; "
        "look, or repeat it if twice does no harm"
    )
