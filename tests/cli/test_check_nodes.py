"""`jobq check doctor` on a Cluster and behind Sentinels: every node is judged, whichever answers first."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from jobq import Queue, connect
from jobq.cli import check as commands
from jobq.queue.server_load import LoadWatch

from ..client.deployments import HOST, Node, Spread, Watched, wait_for
from ..conftest import binary


def name(node: Node) -> str:
    return f"{HOST}:{node.port}"


def found(ended: Any, check: str) -> list[dict[str, str]]:
    """The findings of one check."""
    return [record for record in ended.records if record["check"] == check]


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spread]:
    program = binary()
    assert program
    deployment = Spread(program, tmp_path_factory.mktemp("cluster"))
    yield deployment
    deployment.close()


@pytest.fixture
def doctor(line: Any, spread: Spread) -> Any:
    """doctor("--json"): of the Cluster, asked by an address of each node."""
    url = "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in spread.nodes)
    return lambda *args, **env: line("check", "doctor", *args, env={"JOBQ_URL": url, **env})


@pytest.mark.parametrize("place", range(3))
def test_doctor_finds_the_one_node_of_a_cluster_that_evicts(
    doctor: Any, spread: Spread, place: int
) -> None:
    node = spread.nodes[place]
    node.redis.config_set("maxmemory", "200mb")
    node.redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        ended = doctor("--json")
        told = doctor().out
    finally:
        node.redis.config_set("maxmemory", "0")
        node.redis.config_set("maxmemory-policy", "noeviction")
    bad = [record for record in found(ended, "eviction") if record["level"] == "fail"]

    assert ended.code == 1
    assert [record["node"] for record in bad] == [name(node)]
    assert f"fail  eviction     {name(node)}: allkeys-lru" in told
    # The other two say the same, once.
    [good] = [record for record in found(ended, "eviction") if record["level"] == "ok"]
    others = {name(one) for one in spread.nodes if one is not node}
    assert set(good["node"].split(", ")) == others


def test_doctor_says_once_what_holds_for_every_node(doctor: Any) -> None:
    ended = doctor("--json")
    assert ended.code == 0
    for check in ("server", "eviction", "coverage"):
        [record] = found(ended, check)
        assert record["node"] == ""
    assert {record["level"] for record in found(ended, "rights")} == {"ok"}


def test_doctor_finds_the_one_node_that_refuses_a_user(doctor: Any, spread: Spread) -> None:
    poor = spread.nodes[1]
    for node in spread.nodes:
        rights = ["~*", "&*", "+@all", *(["-xadd"] if node is poor else [])]
        node.redis.execute_command("ACL", "SETUSER", "some", "reset", "on", ">x", *rights)
    hosts = ",".join(f"{HOST}:{node.port}" for node in spread.nodes)
    ended = doctor("--json", JOBQ_URL=f"redis+cluster://some:x@{hosts}")

    [bad] = [record for record in found(ended, "rights") if record["level"] == "fail"]
    assert (ended.code, bad["node"]) == (1, name(poor))
    assert "XADD" in bad["value"]


def test_doctor_warns_when_one_lost_shard_stops_the_others(doctor: Any, spread: Spread) -> None:
    for node in spread.nodes:
        node.redis.config_set("cluster-require-full-coverage", "no")
    [whole] = found(doctor("--json"), "coverage")
    spread.nodes[0].redis.config_set("cluster-require-full-coverage", "yes")
    [bad] = [record for record in found(doctor("--json"), "coverage") if record["level"] == "warn"]

    assert (whole["level"], whole["node"]) == ("ok", "")
    assert bad["node"] == name(spread.nodes[0])


def test_doctor_names_the_busy_queue_of_each_node(
    doctor: Any, spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = ",".join(f"{HOST}:{node.port}" for node in spread.nodes)
    client = connect(f"redis+cluster://{hosts}")
    queues = {
        client.topology.locate(queue.wake_key): queue
        for queue in (Queue(f"q{n}", client) for n in range(20))
    }
    assert len(queues) == 3

    def work(_: float) -> None:
        for queue in queues.values():
            queue.enqueue_many([b"x"] * 100)

    for queue in queues.values():
        queue.register()
    # A nearly constant clock makes any server busy.
    monkeypatch.setattr(
        commands, "LoadWatch", partial(LoadWatch, wait=work, now=count(0, 1e-6).__next__)
    )
    busy = {record["node"]: record for record in found(doctor("--json"), "cpu")}
    assert {f"{HOST}:{place[1]}": queue.name for place, queue in queues.items()} == {
        node: record["value"].split()[1] for node, record in busy.items()
    }
    assert all(record["level"] == "warn" for record in busy.values())
    for queue in queues.values():
        queue.admin.clear()
    client.close()


def test_doctor_fails_and_judges_the_others_when_a_node_is_away(line: Any, tmp_path: Path) -> None:
    program = binary()
    assert program
    deployment = Spread(program, tmp_path)
    try:
        url = "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in deployment.nodes)
        deployment.nodes[2].kill()
        ended = line("check", "doctor", "--json", env={"JOBQ_URL": url})
    finally:
        deployment.close()
    away = [record for record in found(ended, "server") if record["level"] == "fail"]
    assert ended.code == 1
    assert [record["node"] for record in away] == [name(deployment.nodes[2])]
    [eviction] = found(ended, "eviction")
    assert (eviction["level"], eviction["node"]) == ("ok", "")


def test_doctor_judges_the_replica_that_sentinels_may_promote(line: Any, tmp_path: Path) -> None:
    program = binary()
    assert program
    watched = Watched(program, tmp_path)
    try:
        wait_for(lambda: watched.master.redis.info()["slave0"]["state"] == "online", "no replica")
        good = line("check", "doctor", "--json", env={"JOBQ_URL": watched.url})
        watched.replica.redis.config_set("maxmemory", "200mb")
        watched.replica.redis.config_set("maxmemory-policy", "allkeys-lru")
        bad = line("check", "doctor", "--json", env={"JOBQ_URL": watched.url})
    finally:
        watched.close()
    assert good.code == 0
    [fault] = [record for record in found(bad, "eviction") if record["level"] == "fail"]
    assert bad.code == 1
    assert fault["node"] == f"{name(watched.replica)} (replica)"
