"""A worker that starts on a server that deletes keys says so."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.client.connection import connect
from jobq.config import ServerSettings
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


@pytest.mark.parametrize(
    ("rights", "warns"), [((), True), (("-info",), False), (("-@dangerous",), False)]
)
def test_named_user_is_warned_when_it_may_ask_and_no_refusal_is_in_the_acl_log(
    client: Any, redis: Any, caplog: Any, rights: tuple[str, ...], warns: bool
) -> None:
    redis.execute_command(
        "ACL", "SETUSER", "shop", "reset", "on", ">x", "~jobq:*", "+@all", *rights
    )
    redis.acl_log_reset()
    redis.config_set("maxmemory-policy", "allkeys-lru")
    user = connect(settings=ServerSettings(url=client.url.replace("unix://", "unix://shop:x@")))
    try:
        warn_of_eviction(user)
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
        refused = redis.acl_log()
        user.close()
        redis.execute_command("ACL", "DELUSER", "shop")
    assert refused == []
    assert bool(caplog.messages) is warns


def test_user_that_calls_functions_is_not_asked(client: Any, redis: Any, caplog: Any) -> None:
    redis.execute_command(
        "ACL", "SETUSER", "shop", "reset", "on", ">x", "~jobq:*", "+ping", "+hello", "+client"
    )
    redis.acl_log_reset()
    url = client.url.replace("unix://", "unix://shop:x@")
    user = connect(settings=ServerSettings(url=url, functions=True))
    try:
        warn_of_eviction(user)
        assert redis.acl_log() == []
    finally:
        user.close()
        redis.execute_command("ACL", "DELUSER", "shop")
    assert caplog.messages == []
