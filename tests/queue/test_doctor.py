"""The findings of doctor, on facts made by hand; tests of `jobq check doctor` ask real servers."""

from __future__ import annotations

import pytest

from jobq.queue.doctor import Facts, Finding, diagnose

SOUND = {
    "redis_version": "7.0.15", "maxmemory_policy": "noeviction", "used_memory": "1000000", "maxmemory": "0",
    "total_system_memory": "8000000000", "aof_enabled": "1", "aof_last_write_status": "ok", "role": "master",
    "connected_clients": "3", "maxclients": "10000",
}  # fmt: skip


def found(check: str, **changed: object) -> Finding:
    """Return the findings about a subject if some facts differ from a sound server."""
    info = {
        **SOUND,
        **{k: str(v) for k, v in changed.items() if k not in Facts.__dataclass_fields__},
    }
    parts = {k: v for k, v in changed.items() if k in Facts.__dataclass_fields__}
    facts = {
        "info": info,
        "settings": {"appendfsync": "everysec", "save": ""},
        "pings_ms": [0.1] * 100,
    }
    findings = diagnose(Facts(**{"url": "unix:///tmp/x", **facts, **parts}))  # type: ignore[arg-type]
    return next(finding for finding in findings if finding.check == check)


def test_sound_server_has_nothing_but_ok() -> None:
    facts = Facts(
        url="redis://localhost", info=SOUND, settings={"appendfsync": "everysec"}, pings_ms=[0.1]
    )
    assert [finding for finding in diagnose(facts) if finding.level != "ok"] == []


@pytest.mark.parametrize(
    "policy",
    [
        "allkeys-lru",
        "allkeys-lfu",
        "allkeys-random",
        "volatile-lru",
        "volatile-lfu",
        "volatile-ttl",
        "volatile-random",
    ],
)
def test_eviction_fails_with_any_policy_but_noeviction_when_memory_is_limited(policy: str) -> None:
    finding = found("eviction", maxmemory_policy=policy, maxmemory=100_000_000)
    assert finding.level == "fail"
    assert "noeviction" in finding.remedy
    assert ("whole queues" if policy.startswith("allkeys") else "results") in finding.value
    assert found("eviction", maxmemory_policy=policy).level == "warn"


def test_eviction_is_read_from_settings_or_unknown() -> None:
    assert (
        found("eviction", maxmemory_policy="", settings={"maxmemory-policy": "noeviction"}).level
        == "ok"
    )
    unknown = found("eviction", maxmemory_policy="", unknown={"info": "NOPERM no"})
    assert unknown.level == "warn" and "NOPERM" in unknown.value


@pytest.mark.parametrize(
    ("changed", "level", "word"),
    [
        ({}, "ok", "everysec"),
        ({"settings": {"appendfsync": "always"}}, "ok", "no acknowledged write"),
        ({"settings": {"appendfsync": "no"}}, "warn", "appendfsync no"),
        ({"settings": {}}, "ok", "unknown"),
        ({"aof_enabled": "0", "settings": {"save": "900 1"}}, "warn", "snapshots only"),
        ({"aof_enabled": "0", "settings": {"save": ""}}, "warn", "every message"),
    ],
)
def test_persistence_says_what_a_crash_loses(
    changed: dict[str, object], level: str, word: str
) -> None:
    finding = found("persistence", **changed)
    assert finding.level == level and word in finding.value
    assert bool(finding.remedy) == (level != "ok")


def test_persistence_fails_when_the_last_write_did() -> None:
    facts = Facts(info={**SOUND, "aof_last_write_status": "err"})
    assert ("persistence", "fail") in [(f.check, f.level) for f in diagnose(facts)]


@pytest.mark.parametrize(
    ("url", "level", "lack"),
    [
        ("unix:///run/x", "ok", ""), ("redis://localhost:6379/0", "ok", ""), ("redis://127.0.0.1", "ok", ""),
        ("redis://[::1]:6379", "ok", ""), ("rediss://u:***@far.example:6380", "ok", ""),
        ("redis://far.example", "warn", "TLS or a password"), ("rediss://far.example", "warn", "a password"),
        ("redis://u:***@far.example", "warn", "TLS"),
        ("redis+sentinel://localhost:1,far.example:2/mymaster", "warn", "TLS or a password"),
    ],
)  # fmt: skip
def test_exposure_warns_of_a_far_server_without_tls_or_password(
    url: str, level: str, lack: str
) -> None:
    finding = found("exposure", url=url)
    assert finding.level == level and lack in finding.value


