"""A flow that was removed is started again under its id; and an old worker is started while a flow runs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from jobq.flows.store import FlowStore
from jobq.queue.presence import put_worker
from jobq.queue.types import Ending
from tests.flows.flowing import Flowing, call_of, names, step

pytestmark = pytest.mark.one_server
F = "import:7"
ROWS = step("rows", "a", kind="map", source="items", queue="high")


@pytest.fixture
def flowing(client: Any) -> Flowing:
    return Flowing(client)


def begin(flowing: Flowing, *steps: Any, items: int = 0) -> FlowStore:
    store = flowing.start(F, *steps)
    if items:
        assert store.put_items("rows", 0, [call_of(str(n)) for n in range(items)]) == "ok"
    return store


def test_dead_members_of_an_earlier_flow_make_way(flowing: Flowing) -> None:
    steps = (step("a"), ROWS, step("b", "rows", queue="high"), step("bad", "rows", when="failed"))
    begin(flowing, *steps, items=5)
    bad = {f"~{F}.rows.1": "dead", f"~{F}.rows.3": "dead"}
    assert names(flowing.work(bad)) == [
        "a",
        *(["rows"] + [f"rows.{n}" for n in range(1, 5)]),
        "bad",
    ]
    assert FlowStore(flowing.client, F).remove() == "removed"
    flowing.queues["low"].admin.collect(100, now=int(time.time() * 1000) + 7_200_000)

    begin(flowing, *steps, items=5)
    assert sorted(names(flowing.work())) == [
        "a",
        "b",
        *["rows", *[f"rows.{n}" for n in range(1, 5)]],
    ]
    assert flowing.facts(F).state == "done"
    assert [one.dead_id for one in flowing.queues["high"].admin.dead()] == []


def test_a_dead_step_of_an_earlier_flow_makes_way(flowing: Flowing) -> None:
    begin(flowing, step("a"))
    flowing.work({f"~{F}.a.0": "dead"})
    assert FlowStore(flowing.client, F).remove() == "removed"
    begin(flowing, step("a"))
    assert names(flowing.work()) == ["a"]
    assert flowing.facts(F).state == "done"


def test_a_step_whose_mid_is_taken_for_an_hour_has_failed_and_keeps_nothing_waiting(
    flowing: Flowing,
) -> None:
    begin(flowing, step("a"), step("bad", "a", when="failed"))
    flowing.work()
    assert FlowStore(flowing.client, F).remove() == "removed"
    begin(flowing, step("a"), step("bad", "a", when="failed"))
    assert names(flowing.work()) == ["bad"]
    assert flowing.facts(F).state == "failed"


def test_steps_wait_while_an_old_worker_serves_their_queue(flowing: Flowing) -> None:
    begin(flowing, step("a"), step("b", "a", queue="high"), ROWS, items=3)
    now_ms = flowing.client.clock_ms()
    old = {"seen_at": now_ms, "queues": ["high"], "lease_ms": 15_000, "version": "0.9"}
    put_worker(flowing.client, "old", old)
    flowing.drainer.drain("low")
    low = flowing.queues["low"]
    [held] = low.dequeue().messages
    low.finish([Ending(mid=held.mid, token=held.token)])
    assert flowing.drainer.drain("low") == 1
    facts = flowing.facts(F)
    assert (facts.state, [one.todo for one in facts.steps]) == ("running", [False, True, True])
    assert flowing.left() == [("low", 1)]

    flowing.client.command("DEL", "jobq:workers")
    assert sorted(names(flowing.work())) == ["b", "rows", "rows.1", "rows.2"]
    assert flowing.facts(F).state == "done"
