"""States of steps and flows, their waits, layers and critical paths: all follow from facts."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import astuple

from jobq.flows.state import (
    STEP_OVER,
    Edge,
    FlowFacts,
    FlowView,
    StepFacts,
    layers,
    step_sentence,
)

NOW = 1_000_000_000


def step(name: str, *after: str | Edge, **facts: Any) -> StepFacts:
    edges = tuple(edge if isinstance(edge, Edge) else Edge(edge) for edge in after)
    return StepFacts(name=name, after=edges, **facts)


def done(name: str, *after: str | Edge, size: int = 1, **facts: Any) -> StepFacts:
    return step(name, *after, size=size, done=size, ended=size, sent=True, **facts)


def failed(name: str, *after: str | Edge, size: int = 1, dead: int = 1, **facts: Any) -> StepFacts:
    return step(
        name, *after, size=size, done=size - dead, ended=size, dead=dead, sent=True, **facts
    )


def flow(*steps: StepFacts, **facts: Any) -> FlowView:
    return FlowView(FlowFacts(name="import", id="1", now_ms=NOW, steps=steps, **facts))


def states(view: FlowView) -> dict[str, str]:
    return {one.name: one.state for one in view.steps}


def test_step_waits_then_is_ready_then_runs_then_is_done():
    for facts, state in (({}, "waiting"), ({"todo": True}, "ready"), ({"sent": True}, "running")):
        assert states(flow(done("a"), step("b", "a", **facts)))["b"] == state
    assert states(flow(done("a"), done("b", "a"))) == {"a": "done", "b": "done"}


@pytest.mark.parametrize(
    ("when", "after_done", "after_failed"),
    [
        ("done", "waiting", "skipped"),
        ("ended", "waiting", "waiting"),
        ("failed", "skipped", "waiting"),
    ],
)
def test_step_is_skipped_once_its_edge_can_not_be_met(when, after_done, after_failed):
    edge = Edge("a", when)
    assert states(flow(done("a"), step("b", edge), step("c", "b")))["b"] == after_done
    view = flow(failed("a"), step("b", edge), step("c", Edge("b", "ended")))
    assert states(view)["b"] == after_failed
    # A skipped step has not ended: the following steps are also skipped.
    assert states(view)["c"] == after_failed


def test_retry_undoes_a_skip_for_skipped_is_never_stored():
    facts = failed("a"), step("b", "a")
    assert (states(flow(*facts))["b"], flow(*facts).state) == ("skipped", "failed")
    again = step("a", done=0, ended=1, retried=1, sent=True), step("b", "a")
    assert (states(flow(*again)), flow(*again).state) == (
        {"a": "running", "b": "waiting"},
        "running",
    )


def test_step_that_was_sent_because_of_a_failure_stays_when_the_retry_is_done():
    view = flow(done("a"), done("alert", Edge("a", "failed")))
    assert (states(view)["alert"], view.state) == ("done", "done")


def test_map_is_over_only_when_it_is_sealed():
    assert states(flow(done("rows", size=250, sealed=False)))["rows"] == "running"
    assert states(flow(done("rows", size=250)))["rows"] == "done"
    assert states(flow(step("rows", size=0, sealed=False)))["rows"] == "waiting"
    # An empty map is done immediately; one behind an edge is empty only once its edge was met.
    assert states(flow(step("rows", size=0)))["rows"] == "done"
    assert states(flow(step("a", sent=True), step("rows", "a", size=0)))["rows"] == "waiting"


def test_cancelled_flow_sends_nothing_more():
    view = flow(
        done("a"), step("b", "a", ended=1, sent=True, cancelled=1, cut=True), step("c", "b", todo=True), step("d", "c"),
        state="cancelled",
    )  # fmt: skip
    assert states(view) == {"a": "done", "b": "cancelled", "c": "cancelled", "d": "cancelled"}
    assert (view.state, view.dead, view.cancelled) == ("cancelled", 0, 1)


def test_what_had_failed_before_the_cancel_has_failed():
    view = flow(
        failed("e"), failed("gate", kind="wait"), step("behind", "e"), step("last", "behind"),
        failed("rows", size=5, kind="map", dead=2, cancelled=3, cut=True), step("sum", "rows", "e"),
        step("next", "rows"), state="cancelled",
    )  # fmt: skip
    assert states(view) == {
        "e": "failed", "gate": "failed", "behind": "skipped", "last": "skipped", "rows": "cancelled", "sum": "skipped",
        "next": "cancelled",
    }  # fmt: skip
    assert step_sentence(view, "behind") == "skipped, because e is failed"


def test_flow_is_failed_as_soon_as_nothing_can_go_on():
    parts = failed("a"), step("b", "a")
    assert flow(*parts, step("c", sent=True)).state == "running"
    assert flow(*parts, done("c")).state == "failed"
    assert flow(done("a"), step("b", Edge("a", "failed"))).state == "done"
    assert flow(step("a"), state="open").state == "open"


def test_what_a_flow_waits_for():
    minute = 60_000
    view = flow(
        step("rows", kind="map", queue="low", size=5, ended=3, done=3, sent=True),
        step("more", kind="map", size=250, sealed=False, sent=True, added_at=NOW - 10 * minute),
        step("gate", kind="wait", sent=True, due_at=NOW + 2 * minute),
        step("clock", kind="timer", sent=True, due_at=NOW + 5 * minute),
        step("sub", kind="flow", flow="part:7", sent=True),
        step("send", queue="mails", sent=True),
        step("next", todo=True),
        step("last", "rows", "gate", Edge("send", "ended")),
    )  # fmt: skip
    assert [(one.step, one.code, one.sentence) for one in view.waits_for] == [
        ("rows", "member", "2 of 5 members of step rows (queue low)"),
        ("more", "adding", "the producer of step more: 250 members, the last added 10 m 00 s ago"),
        ("gate", "signal", "a signal for gate, or 2 m 00 s more"),
        ("clock", "timer", "the timeout of clock, in 5 m 00 s"),
        ("sub", "flow", "flow part:7"),
        ("send", "member", "step send (queue mails)"),
        (
            "next",
            "ready",
            "step next is ready; the next worker that ends a member or renews leases sends it",
        ),
    ]
    assert (
        step_sentence(view, "last") == "waits for 3 of 3 steps of flow import:1: rows, gate, send"
    )
    assert step_sentence(view, "send") == ""
    assert view.remark == "adding, stopped 10 m 00 s ago"
    assert view.progress == "0 of 8 steps, 3 of 260 members"
    skipped = flow(failed("a"), step("b", "a"))
    assert step_sentence(skipped, "b") == "skipped, because a is failed"
    assert (skipped.waits_for, skipped.remark) == ((), "1 dead")


def test_flow_is_printed_in_a_few_lines():
    waits = [step(f"gate-{at}", kind="wait", sent=True) for at in range(5)]
    view = flow(failed("a"), *waits, step("b", "gate-0"))
    assert str(view).splitlines() == [
        "import:1: running, 1 of 7 steps (1 dead)",
        "waits for a signal for gate-0", "waits for a signal for gate-1", "waits for a signal for gate-2", "and 2 more",
    ]  # fmt: skip
    assert repr(view) == "<FlowView import:1: running, 1 of 7 steps>"
    assert str(flow(done("a"))) == "import:1: done, 1 of 1 step"


def test_critical_path_leads_backwards_from_what_ended_last():
    view = flow(
        done("a", ready_at=100, ended_at=200), done("fast", "a", ready_at=200, ended_at=300),
        done("slow", "a", ready_at=200, ended_at=900), done("z", "fast", "slow", ready_at=900, ended_at=950),
        done("aside", ready_at=100, ended_at=940), created_at=100,
    )  # fmt: skip
    assert [*map(astuple, view.critical_path)] == [("a", 100), ("slow", 700), ("z", 50)]
    running = flow(done("a", ready_at=100, ended_at=200), step("b", "a", sent=True, ready_at=200))
    assert [*map(astuple, running.critical_path)] == [("a", 100), ("b", NOW - 200)]
    untimed = flow(done("a"), done("b", "a"), done("c", "b"))
    assert [one.step for one in untimed.critical_path] == ["a", "b", "c"]
    assert flow(step("a")).critical_path == ()


def test_facts_of_a_damaged_server_are_tolerated():
    view = flow(
        step("a", "b"), step("b", "a"), step("c", "nobody"), done("d"), step("e", "b", sent=True)
    )
    assert view.layers == (("c", "d"), ("a", "b", "e"))
    assert states(view) == {
        "a": "waiting",
        "b": "waiting",
        "c": "waiting",
        "d": "done",
        "e": "running",
    }
    assert view.state == "running"
    assert step_sentence(view, "c") == "waits for 1 of 1 step of flow import:1: nobody"
    assert view.critical_path


def random_flow(seed: int) -> FlowView:
    """A flow as an engine may leave it: steps are sent once their edges were met, members end in any way."""
    chance = random.Random(seed)
    names = [f"s{number}" for number in range(chance.randint(1, 9))]
    facts: list[StepFacts] = []
    for at, name in enumerate(names):
        sources = chance.sample(names[:at], min(at, chance.randint(0, 3)))
        edges = [Edge(source, chance.choice(("done", "ended", "failed"))) for source in sources]
        plain = step(name, *edges, size=chance.randint(1, 4))
        met = flow(*facts, plain).by_name[name]
        if met.state == "waiting" and not met.waits_for and chance.random() < 0.8:
            ended = chance.choice((plain.size, chance.randint(0, plain.size)))
            dead = chance.choice((0, 0, chance.randint(0, ended)))
            plain = step(
                name, *edges, size=plain.size, ended=ended, done=ended - dead, dead=dead, sent=True,
            )  # fmt: skip
        facts.append(plain)
    return flow(*chance.sample(facts, len(facts)))


def test_random_flows_never_wait_for_nothing():
    for seed in range(400):
        view = random_flow(seed)
        order = {name: at for at, names in enumerate(layers(view.facts.steps)) for name in names}
        for one in view.steps:
            assert all(order[edge.step] < order[one.name] for edge in one.facts.after)
            if one.state == "skipped":
                assert all(view.by_name[edge.step].state in STEP_OVER for edge in one.lost)
        # A flow that isn't over has something that runs, or a step that may be sent now.
        may_go_on = view.waits_for or any(
            one.state == "waiting" and not one.waits_for for one in view.steps
        )
        assert bool(may_go_on) == (view.state == "running"), seed
        path = [one.step for one in view.critical_path]
        for source, target in pairwise(path):
            assert source in [edge.step for edge in view.by_name[target].facts.after]
