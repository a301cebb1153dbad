"""Lists of flows: the newest first, also where somebody wrote what nobody can read."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.errors import ConfigError
from jobq.flows import keys
from jobq.flows.listing import flow_page, known_flow, unserved
from jobq.flows.state import Edge
from jobq.flows.store import FlowStore
from jobq.flows.types import FlowChange, StoredFlow, StoredStep
from jobq.queue import presence
from tests.hostile import HOSTILE


def begun(client: Any, flow: str, started_ms: int, *changes: FlowChange) -> FlowStore:
    """A flow of two steps: `rows` in queue low, then `stats` in queue pdf."""
    store = FlowStore(client, flow)
    steps = (
        StoredStep("rows", "step", "low", call=b"x"),
        StoredStep("stats", "step", "pdf", (Edge("rows"),), call=b"x"),
    )
    assert store.create(StoredFlow(steps, "hash", "low", 60_000)) == "created"
    client.command("ZADD", keys.flow_names(client.namespace), started_ms, flow)
    store.sent(store.apply("qlow", [FlowChange("begin"), *changes]).todo)
    return store


def test_newest_flows_come_first_and_pages_follow_one_another(client):
    for number in range(5):
        begun(client, f"import:{number}", 1_000 + number)
    first = flow_page(client, 0, 3)
    assert [row.flow for row in first.rows] == ["import:4", "import:3", "import:2"]
    assert first.next_offset == 3
    rest = flow_page(client, 3, 3)
    assert ([row.flow for row in rest.rows], rest.next_offset) == (["import:1", "import:0"], None)
    wanted = flow_page(client, 0, 1, name="import", part="T:1", state="running")
    assert ([row.flow for row in wanted.rows], wanted.next_offset) == (["import:1"], None)
    for other in ({"name": "impor"}, {"part": "export"}, {"state": "done"}):
        assert flow_page(client, 0, 1, **other).rows == []
    view = first.rows[0].view
    assert view is not None
    assert {one.name: one.state for one in view.steps} == {"rows": "running", "stats": "waiting"}


def test_what_is_gone_is_left_out_and_what_is_damaged_is_shown(client):
    begun(client, "import:1", 5)
    index = keys.flow_names(client.namespace)
    client.command("ZADD", index, "inf", "import:gone", 2**60, "no flow", -1, b"\xff\x00:1")
    begun(client, "import:damaged", 4)
    client.command("DEL", keys.base(client.namespace, "import:damaged") + "steps")
    client.command("SET", keys.base(client.namespace, "import:damaged") + "steps", "x")
    rows = flow_page(client).rows
    assert [row.flow for row in rows] == ["no flow", "import:1", "import:damaged", "\\xff\x00:1"]
    assert [bool(row.view) for row in rows] == [False, True, False, False]
    assert rows[0].problem == "not the id of a flow"
    assert "steps" in rows[2].problem or "WRONGTYPE" in rows[2].problem


@pytest.mark.parametrize("value", HOSTILE[:8])
def test_hostile_facts_never_end_a_list(client, value):
    store = begun(client, "import:1", 5)
    meta, steps = store.prefix + "meta", store.prefix + "steps"
    for field in ("n:rows", "created", "over", "keep", "state", "refused"):
        client.command("HSET", meta, field, value)
    client.command("HSET", steps, "stats", value)
    [row] = flow_page(client).rows
    assert row.view is None or (row.view.state and row.view.waits_for is not None)


def test_unknown_flow_is_refused_with_the_nearest(client):
    begun(client, "import:2026-11-22", 5)
    with pytest.raises(ConfigError, match="did you mean 'import:2026-11-22'"):
        known_flow(client, "import:2026-11-23")
    with pytest.raises(ConfigError, match="jobq flow list"):
        known_flow(client, "zzz")
    assert known_flow(client, "import:2026-11-22").state == "running"


def test_queue_without_a_worker_is_named(client):
    begun(client, "import:1", 5)
    view = known_flow(client, "import:1")
    assert unserved(client, view) == {"low": "no worker serves queue 'low'"}
    facts = {"queues": ["low"], "lease_ms": 15_000}
    presence.put_worker(client, "web-1", facts | {"seen_at": client.clock_ms()})
    assert unserved(client, view) == {}
    presence.put_worker(client, "web-1", facts | {"seen_at": client.clock_ms() - 240_000})
    assert unserved(client, view) == {
        "low": "no worker serves queue 'low'; web-1 did until 4 m 00 s ago"
    }
