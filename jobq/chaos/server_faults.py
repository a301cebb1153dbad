"""Strokes against the server."""

from __future__ import annotations

import time

from jobq.chaos.stage import Stage


def scripts_flush(stage: Stage) -> None:
    """SCRIPT FLUSH."""
    with stage.fault("scripts-flush"):
        stage.client.command("SCRIPT", "FLUSH")


def clients_kill(stage: Stage) -> None:
    """CLIENT KILL of every connection."""
    with stage.fault("clients-kill"):
        stage.client.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def server_restart(stage: Stage) -> None:
    """kill -9 of the server, and a start on its append-only file."""
    with stage.fault("server-restart"):
        stage.place.restart()


def memory_full(stage: Stage) -> None:
    """maxmemory below what is used, for a while."""
    before = stage.client.command("CONFIG", "GET", "maxmemory")[1]
    with stage.fault("memory-full"):
        try:
            stage.client.command("CONFIG", "SET", "maxmemory", "1")
            time.sleep(stage.random.uniform(0.3, 0.8))
        finally:
            stage.client.command("CONFIG", "SET", "maxmemory", before)


def disk_full(stage: Stage) -> None:
    """No room for the append-only file, for a while."""
    with stage.fault("disk-full"):
        try:
            stage.place.fill_disk()
            time.sleep(stage.random.uniform(0.3, 0.8))
        finally:
            stage.place.free_disk()
