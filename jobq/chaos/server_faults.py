"""Faults of the server."""

from __future__ import annotations

import time

from jobq.chaos.round_setup import RoundSetup
from jobq.chaos.servers import SHARDS, OwnCluster


def scripts_flush(setup: RoundSetup) -> None:
    """Run SCRIPT FLUSH."""
    with setup.injected("scripts-flush"):
        setup.client.command("SCRIPT", "FLUSH")


def clients_kill(setup: RoundSetup) -> None:
    """Close every connection with CLIENT KILL."""
    with setup.injected("clients-kill"):
        setup.client.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def server_restart(setup: RoundSetup) -> None:
    """Kill -9 the server, and start it again from its append-only file."""
    with setup.injected("server-restart"):
        setup.server.restart()


def memory_full(setup: RoundSetup) -> None:
    """Set maxmemory below the memory in use, for a while."""
    before = setup.client.command("CONFIG", "GET", "maxmemory")[1]
    with setup.injected("memory-full"):
        try:
            setup.client.command("CONFIG", "SET", "maxmemory", "1")
            time.sleep(setup.random.uniform(0.3, 0.8))
        finally:
            setup.client.command("CONFIG", "SET", "maxmemory", before)


def disk_full(setup: RoundSetup) -> None:
    """Keep the append-only file from growing for a while."""
    with setup.injected("disk-full"):
        try:
            setup.server.fill_disk()
            time.sleep(setup.random.uniform(0.3, 0.8))
        finally:
            setup.server.free_disk()


def shard_gone(setup: RoundSetup) -> None:
    """Kill -9 one shard for the rest of the round. Messages on other shards must still not run twice."""
    assert isinstance(setup.server, OwnCluster)
    with setup.injected("shard-gone"):
        setup.server.kill(setup.random.randrange(SHARDS))
