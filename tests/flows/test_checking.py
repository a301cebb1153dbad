"""A flow that lost what it knew in a failover learns it again from its queues."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.flows import keys
from jobq.flows.checking import FlowCheck
from jobq.flows.draining import Drainer
from jobq.flows.flow import Flow
from jobq.flows.identity import member_mid
from jobq.flows.state import Edge, FlowView
from jobq.flows.store import FlowStore
from jobq.flows.types import FlowChange, StoredFlow, StoredStep
from jobq.jobs.codec import encode
from jobq.jobs.registry import Registry, job
from jobq.queue.queue import Queue
from jobq.queue.types import Ending

FLOW = "import:1"
#: With the run id that its members' mids have.
RUN = f"{FLOW}.r1"

pytestmark = pytest.mark.usefixtures("run_ids")


@pytest.fixture
def low(client: Any) -> Queue:
    return Queue("low", client)


@pytest.fixture
def store(client: Any, low: Queue) -> FlowStore:
    """A flow whose map of five runs; a step follows it."""
    made = FlowStore(client, FLOW)
    steps = (
        StoredStep("rows", "map", "low", source="stream", call=b"x"),
        StoredStep(
            "stats", "step", "low", (Edge("rows", "ended"),), call=encode("stats", enqueued_at=1)
        ),
    )
    assert made.create(StoredFlow(steps, "hash", "low", 60_000)) == "created"
    client.command("ZADD", keys.flow_names(client.namespace), 1, FLOW)
    made.apply("qlow", [FlowChange("begin")])
    assert made.reserve("rows", 0, 5).outcome == "new"
    low.enqueue_members([(member_mid(RUN, "rows", number), b"x") for number in range(5)])
    assert made.seal("rows", 1) == "ok"
    return made


def end(queue: Queue, number: int, outcome: Any) -> None:
    """Run the oldest message of the queue to such an end; nobody tells its flow."""
    [message] = queue.dequeue(1).messages
    assert message.mid == member_mid(RUN, "rows", number)
    queue.finish([Ending(mid=message.mid, token=message.token, outcome=outcome, reason="x")])
    queue.flow_outbox_drop([one.entry_id for one in queue.flow_outbox(1_000)])


def states(store: FlowStore) -> dict[str, str]:
    facts = store.facts()
    assert facts is not None
    return {one.name: one.state for one in FlowView(facts).steps}


def test_ends_that_a_flow_lost_are_found_at_its_queue(client, low, store):
    low.admin.events_level("all")
    for number, outcome in enumerate(("done", "dead", "done", "done")):
        end(low, number, outcome)
    low.cancel(member_mid(RUN, "rows", 4))
    low.flow_outbox_drop([one.entry_id for one in low.flow_outbox(1_000)])
    low.admin.collect()
    assert states(store)["rows"] == "running"
    checked = FlowCheck(client).flow(FLOW)
    assert (checked.state, checked.ended, checked.lost, checked.nlost) == ("running", 5, (), 0)
    assert states(store) == {"rows": "failed", "stats": "running"}
    [row] = [one for one in FlowView(store.facts()).steps if one.name == "rows"]
    assert (row.facts.done, row.facts.ended) == (3, 5)
    # Checked again it has nothing to add, and the step was enqueued once.
    assert FlowCheck(client).flow(FLOW).ended == 0
    assert [one.mid for one in low.dequeue(10).messages] == [member_mid(RUN, "stats")]


def test_member_without_a_trace_is_reported_until_somebody_says_what_it_counts_as(
    client, low, store
):
    for number in range(5):
        end(low, number, "done")
    client.command("DEL", low.prefix + "messages", low.prefix + "circle", low.prefix + "events")
    checked = FlowCheck(client).flow(FLOW)
    assert (checked.ended, checked.nlost, checked.state) == (0, 5, "running")
    assert checked.lost[0] == member_mid(RUN, "rows", 0)
    checked = FlowCheck(client, "done").flow(FLOW)
    assert (checked.ended, checked.nlost) == (5, 0)
    assert states(store) == {"rows": "done", "stats": "running"}


def test_members_that_live_or_are_not_enqueued_yet_are_left_alone(client, low, store):
    more = FlowStore(client, "import:2")
    steps = (StoredStep("rows", "map", "low", source="stream", call=b"x"),)
    more.create(StoredFlow(steps, "hash", "low", 60_000))
    more.apply("qlow", [FlowChange("begin")])
    more.reserve("rows", 0, 250)
    checked = FlowCheck(client, "done")
    assert checked.flow("import:2")[1:] == ("running", 0, (), 0)
    low.dequeue(2)
    assert checked.flow(FLOW)[1:] == ("running", 0, (), 0)


def test_entries_that_nobody_took_are_taken_and_gone_flows_leave_the_list(client, low, store):
    [message] = low.dequeue(1).messages
    low.finish([Ending(mid=message.mid, token=message.token, outcome="done")])
    index = keys.flow_names(client.namespace)
    client.command("ZADD", index, 2, "import:gone", 3, "no flow")
    check = FlowCheck(client)
    assert check.drain("low") == 1
    facts = store.facts()
    assert facts is not None and facts.steps[0].done == 1
    assert [check.flow(flow).state for flow in ("import:gone", "no flow")] == ["", ""]
    assert client.command("ZRANGE", index, 0, -1) == [FLOW.encode()]
    assert Drainer(client).drain("low") == 0


def test_end_of_a_sub_flow_that_its_parent_lost_is_found(client, low):
    def ends() -> None:
        Drainer(client).drain("low")

    @job(name="part", queue="low", registry=Registry())
    def part() -> None: ...

    sub = Flow("part", id="1")
    sub.step(part)
    outer = Flow("whole", id="1", queue="low")
    inner = outer.flow(sub)
    outer.step(part, after=inner, name="last")
    run = outer.start()
    ends()
    # The sub-flow learns of its end, and its parent doesn't.
    part_store = FlowStore(client, "part:1")
    part_store.sent(part_store.apply("qlow", [FlowChange("done", "part")]).todo)
    assert run.status().by_name[inner.name].state == "running"
    assert FlowCheck(client).flow("whole:1")[1:] == ("running", 1, (), 0)
    assert [one.state for one in run.status().steps] == ["done", "running"]
    # A deleted sub-flow doesn't have a trace either.
    again = Flow("whole", id="2", queue="low")
    other = Flow("part", id="2")
    other.step(part)
    again.flow(other)
    again.start()
    ends()
    base = keys.base(client.namespace, "part:2")
    client.command("DEL", *(base + name for name in keys.NAMES))
    assert FlowCheck(client).flow("whole:2").lost == ("~whole:2.r2.part.0",)
