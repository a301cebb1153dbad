"""Blocking until somebody stores an item under a key, without taking it away from other waiters."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from jobq.errors import UnavailableError

if TYPE_CHECKING:
    from jobq.client.connection import Client


def wait_for_item(client: Client, key: str, seconds: float) -> bytes | None:
    """The first item of the list at `key`; None when none came in time, or the connection broke.

    The list is moved onto itself: the item stays, its expiry too, and the next waiter is served.
    """
    import redis.exceptions

    try:
        connection = client.open_connection(key)
    except redis.exceptions.ConnectionError as error:
        raise UnavailableError(f"no connection to wait for a result on: {error}") from error
    try:
        connection.send_command("BLMOVE", key, key, "LEFT", "LEFT", f"{max(0.001, seconds):.3f}")
        return cast("bytes | None", connection.read_response())
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError):
        return None
    finally:
        connection.disconnect()
