"""A flow that was removed is started again under its id."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobq import job
from jobq.flows.adding import RunningFlow
from jobq.flows.announcing import announce, queue_at
from jobq.flows.draining import Drainer
from jobq.flows.flow import Flow
from jobq.flows.store import FlowStore
from jobq.flows.types import Applied, FlowChange
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
        assert (
            store.put_items("rows", ROWS.queue, 0, [call_of(str(n)) for n in range(items)]) == "ok"
        )
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


@job(name="flows.earlier.one", queue="low")
def one() -> None: ...


@job(name="flows.earlier.two", queue="high")
def two() -> None: ...


def named(client: Any) -> Flow:
    flow = Flow("import", id="7", client=client)
    flow.step(two, name="b", after=flow.step(one, name="a"))
    return flow


class Paused(Drainer):
    """It has read what a queue says, and stands before it takes that to the flows."""

    def __init__(self, client: Any, *queues: str) -> None:
        super().__init__(client)
        self._read = [
            (queue_at(client, name), queue_at(client, name).flow_outbox()) for name in queues
        ]

    def go_on(self) -> None:
        for queue, entries in self._read:
            self._take(queue, entries, self._clock())


def run_and_remove(flowing: Flowing, outcome: str = "done") -> Paused:
    """A flow whose last words stand before a drainer when it is removed."""
    named(flowing.client).start()
    for name in ("low", "high"):
        flowing.drain()
        queue = flowing.queues[name]
        [held] = queue.dequeue().messages
        queue.finish([Ending(mid=held.mid, token=held.token, outcome=outcome, reason="why")])
        paused = Paused(flowing.client, "low", "high")
        if outcome == "dead":
            break
    flowing.drain()
    assert FlowStore(flowing.client, F).remove() == "removed"
    for queue in flowing.queues.values():
        queue.admin.collect(100, now=int(time.time() * 1000) + 7_200_000)
    return paused


@pytest.mark.parametrize("outcome", ["done", "dead"])
def test_an_end_of_an_earlier_flow_changes_nothing_when_the_flow_is_started_again(
    flowing: Flowing, outcome: str
) -> None:
    paused = run_and_remove(flowing, outcome)

    run = named(flowing.client).start()
    paused.go_on()
    assert [one.ended for one in flowing.facts(F).steps] == [0, 0]
    assert names(flowing.work()) == ["a", "b"]
    paused.go_on()
    assert run.status().state == "done"


def test_a_word_to_an_earlier_flow_changes_nothing_when_the_flow_is_started_again(
    flowing: Flowing,
) -> None:
    named(flowing.client).start().cancel()
    announce(flowing.client, "low", "cancel", F)
    paused = Paused(flowing.client, "low", "high")
    flowing.drain()
    assert FlowStore(flowing.client, F).remove() == "removed"

    run = named(flowing.client).start()
    paused.go_on()
    assert run.status().state == "running"


def test_an_end_of_an_earlier_flow_changes_nothing_when_a_running_step_adds_a_step(
    flowing: Flowing,
) -> None:
    """The earlier one had a step in a queue that this one uses only later."""
    paused = run_and_remove(flowing)
    flow = Flow("import", id="7", client=flowing.client)
    flow.step(one, name="a")
    flow.start()
    flowing.drain()
    low = flowing.queues["low"]
    [held] = low.dequeue().messages
    running = RunningFlow(flowing.client, cast("Any", SimpleNamespace(mid=held.mid)))
    running.step(two, name="b")
    paused.go_on()
    assert [one.ended for one in flowing.facts(F).steps] == [0, 0]


def test_the_end_of_an_added_step_counts_when_another_one_was_added_to_its_queue_before_it_was_taken(
    flowing: Flowing,
) -> None:
    """The running step read which queues the flow uses before it added the first of them."""
    flow = Flow("import", id="7", client=flowing.client)
    flow.step(one, name="a")
    flow.start()
    flowing.drain()
    [held] = flowing.queues["low"].dequeue().messages
    context = cast("Any", SimpleNamespace(mid=held.mid))
    running, other = RunningFlow(flowing.client, context), RunningFlow(flowing.client, context)
    other.step(one, name="x")
    running.step(two, name="b")
    flowing.drain()
    high = flowing.queues["high"]
    [added] = high.dequeue().messages
    high.finish([Ending(mid=added.mid, token=added.token)])
    running.step(two, name="c")
    other.step(two, name="d")
    flowing.drain()
    ended = {step.name: step.ended for step in flowing.facts(F).steps}
    assert ended == {"a": 0, "x": 0, "b": 1, "c": 0, "d": 0}


class Overtaken(FlowStore):
    """Between its calls of `apply`, others move the mark of the queue."""

    places = ("5-0", "7-0")

    def _apply(self, *args: Any) -> Applied:
        if self.places:
            place, *self.places = self.places
            FlowStore(self.client, self.flow).retried("a", [], mark=place)
        return super()._apply(*args)


def test_what_lies_behind_the_mark_is_taken_when_the_mark_moves_meanwhile(flowing: Flowing) -> None:
    begin(flowing, step("a"), step("b"))
    flowing.drain()
    ends = [
        FlowChange("dead", "a", entry="4-0"),
        FlowChange("dead", "a", entry="6-0"),
        FlowChange("done", "b", entry="8-0"),
    ]
    applied = Overtaken(flowing.client, F).apply("qlow", ends)
    assert (applied.state, applied.refused, applied.mark) == ("running", 2, "")
    assert [one.ended for one in flowing.facts(F).steps] == [0, 1]


def test_a_flow_starts_under_its_id_when_its_sub_flows_use_more_queues_than_one_flow_can(
    client: Any,
) -> None:
    flow = Flow("import", id="7", client=client)
    for part in range(2):
        sub = Flow("part", id=str(part), client=client)
        for number in range(510):
            sub.step(one.options(queue=f"q{part}-{number}"), name=f"s{number}")
        flow.flow(sub, name=f"part{part}")
    flow.start()
    marks = client.command("HGETALL", f"{FlowStore(client, 'part:1').prefix}meta")[::2]
    assert sum(name.startswith(b"f:q1-") for name in marks) == 510
    assert not [name for name in marks if name.startswith(b"f:q0-")]


def test_an_old_end_changes_nothing_when_its_message_runs_again_by_a_retry(
    flowing: Flowing,
) -> None:
    flowing.start(F, step("a"), step("b", "a"))
    flowing.drain()
    low = flowing.queues["low"]
    [held] = low.dequeue().messages
    low.finish([Ending(mid=held.mid, token=held.token, outcome="dead", reason="why")])
    paused = Paused(flowing.client, "low")
    flowing.drain()
    assert flowing.facts(F).state == "failed"

    flowing.say("retry", F)
    flowing.drain()
    paused.go_on()
    assert flowing.facts(F).state == "running"
    assert [one.retried for one in flowing.facts(F).steps] == [1, 0]
    assert names(flowing.work()) == ["a", "b"]
    assert flowing.facts(F).state == "done"


def test_a_flow_of_an_earlier_release_ends_when_it_has_no_marks(flowing: Flowing) -> None:
    """Its meta has no fields of outboxes, and its entries are those of every release."""
    store = begin(flowing, step("a"), ROWS, step("b", "rows", queue="high"), items=3)
    meta = flowing.client.command("HGETALL", f"{store.prefix}meta")
    assert not [name for name in meta[::2] if name.startswith(b"f:")]
    assert flowing.work()[-1] == f"~{F}.b.0"
    assert flowing.facts(F).state == "done"
