"""What a tenant with rights to one queue can do to flows of another: what it writes into its own outbox is dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import exceptions

from jobq.client.connection import Client
from jobq.errors import ConfigError, ScriptError
from jobq.flows.draining import Drainer
from jobq.flows.run import FlowRun
from jobq.flows.store import FlowStore
from jobq.flows.types import StoredStep
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.flows.flowing import Flowing, call_of, names, step
from tests.security.logins import logins

pytestmark = pytest.mark.one_server
F = "import:7"


@pytest.fixture
def login(server: Any, redis: Any, client: Client, capsys: Any) -> Iterator[Callable[..., Client]]:
    with logins(server, redis, client, capsys) as made:
        yield made


@pytest.fixture
def flowing(client: Client) -> Flowing:
    """A flow of queue low, whose second step is in queue high."""
    found = Flowing(client)
    found.start(F, step("a"), step("b", "a", queue="high"), step("c", "b"))
    found.drain()
    return found


@pytest.mark.parametrize("role", ["producer", "worker", "operator"])
def test_own_outbox_moves_only_own_members(role: str, flowing: Flowing, login: Any, redis: Any):
    tenant: Client = login(role, "--queues", "high")
    with pytest.raises(ScriptError, match=r"NOPERM|permission"):
        tenant.command("XADD", "jobq:{low}:flow-outbox", "*", "1", f"done\x1f~{F}.a.0")
    for word, detail in (("cancel", ""), ("retry", ""), ("signal", "a\x1f1"), ("look", "")):
        Queue("high", tenant).announce(word, F, detail)  # type: ignore[arg-type]
    # Roles that enqueue have XADD at their queue, since scripts run with the rights of who calls them.
    records = [f"done\x1f~{F}.a.0", f"dead\x1f~{F}.c.0", f"done\x1f~{F}.b.0", f"begin\x1f{F}"]
    tenant.command("XADD", "jobq:{high}:flow-outbox", "*", "1", "\x1e".join(records))
    flowing.drain()
    facts = flowing.facts(F)
    assert (facts.state, [one.ended for one in facts.steps]) == ("running", [0, 0, 0])
    assert facts.refused >= 6
    assert names(flowing.work()) == ["a", "b", "c"]
    assert flowing.facts(F).state == "done"


def test_worker_of_one_queue_takes_its_ends_to_the_flow(flowing: Flowing, login: Any):
    """The rights are enough for what is a worker's own."""
    tenant: Client = login("worker", "--queues", "high,low")
    flowing = Flowing(tenant)
    flowing.drainer = Drainer(tenant)
    assert names(flowing.work()) == ["a", "b", "c"]
    assert flowing.facts(F).state == "done"


def test_users_of_another_namespace_reach_no_flow(flowing: Flowing, login: Any):
    tenant: Client = login("operator", "--namespace", "other")
    key = FlowStore(flowing.client, F).prefix + "meta"
    for command in (("HSET", key, "state", "done"), ("HGETALL", key), ("ZREM", "jobq:flows", F)):
        with pytest.raises((ScriptError, exceptions.RedisError)):
            tenant.command(*command)
    with pytest.raises((ScriptError, ConfigError)):
        FlowRun(*F.split(":"), client=tenant).cancel()
    assert flowing.facts(F).state == "running"


@pytest.fixture
def level(request: pytest.FixtureRequest, redis: Any) -> Iterator[str]:
    """A durability; at disk, the server writes to it before each reply."""
    if request.param == "disk":
        redis.config_set("appendfsync", "always")
        redis.config_set("appendonly", "yes")
    yield request.param
    redis.config_set("appendonly", "no")
    redis.config_set("appendfsync", "everysec")


@pytest.mark.parametrize(
    ("level", "words"), [("memory", ()), ("disk", ("--disk",))], indirect=["level"]
)
def test_worker_takes_flows_to_their_end_with_its_rights_at_each_durability(
    level: str, words: tuple[str, ...], login: Any, redis: Any, client: Client
):  # fmt: skip
    """Whatever a drainer does: maps, waits, flows in flows, retries, and what stands in the way of a flow's steps."""
    tenant: Client = login("worker", *words)
    tenant.durability = level
    flowing = Flowing(tenant)
    flowing.start("part:1", step("x", queue="high"), parent=f"{F}.part")
    gate = step("gate", "rows", kind="wait", options=b'{"delay": 3600}')
    part = StoredStep("part", "flow", "", step("", "gate").after, "part:1")
    rows = step("rows", "a", kind="map", source="items")
    store = flowing.start(F, step("a", queue="high"), rows, gate, part, step("b", "part"))
    assert store.put_items("rows", 0, [call_of("0"), call_of("1")]) == "ok"
    dead = {f"~{F}.rows.1": "dead", "~part:1.x.0": "dead"}
    assert names(flowing.work(dead)) == ["a", "rows", "rows.1"]
    flowing.say("retry", F)
    assert names(flowing.work()) == ["rows.1"]
    flowing.say("signal", F, "gate\x1f1")
    assert names(flowing.work(dead)) == ["x"]
    flowing.say("retry", F)
    assert names(flowing.work()) == ["x", "b"]
    assert flowing.facts(F).state == "done"
    # How the step ended whose mid is taken is looked for in the events of its queue.
    assert FlowStore(client, F).remove() == "removed"
    flowing.start(F, step("b"), step("c", "b", when="failed"))
    assert names(flowing.work()) == ["c"]
    flowing.start("import:8", step("a"), gate._replace(after=()))
    flowing.say("cancel", "import:8")
    flowing.work()
    assert flowing.facts("import:8").state == "cancelled"
    assert flowing.left() == [] and not redis.execute_command("ACL", "LOG")


@pytest.mark.parametrize("level", ["disk"], indirect=True)
def test_worker_without_the_rights_for_disk_keeps_the_entries_and_names_them(
    level: str, flowing: Flowing, login: Any
):
    tenant: Client = login("worker")
    tenant.durability = level
    flowing.queues["low"].finish(
        [Ending(mid=one.mid, token=one.token) for one in flowing.queues["low"].dequeue().messages]
    )
    with pytest.raises(ConfigError, match=r"\+config\|get"):
        Drainer(tenant).drain("low")
    assert flowing.left() == [("low", 1)]
    flowing.client.command("DEL", "jobq:{low}:flow-claim")
    assert names(flowing.work()) == ["b", "c"]
