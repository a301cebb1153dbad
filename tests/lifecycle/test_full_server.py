"""A server whose memory is full: workers stay visible, run waiting messages, and name memory as the cause."""

from __future__ import annotations

import pytest

from jobq.queue import presence

from .conftest import until
from .test_health import served

__all__ = ["served"]
LEASE_MS = 1_000
#: Every Redis uses more than that.
FULL = 1


@pytest.fixture
def fill(redis):
    """Makes the server full; and again as it was at the end."""
    yield lambda: redis.config_set("maxmemory", FULL)
    redis.config_set("maxmemory", 0)


@pytest.mark.one_server
def test_worker_stays_live_and_says_full_when_the_server_is_full(
    client, queue, served, send, ledger, fill
):
    worker, ask = served("--processes", "1", "--lease", f"{LEASE_MS}ms", "--name", "w")
    until(lambda: ask("/readyz") == (200, "ok"))
    send("gated", "a")
    send("quick", "b")
    until(lambda: ledger.lines("start", "a"))
    fill()
    [before] = presence.workers(client)
    until(lambda: ask("/readyz")[1].startswith("full: "))
    until(lambda: presence.workers(client)[0].seen_at > before.seen_at + 2 * LEASE_MS)
    ledger.gate("a").touch()
    until(lambda: ledger.lines("end", "b"))
    assert "not renewed" not in worker.log
    assert worker.log.count("the server is full") == 1
    client.command("CONFIG", "SET", "maxmemory", 0)
    until(lambda: ask("/readyz") == (200, "ok"))
    assert "the server has free memory again" in worker.log
    assert worker.stop() == 0


@pytest.mark.one_server
def test_worker_starts_when_the_server_is_full(client, queue, served, send, ledger, fill):
    send("quick", "a")
    fill()
    worker, ask = served("--processes", "1", "--lease", f"{LEASE_MS}ms", "--name", "w")
    until(lambda: ledger.lines("end", "a"))
    until(lambda: [one.name for one in presence.workers(client)] == ["w"])
    until(lambda: ask("/readyz")[1].startswith("full: "))
    assert worker.stop() == 0
    assert presence.workers(client) == []
