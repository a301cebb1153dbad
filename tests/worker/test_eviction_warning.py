"""A worker that starts on a server that deletes keys says so."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.worker.heartbeat import warn_of_eviction


@pytest.mark.parametrize(
    ("policy", "memory", "says"),
    [
        ("allkeys-lru", 10**9, "maxmemory-policy allkeys-lru"),
        ("volatile-ttl", 0, "once maxmemory is set"),
        ("noeviction", 10**9, ""),
    ],
)
def test_worker_warns_when_the_server_may_evict_keys(
    client: Any, redis: Any, caplog: Any, policy: str, memory: int, says: str
) -> None:
    redis.config_set("maxmemory-policy", policy)
    redis.config_set("maxmemory", memory)
    try:
        warn_of_eviction(client)
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
    assert bool(caplog.messages) is bool(says)
    assert says in caplog.text
