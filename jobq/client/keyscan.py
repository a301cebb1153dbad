"""Find keys by a pattern on every node, a bounded number at a time."""

from __future__ import annotations

from typing import NamedTuple

from redis.exceptions import ResponseError

from jobq.client.connection import Client, exchange
from jobq.client.numbered_calls import PASSING
from jobq.errors import ScriptError, UnavailableError

#: Number of keys to scan per step.
AT_ONCE = 1_000


class ScannedKeys(NamedTuple):
    """Keys that match a pattern.

    Attributes:
        looked_at: Approximate number of scanned keys.
        whole: Whether all keys were scanned.
    """

    keys: set[bytes]
    looked_at: int
    whole: bool


def scan_keys(client: Client, pattern: str, most: int) -> ScannedKeys:
    """Scan the keys of all nodes, up to about `most` keys in total.

    Raises ScriptError if the user may not scan keys, and UnavailableError if a node can't be reached.
    """
    matching, looked_at, whole = set[bytes](), 0, True
    for connection in client.open_everywhere():
        cursor = b"0"
        try:
            connection.connect()
            while looked_at < most:
                words = ("SCAN", cursor, "MATCH", pattern, "COUNT", AT_ONCE)
                cursor, keys = exchange(connection, words)
                matching.update(keys)
                looked_at += AT_ONCE
                if cursor == b"0":
                    break
            else:
                whole = False
        except ResponseError as error:
            raise ScriptError(f"the server refuses to list keys: {error}") from error
        except PASSING as error:
            raise UnavailableError(f"listing keys was interrupted: {error}") from error
        finally:
            connection.disconnect()
    return ScannedKeys(matching, looked_at, whole)
