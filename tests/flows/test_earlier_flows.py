"""Leftovers of an earlier run of a flow, or of runs before a retry, have no effect."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobq import job
from jobq.errors import FlowClosedError
from jobq.flows.adding import RunningFlow
from jobq.flows.announcing import announce, queue_at
from jobq.flows.draining import Drainer
from jobq.flows.flow import Flow
from jobq.flows.run import FlowRun
from jobq.flows.sending import StepSender
from jobq.flows.store import FlowStore
from jobq.flows.types import FlowChange
from jobq.queue.types import Ending
from tests.flows.flowing import Flowing, call_of, names, step

pytestmark = [pytest.mark.one_server, pytest.mark.usefixtures("run_ids")]
F = "import:7"
ROWS = step("rows", "a", kind="map", source="items", queue="high")
STREAM = step("rows", kind="map", source="stream", queue="high")


@pytest.fixture
def flowing(client: Any) -> Flowing:
    return Flowing(client)


def begin(flowing: Flowing, *steps: Any, items: int = 0, run_id: str = "r1") -> FlowStore:
    store = flowing.start(F, *steps, run_id=run_id)
    if items:
        assert (
            store.put_items("rows", ROWS.queue, 0, [call_of(str(n)) for n in range(items)]) == "ok"
        )
    return store


def test_dead_members_of_an_earlier_flow_stay_when_it_is_started_again(flowing: Flowing) -> None:
    steps = (step("a"), ROWS, step("b", "rows", queue="high"), step("bad", "rows", when="failed"))
    begin(flowing, *steps, items=5)
    bad = {f"~{F}.r1.rows.1": "dead", f"~{F}.r1.rows.3": "dead"}
    assert names(flowing.work(bad)) == [
        "a",
        *(["rows"] + [f"rows.{n}" for n in range(1, 5)]),
        "bad",
    ]
    assert FlowStore(flowing.client, F).remove() == "removed"

    begin(flowing, *steps, items=5, run_id="r2")
    assert sorted(names(flowing.work())) == [
        "a",
        "b",
        *["rows", *[f"rows.{n}" for n in range(1, 5)]],
    ]
    assert flowing.facts(F).state == "done"
    assert {one.mid for one in flowing.queues["high"].admin.dead()} == set(bad)


def test_a_dead_message_of_an_earlier_flow_changes_nothing_when_a_person_revives_it(
    flowing: Flowing,
) -> None:
    begin(flowing, step("a"), step("b", "a"))
    old = f"~{F}.r1.a.0"
    flowing.work({old: "dead"})
    assert FlowStore(flowing.client, F).remove() == "removed"
    begin(flowing, step("a"), step("b", "a"), run_id="r2")
    flowing.drain()
    admin = flowing.queues["low"].admin
    admin.revive(*(one.dead_id for one in admin.dead(mid=old)))
    [new, revived] = flowing.queues["low"].dequeue(2).messages
    assert (new.mid, revived.mid) == (f"~{F}.r2.a.0", old)
    for outcome in ("dead", "done"):
        flowing.queues["low"].finish([Ending(mid=old, token=revived.token, outcome=outcome)])
        flowing.drain()
    assert [one.ended for one in flowing.facts(F).steps] == [0, 0]
    flowing.queues["low"].finish([Ending(mid=new.mid, token=new.token)])
    assert names(flowing.work()) == ["b"]


@pytest.mark.parametrize("steps", [(step("a"),), (STREAM,)])
def test_a_flow_runs_whole_when_it_is_started_again_right_after_its_end(
    flowing: Flowing, steps: Any
) -> None:
    """The mids of its steps stay taken for an hour, and its queue knows which members it has accepted."""
    for run_id in ("r1", "r2", "r3"):
        store = begin(flowing, *steps, run_id=run_id)
        if steps[0].kind == "map":
            sender = StepSender(flowing.drainer._sending(flowing.drainer._clock()), store.run)
            rows = [(store.member("rows", number).mid, call_of("v")) for number in range(3)]
            assert sender.add_chunk(flowing.queues["high"], "rows", 0, rows, {}).outcome == "new"
            assert store.seal("rows", 1) == "ok"
        assert len(flowing.work()) == (3 if steps[0].kind == "map" else 1)
        assert flowing.facts(F).state == "done"
        assert store.remove() == "removed"


@job(name="flows.earlier.one", queue="low")
def one() -> None: ...


@job(name="flows.earlier.two", queue="high")
def two() -> None: ...


def named(client: Any) -> Flow:
    flow = Flow("import", id="7", client=client)
    flow.step(two, name="b", after=flow.step(one, name="a"))
    return flow


class Paused(Drainer):
    """A drainer that has read a queue's entries, and hasn't delivered them to the flows."""

    def __init__(self, client: Any, *queues: str) -> None:
        super().__init__(client)
        self._read = [
            (queue_at(client, name), queue_at(client, name).flow_outbox()) for name in queues
        ]

    def go_on(self) -> None:
        for queue, entries in self._read:
            self._take(queue, entries, self._clock())


def run_and_remove(flowing: Flowing, outcome: str = "done") -> Paused:
    """A flow that is removed while a drainer has its last entries."""
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
    """The earlier flow had a step in a queue that this flow uses only later."""
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


def test_the_end_of_an_added_step_counts_when_others_are_added_to_its_queue_before_it_is_taken(
    flowing: Flowing,
) -> None:
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


def test_nothing_of_an_earlier_run_is_taken_when_its_calls_come_late(flowing: Flowing) -> None:
    """A flow that was removed and restarted while its drainer, producer and running steps were suspended."""
    old = begin(flowing, step("a"), STREAM)
    flowing.drain()
    [held] = flowing.queues["low"].dequeue().messages
    running = RunningFlow(flowing.client, cast("Any", SimpleNamespace(mid=held.mid)))
    FlowRun("import", "7", client=flowing.client).cancel()
    flowing.work()
    assert FlowStore(flowing.client, F).remove() == "removed"
    new = begin(flowing, step("a"), STREAM, run_id="r2")
    before = flowing.facts(F)

    [item] = new.apply("qlow", [FlowChange("begin")]).todo
    assert old.apply("qlow", [FlowChange("done", "a"), FlowChange("cancel")]).state == ""
    assert old.sent([item]).todo == ()
    assert old.reserve("rows", 0, 3).outcome == "closed" and old.seal("rows", 0) == "closed"
    assert old.retried("a", [0]) == 0 and old.facts() is None
    with pytest.raises(FlowClosedError, match="was deleted"):
        running.step(two, name="b")
    [a, rows] = flowing.facts(F).steps
    assert (a.ended, a.todo, rows.size, rows.sealed) == (0, True, 0, False)
    assert before.run_id == "r2"


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


def test_a_mark_of_a_retry_only_moves_forward_and_stops_no_end_behind_it(flowing: Flowing) -> None:
    store = begin(flowing, step("a"), step("b"))
    flowing.drain()
    for place in ("7-0", "5-0"):
        store.retried("a", [], mark=place)
    ends = [FlowChange("dead", name, entry=place) for name, place in (("a", "6-0"), ("b", "6-0"))]
    assert store.apply("qlow", ends).refused == 0
    assert [one.ended for one in flowing.facts(F).steps] == [0, 1]
    store.apply("qlow", [FlowChange("cancelled", "a", entry="7-0")])
    assert [one.ended for one in flowing.facts(F).steps] == [0, 1]
    store.apply("qlow", [FlowChange("dead", "a", entry="7-1")])
    assert [one.ended for one in flowing.facts(F).steps] == [1, 1]


def test_a_step_runs_again_when_it_was_cancelled_by_hand_and_its_flow_is_retried(
    flowing: Flowing,
) -> None:
    begin(flowing, step("a"), step("b", "a"))
    flowing.drain()
    flowing.queues["low"].cancel(f"~{F}.r1.a.0")
    flowing.drain()
    assert flowing.facts(F).state == "failed"
    flowing.say("retry", F)
    assert names(flowing.work()) == ["a", "b"]
    assert flowing.facts(F).state == "done"
