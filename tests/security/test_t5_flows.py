"""Attacks of a tenant with rights to one queue on flows of another: forged outbox entries are dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import exceptions

from jobq import Flow, job
from jobq.client.connection import Client, connect
from jobq.errors import ConfigError, ScriptError
from jobq.flows import rights
from jobq.flows.draining import Drainer
from jobq.flows.run import FlowRun
from jobq.flows.store import FlowStore
from jobq.flows.types import StoredFlow, StoredStep
from jobq.jobs.registry import Registry
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.flows.flowing import RUN, Flowing, call_of, names, step
from tests.security.logins import logins

pytestmark = pytest.mark.one_server
F = "import:7"


@job(registry=Registry())
def nothing() -> None:
    """A step without work."""


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
        tenant.command("XADD", "jobq:{low}:flow-outbox", "*", "1", f"done\x1f~{F}.r1.a.0")
    for word, detail in (("cancel", ""), ("retry", ""), ("signal", "a\x1f1"), ("look", "")):
        Queue("high", tenant).announce(word, F, detail)  # type: ignore[arg-type]
    # Roles that enqueue have XADD at their queue, since scripts run with the rights of who calls them.
    records = [
        f"done\x1f~{F}.r1.a.0",
        f"dead\x1f~{F}.r1.c.0",
        f"done\x1f~{F}.r1.b.0",
        f"begin\x1f{F}",
    ]
    tenant.command("XADD", "jobq:{high}:flow-outbox", "*", "1", "\x1e".join(records))
    flowing.drain()
    facts = flowing.facts(F)
    assert (facts.state, [one.ended for one in facts.steps]) == ("running", [0, 0, 0])
    assert facts.refused >= 6
    assert names(flowing.work()) == ["a", "b", "c"]
    assert flowing.facts(F).state == "done"


def test_worker_of_one_queue_takes_its_ends_to_the_flow(flowing: Flowing, login: Any):
    """The rights suffice for a worker's own calls."""
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
    """Whatever a drainer does: maps, waits, flows in flows, retries, and obstacles for a flow's steps."""
    tenant: Client = login("worker", *words)
    tenant.durability = level
    flowing = Flowing(tenant)
    flowing.start("part:1", step("x", queue="high"), parent=f"{F}.r1.part")
    gate = step("gate", "rows", kind="wait", options=b'{"delay": 3600}')
    part = StoredStep("part", "flow", "", step("", "gate").after, "part:1")
    rows = step("rows", "a", kind="map", source="items")
    store = flowing.start(F, step("a", queue="high"), rows, gate, part, step("b", "part"))
    assert store.put_items("rows", "low", 0, [call_of("0"), call_of("1")]) == "ok"
    dead = {f"~{F}.r1.rows.1": "dead", "~part:1.r1.x.0": "dead"}
    assert names(flowing.work(dead)) == ["a", "rows", "rows.1"]
    flowing.say("retry", F)
    assert names(flowing.work()) == ["rows.1"]
    flowing.say("signal", F, "gate\x1f1")
    assert names(flowing.work(dead)) == ["x"]
    flowing.say("retry", F)
    assert names(flowing.work()) == ["x", "b"]
    assert flowing.facts(F).state == "done"
    # What is gone of a step that its flow waits for is looked for, and enqueued again.
    again = flowing.start("import:9", step("b"))
    low, mid = Queue("low", client), again.member("b").mid
    low.enqueue_members([(mid, call_of("b"))], in_order=True)
    low.cancel(mid)
    low.flow_outbox_drop([one.entry_id for one in low.flow_outbox()])
    flowing.say("begin", "import:9")
    assert names(flowing.work()) == ["b"]
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


# A tenant of one queue, and the queues of others.

ROLES = ("producer", "worker")


def forged(tenant: Client, kind: str) -> FlowStore:
    """A flow stored by a tenant of queue shop itself: a flow whose second step is in queue bank.

    It copies readable proofs, and forges proofs with the secret of its own queue.
    """
    flow = f"forged:{kind}"
    bank = {
        "step": step("b", "a", queue="bank"),
        "map": step("b", "a", kind="map", source="=a", queue="bank"),
        "items": step("b", "a", kind="map", source="items", queue="bank"),
        "timer": step("b", "a", kind="timer", queue="bank"),
    }[kind]
    own = rights.proven(tenant, flow, [step("a", queue="shop"), bank._replace(queue="shop")])
    store = FlowStore(tenant, flow)
    steps = (own[0], own[1]._replace(queue="bank"))
    record = StoredFlow(steps, "hash", "shop", 60_000, run_id=RUN)
    assert tenant.ask(store.create_call(record)) == ("created", RUN)
    if kind == "items":
        assert store.put_items("b", "shop", 0, [call_of("x")]) == "ok"
    Queue("shop", tenant).announce("begin", flow)
    return store


