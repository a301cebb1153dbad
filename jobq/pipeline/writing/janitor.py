"""Who stages what, and the end of stages whose write is gone.

`jobq:staged` is a sorted set of `<run> <queue>` by the last sign of life, in ms of the server's clock; it
lies outside every queue's slot, as the queues' directory does. Each attempt gives signs while it runs, and
the driver while it publishes. A stage without one for GONE_MS is dropped by the next atomic write, and
by its own TTL at last.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jobq.client.connection import connect
from jobq.errors import JobqError
from jobq.pipeline.writing.outlet import STAGE_TTL_MS, stage_key

if TYPE_CHECKING:
    from jobq.client.connection import Client
    from jobq.config import ServerSettings

GONE_MS = 600_000
SIGN_S = 30.0


def directory_key(client: Client) -> str:
    """Outside any slot of a queue."""
    return f"{client.namespace}:staged"


def now_ms(client: Client) -> int:
    """The server's clock."""
    seconds, micros = client.command("TIME", routed_by=directory_key(client))
    return int(seconds) * 1000 + int(micros) // 1000


def enter(client: Client, run: str, queue: str) -> None:
    """Say that this run stages for this queue."""
    client.command("ZADD", directory_key(client), now_ms(client), f"{run} {queue}")


def queues_of(client: Client, run: str) -> list[str]:
    """The queues that a run stages for."""
    every = client.command("ZRANGE", directory_key(client), 0, -1)
    named = (member.decode().split(" ", 1) for member in every)
    return [queue for name, queue in named if name == run]


def drop(client: Client, run: str, queue: str) -> None:
    """Take one stage away, with its entry."""
    # In this order: a task that stages meanwhile enters it again after that, so no stage is left unlisted.
    client.command("ZREM", directory_key(client), f"{run} {queue}")
    client.command("UNLINK", stage_key(client, queue, run))


def sweep(client: Client, gone_ms: int = GONE_MS) -> int:
    """Drop the stages of writes that gave no sign of life for so long; how many there were."""
    until = now_ms(client) - gone_ms
    stale = client.command("ZRANGEBYSCORE", directory_key(client), "-inf", until)
    for member in stale:
        drop(client, *member.decode().split(" ", 1))
    return len(stale)


def sign(client: Client, run: str) -> None:
    """This run lives: its stages stay."""
    at = now_ms(client)
    for queue in queues_of(client, run):
        client.command("PEXPIRE", stage_key(client, queue, run), STAGE_TTL_MS)
        client.command("ZADD", directory_key(client), "XX", at, f"{run} {queue}")


@contextmanager
def signs_of_life(settings: ServerSettings, run: str, every_s: float = SIGN_S) -> Iterator[None]:
    """Within it the run gives its signs, however long a row takes to come."""
    over = threading.Event()

    def give() -> None:
        client = connect(settings=settings)
        while not over.wait(every_s):
            try:
                sign(client, run)
            except JobqError:
                continue  # the calls of the write itself tell
        client.close()

    thread = threading.Thread(target=give, name="jobq-signs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