@pytest.mark.parametrize(
    ("fields", "advises"), [("512", True), ("128", True), ("16", False), ("8", False)]
)
def test_hashes_are_ok_with_advice_when_the_server_searches_long_ones(
    fields: str, advises: bool
) -> None:
    finding = found("hashes", settings={"hash-max-listpack-entries": fields})
    assert finding.level == "ok" and fields in finding.value
    assert ("hash-max-listpack-entries 8" in finding.remedy) == advises
    assert not any(each.check == "hashes" for each in diagnose(Facts(settings={})))


@pytest.mark.parametrize(
    ("check", "changed", "level"),
    [
        ("server", {"missing": ["FCALL"]}, "fail"),
        ("server", {"unknown": {"commands": "NOPERM"}}, "warn"),
        ("memory", {"used_memory": 90, "maxmemory": 100}, "warn"),
        ("memory", {"used_memory": 100, "maxmemory": 100}, "fail"),
        ("memory", {"used_memory": 7_900_000_000}, "warn"),
        ("replicas", {"role": "slave"}, "fail"),
        ("replicas", {"slave0": "ip=x,port=1,state=online,offset=1,lag=0"}, "ok"),
        ("replicas", {"slave0": "ip=x,port=1,state=online,offset=1,lag=60"}, "warn"),
        ("replicas", {"slave0": "ip=x,port=1,state=wait_bgsave,offset=1,lag=0"}, "warn"),
        ("clock", {"skew_ms": -1500.0}, "warn"),
        ("clock", {"skew_ms": 900.0}, "ok"),
        ("latency", {"pings_ms": [6.0] * 100}, "warn"),
        ("rights", {"refused": {"jobq:queues": ["SADD"]}}, "fail"),
        ("rights", {"unknown": {"rights": "NOPERM evalsha"}}, "fail"),
        ("clients", {"connected_clients": 9000}, "warn"),
    ],
)
def test_finding_has_its_level_and_a_remedy_when_not_ok(
    check: str, changed: dict[str, object], level: str
) -> None:
    finding = found(check, **changed)
    assert finding.level == level
    assert bool(finding.remedy) == (level != "ok")


def test_valkey_is_told_from_redis() -> None:
    assert found("server", valkey_version="8.1.4").value.startswith("Valkey 8.1.4")
    assert found("server").value.startswith("Redis 7.0.15")


def test_rights_that_lack_come_with_the_words_that_grant_them() -> None:
    lacks = {"jobq:{doctor}:messages": ["XADD", "GET"], "jobq:queues": []}
    finding = found("rights", refused=lacks, user="app")
    assert finding.value == "user app has no right to send XADD, GET on jobq:{doctor}:messages"
    assert finding.remedy == "ACL SETUSER app ~jobq:* +get +xadd"


@pytest.mark.parametrize(
    ("durability", "online", "level"),
    [
        ("replicas=1", 0, "fail"), ("replicas=1", 1, "warn"), ("replicas=1", 2, ""), ("replicas=2", 1, "fail"),
        ("replicas=2", 2, "warn"), ("replicas=2", 3, ""), ("disk", 0, ""), ("memory", 0, ""),
    ],
)  # fmt: skip
def test_durability_by_replicas_wants_one_more_of_them(
    durability: str, online: int, level: str
) -> None:
    info = {f"slave{n}": "ip=h,port=1,state=online,lag=0" for n in range(online)}
    info["slave9"] = "ip=h,port=1,state=wait_bgsave,lag=0"
    found = diagnose(Facts(info={"role": "master", **info}, durability=durability))
    told = [finding for finding in found if finding.check == "durability"]
    assert [finding.level for finding in told] == ([level] if level else [])
    if level:
        assert f"run {int(durability[-1]) + 1} replicas" in told[0].remedy
