"""The price of durability: one producer, one message at a time, at each level."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.server import free_port, info, private_server
from bench.stage import wait_for
from bench.work import noop
from jobq import Client

ENQUEUED = 500
WARMED_UP = 50


def durability(_: str) -> Iterator[tuple[str, float, str]]:
    """memory; disk with appendfsync always, compared with memory there; replicas=1, compared with memory there."""
    with private_server() as client:
        yield _rate(client, "memory", "nothing on disk")
    with private_server("--appendonly", "yes", "--appendfsync", "everysec") as client:
        yield _rate(client, "memory", "appendfsync everysec")
    with private_server("--appendonly", "yes", "--appendfsync", "always") as client:
        yield _rate(client, "disk", "appendfsync always")
    port = str(free_port())
    with (
        private_server("--port", port, "--repl-diskless-sync-delay", "0") as client,
        private_server("--replicaof", "127.0.0.1", port) as replica,
    ):
        wait_for(lambda: info(replica, "replication")["master_link_status"] == "up", 30)
        yield _rate(client, "memory", "one replica")
        yield _rate(client, "replicas=1", "one replica")


def _rate(client: Client, level: str, server: str) -> tuple[str, float, str]:
    bound = noop.options(client=client, durability=level)
    for _ in range(WARMED_UP):
        bound.enqueue()
    started = time.perf_counter()
    for _ in range(ENQUEUED):
        bound.enqueue()
    rate = ENQUEUED / (time.perf_counter() - started)
    return f"enqueue, durability {level} ({server})", rate, "jobs/s"
