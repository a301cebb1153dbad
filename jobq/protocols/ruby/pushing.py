"""Adding to a Ruby list, once, though the call may be repeated over a lost connection."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobq.client.scripts import load
from jobq.protocols.ruby.places import Place, beside

if TYPE_CHECKING:
    from jobq.client.connection import Client


def push(client: Client, place: Place, jobs: Sequence[bytes], once: str = "") -> bool:
    """Make jobs the newest of their queue, in their order; False if that was done before.

    once: names this push for ten minutes, so that whoever repeats it adds nothing.
    """
    client.command("SADD", place.key("queues"), place.queue)
    return append(client, place.list_key, place.newest, jobs, once)


def append(client: Client, list_key: str, side: str, jobs: Sequence[bytes], once: str = "") -> bool:
    """The same for any list."""
    mark = beside(list_key, client.namespace, f"pushed:{once or secrets.token_urlsafe(12)}")
    return bool(client.run(load("ruby", "push"), [list_key, mark], [side, *jobs]))
