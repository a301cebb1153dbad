"""A dequeue sent behind a blocking pop of the wake marker, on the same connection.

The server makes it at the moment the pop returns, so a message reaches an idle child without a round trip
of its own. It is one of the caller's numbered calls: where its reply was lost, `again` asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jobq.queue.types import Dequeued

Argument = str | bytes | int


class Ahead(NamedTuple):
    """`command` is to be sent; `read` takes its reply; `again` makes the same call by itself."""

    command: tuple[Argument, ...]
    read: Callable[[Any], Dequeued]
    again: Callable[[], Dequeued]
