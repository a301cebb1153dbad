"""Who works on Ruby's queues, by the entries that dashboards read; jobq's workers among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from jobq.errors import CodecError
from jobq.jobs.codec import decode_any
from jobq.protocols.ruby.places import Place, System

if TYPE_CHECKING:
    from jobq.client.connection import Client


class Seen(NamedTuple):
    """One worker. `busy`: how many jobs it runs."""

    system: System
    worker: str
    queues: list[str]
    busy: int


def sidekiq_processes(client: Client, namespace: str = "") -> Iterator[Seen]:
    """Sidekiq's processes that gave a sign of life within a minute."""
    place = Place("sidekiq", namespace, "")
    for identity in sorted(client.command("SMEMBERS", place.key("processes"))):
        name = identity.decode("utf-8", "backslashreplace")
        info, busy = client.command("HMGET", place.key(name), "info", "busy")
        if info is None:
            continue
        try:
            facts = decode_any(info)
            queues = facts.get("queues") or []
            yield Seen("sidekiq", name, [str(one) for one in queues], int(busy or 0))
        except (CodecError, AttributeError, TypeError, ValueError):
            # Somebody else's entry, that no Sidekiq wrote.
            continue


def resque_workers(client: Client, namespace: str = "resque") -> Iterator[Seen]:
    """Resque's workers that are registered."""
    place = Place("resque", namespace, "")
    for identity in sorted(client.command("SMEMBERS", place.key("workers"))):
        name = identity.decode("utf-8", "backslashreplace")
        queues = name.split(":", 2)[-1].split(",")
        yield Seen("resque", name, queues, client.command("EXISTS", place.key(f"worker:{name}")))