@pytest.mark.parametrize("kind", ["step", "map", "items", "timer"])
@pytest.mark.parametrize("role", ROLES)
def test_tenant_of_one_queue_runs_nothing_in_another_by_a_flow(
    role: str, kind: str, client: Client, login: Any
):
    tenant: Client = login(role, "--queues", "shop")
    with pytest.raises(ScriptError, match="permission"):
        Queue("bank", tenant).enqueue(call_of("x"))
    forged(tenant, kind)
    wide = Flowing(client, "shop", "bank")
    assert names(wide.work({f"~forged:{kind}.r1.a.0": b'{"ok":[1,2]}'})) == ["a"]
    facts = wide.facts(f"forged:{kind}")
    assert facts.state == "failed"
    [why] = FlowStore(client, f"forged:{kind}").failures().values()
    assert why.startswith("step b must not run in queue bank")
    assert Queue("bank", client).admin.counts().ready == 0


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("field", ["call", "options", "kind", "items", "copied"])
def test_tenant_of_one_queue_changes_no_step_of_a_flow_of_others(
    field: str, role: str, client: Client, login: Any
):
    """The keys of flows belong to no queue, so it may write to them."""
    tenant, store = login(role, "--queues", "shop"), FlowStore(client, F)
    wide = Flowing(client, "low", "bank")
    pays = step("pays", "a", queue="bank", options=b'{"delay":0}')
    rows = step("rows", "a", queue="bank", kind="map", source="items")
    wide.start(F, step("a"), pays, rows)
    store.put_items("rows", "bank", 0, [call_of("0"), call_of("1")])
    steps = f"{store.prefix}steps"
    row = client.command("HGET", steps, "pays")
    if field == "call":
        tenant.command("HSET", f"{store.prefix}calls", "pays", call_of("steals"))
    elif field == "options":
        tenant.command("HSET", steps, "pays", row.replace(b'"delay":0', b'"delay":9'))
    elif field == "kind":
        tenant.command("HSET", steps, "pays", row.replace(b"step", b"timer"))
    elif field == "copied":
        tenant.command("HSET", steps, "pays", row.replace(b"pays", b"a"), "other", row)
        tenant.command(
            "HSET",
            f"{store.prefix}calls",
            "pays",
            client.command("HGET", f"{store.prefix}calls", "a"),
        )
    else:
        items = client.command("HGET", f"{store.prefix}items", "rows:0")
        tenant.command("HSET", f"{store.prefix}items", "rows:0", items.replace(b"job.1", b"job.9"))
    ran = names(wide.work())
    if field == "items":
        assert ran == ["a", "pays"]
    else:
        assert sorted(ran) == ["a", "rows", "rows.1"]
    assert wide.facts(F).state == "failed"


@pytest.mark.parametrize("role", ROLES)
def test_start_across_queues_needs_rights_at_each_and_says_which_lacks_them(
    role: str, client: Client, login: Any
):
    tenant: Client = login(role, "--queues", "shop")
    flow = Flow("import", "9", client=tenant, queue="shop")
    flow.step(nothing.options(queue="bank"), after=flow.step(nothing.options(queue="shop")))
    with pytest.raises(ScriptError, match="may not write to queue bank"):
        flow.start()
    assert FlowStore(client, "import:9").facts() is None
    both: Client = login(role, "--queues", "shop,bank")
    flow = Flow("import", "9", client=both, queue="shop")
    flow.step(nothing.options(queue="bank"), after=flow.step(nothing.options(queue="shop")))
    flow.start()
    wide = Flowing(client, "shop", "bank")
    assert names(wide.work()) == ["nothing", "nothing-2"]
    assert wide.facts("import:9").state == "done"


def test_steps_for_queues_that_a_worker_may_not_write_to_wait_and_hold_up_no_other_flow(
    client: Client, login: Any
):
    Flowing(client).start("wide:1", step("a"), step("b", "a", queue="bank"))
    Flowing(client).start("low:1", step("a"), step("b", "a"))
    tenant: Client = login("worker", "--queues", "low")
    confined = Flowing(tenant, "low")
    confined.drainer.drain("low", 99)
    for _ in range(2):
        queue = confined.queues["low"]
        queue.finish([Ending(mid=one.mid, token=one.token) for one in queue.dequeue(9).messages])
        confined.drainer.drain("low", 99)
    assert confined.facts("low:1").state == "done"
    assert confined.facts("wide:1").state == "running"
    wide = Flowing(client, "low", "bank")
    wide.drainer.look("wide:1")
    assert names(wide.work()) == ["b"]


def test_secret_that_the_server_lost_is_made_again_and_proves_new_flows(client: Client):
    Flowing(client).start("old:1", step("a"))
    client.command("DEL", "jobq:flow-secret:{low}")
    other = connect(settings=client.settings)
    Flowing(other).start("new:1", step("a"))
    flowing = Flowing(client)
    assert flowing.work() == ["~new:1.r1.a.0"]
    assert flowing.facts("old:1").state == "failed"
    other.close()
