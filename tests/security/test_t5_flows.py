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
from jobq.queue.queue import Queue
from tests.flows.flowing import Flowing, names, step
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
