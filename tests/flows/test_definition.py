"""Flows as they are written down: names, edges, results as arguments, options, and rejected arguments."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from jobq.errors import CodecError, ConfigError
from jobq.flows.definition import Failure, StepList, checked_graph, hash_of
from jobq.flows.references import FlowInput, ResultOf, header_of, inputs_in, put_in
from jobq.jobs.job import Job
from jobq.jobs.registry import Registry, job

jobs = Registry()


@job(registry=jobs, name="shop.load", queue="low")
def load(number: int, *, deep: bool = False) -> dict[str, int]:
    return {"number": number}


@job(registry=jobs, name="shop.report")
def report(rows: list[dict[str, int]], title: str = "") -> str:
    return title


@job(registry=jobs, name="shop.mail")
async def mail(text: str, to: dict[str, Any] | None = None) -> None: ...


@job(registry=jobs, name="shop.alert")
def alert(failures: list[Failure]) -> None: ...


@job(registry=jobs, name="shop.rename")
def rename(name: str) -> None: ...


def test_steps_are_named_after_their_jobs_and_wait_for_those_whose_results_they_take():
    flow = StepList("import:1")
    rows = flow.map(load, range(3), results=True)
    text = flow.step(report, rows.results, title="rows")
    flow.step(mail, text.result, to={"in": [1, text.result]})
    again = flow.step(mail.args(text.result), after=rows)
    gate = flow.wait("approved", timeout="3d", after=text)
    flow.step(alert, rows.failures)
    flow.step(mail, "late", after={again: "ended", "approved": "failed"}, name="late")
    assert {name: step.after for name, step in flow.steps.items()} == {
        "load": {}, "report": {"load": "done"}, "mail": {"report": "done"},
        "mail-2": {"load": "done", "report": "done"}, "approved": {"report": "done"}, "alert": {"load": "ended"},
        "late": {"mail-2": "ended", "approved": "failed"},
    }  # fmt: skip
    assert (gate.timeout_s, rows.queue, text.keeps_results, again.keeps_results) == (
        259_200, "low", True, False,
    )  # fmt: skip
    checked_graph(flow.steps)


def test_results_leave_their_positions_and_find_them_again():
    flow = StepList("import:1")
    rows = flow.step(load, 1)
    step = flow.step(mail, "to all", {"a": [0, rows.result], "b": rows.result})
    assert (step.args, step.kwargs) == (["to all", {"a": [0, None], "b": None}], {})
    inputs = [FlowInput(path, one.name, one.what, "low") for path, one in step.inputs]
    header = header_of(inputs)
    assert header == '[[[1,"a",1],"load","result","low"],[[1,"b"],"load","result","low"]]'
    assert inputs_in(header) == inputs
    put_in(step.args, step.kwargs, [(one, {"x": 1}) for one in inputs])
    assert step.args == ["to all", {"a": [0, {"x": 1}], "b": {"x": 1}}]


@pytest.mark.parametrize(
    "header",
    ["", "x", "{}", "[[]]", '[[[],"a","result"]]', '[[[0],"a","secret"]]', '[[[-1],"a","result"]]',
     '[[[0],"","result"]]', "[" * 2000, '[[[true],"a","result"]]', "[" + ",".join(['[[0],"a","value"]'] * 300) + "]"],
)  # fmt: skip
def test_header_that_another_program_wrote_is_refused(header: str):
    with pytest.raises(CodecError, match="header 'flow'"):
        inputs_in(header)


@pytest.mark.parametrize(
    ("path", "reason"),
    [((1,), "no argument"), (("x",), "no argument"), ((0, "a"), "no argument"), ((0, 5), "no argument"),
     ((0, 0), "already has a value"), (("k", "k", "k"), "no argument")],
)  # fmt: skip
def test_value_has_no_position_or_an_argument_is_there(path: tuple[int | str, ...], reason: str):
    with pytest.raises(CodecError, match=reason):
        put_in([["there"]], {"k": {"k": None}}, [(FlowInput(path, "a", "result"), 1)])


def refused(text: str) -> Any:
    return pytest.raises(ConfigError, match=text)


def test_names_and_edges_that_cannot_be_are_refused():
    flow, other = StepList("import:1"), StepList("import:2")
    first, foreign = flow.step(load, 1), other.step(load, 1)
    with refused("two steps of flow import:1 are named 'load'"):
        flow.step(load, 2, name="load")
    with refused(r"step name 'a\.b' can't be used"):
        flow.step(load, 2, name="a.b")
    with refused("belongs to another flow, not to import:1"):
        flow.step(mail, "x", after=foreign)
    with refused("belongs to another flow"):
        flow.step(report, [foreign.result])
    with refused("when='failed' needs after="):
        flow.step(report.args([]), when="failed")
    with refused("when='never' is unknown"):
        flow.step(report, [], after=first, when="never")  # type: ignore[call-overload]
    with refused("only if its step is done"):
        flow.step(report, [first.result], after=first, when="ended")
    with refused("can't be an argument of shop.report; pass the step's result, or after='load'"):
        flow.step(report, first)  # type: ignore[call-overload]
    with refused("is known only when the flow runs"):
        list(first.result)
    with refused("after=<result of step load> is not a step; pass the step itself"):
        flow.step(report.args([]), after=first.result)  # type: ignore[arg-type]
    with refused(r"3 is not a job; pass the job and then its arguments: flow\.step"):
        flow.step(3)  # type: ignore[call-overload]
    with refused("map 'load-2' doesn't keep results; pass results=True"):
        _ = flow.map(load, [1]).results
    with refused("name= is an argument of both shop.rename and flow.step"):
        flow.step(rename, name="x")
    assert flow.step(rename.args(name="x"), name="y").kwargs == {"name": "x"}
    with pytest.raises(TypeError, match="load"):
        flow.step(load, 1, depth=True)  # type: ignore[call-overload]
    with pytest.raises(CodecError, match=r"argument 'text' of shop\.mail doesn't fit"):
        flow.step(mail, {1})  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"mid": "x"}, "mid='x' can't be used in a flow; leave it out, because"),
     ({"unique": True}, "unique=True can't be used in a flow"), ({"expires_in": 5}, "expires_in=5.0 can't be used"),
     ({"throttle": 5}, "throttle"), ({"headers": {"flow": "x"}}, "the header 'flow'")],
)  # fmt: skip
def test_options_that_a_step_cannot_have_are_refused(options: dict[str, Any], words: str):
    changed: Job[..., Any] = load.options(**options)
    with refused(words):
        StepList("import:1").step(changed, 1)


def test_maps_that_wait_need_items_that_can_be_stored():
    flow = StepList("import:1")
    first = flow.step(load, 1)
    with refused("its items must be stored; pass a list, or the result of a step"):
        flow.map(load, iter([1]), after=first)
    with refused("takes a list or another iterable of items, not 3"):
        flow.map(load, 3)  # type: ignore[call-overload]
    over = flow.map(mail, first.result, name="over")
    assert isinstance(over.items, ResultOf) and over.after == {"load": "done"}
    rows = flow.map(load, [1, (2,), load.args(3, deep=True)], after=first)
    assert [*rows.calls(rows.items)] == [((1,), {}), ((2,), {}), ((3,), {"deep": True})]
    with pytest.raises(TypeError, match="load"):
        [*rows.calls([(1, 2)])]


def test_key_made_from_arguments_is_for_members_that_are_sent_at_once():
    keyed = load.options(key=lambda number, **_: str(number))
    flow = StepList("import:1")
    first = flow.step(load, 1)
    assert flow.map(keyed, [1]).options == {}
    for items, after in (([1], first), (first.result, None)):
        with refused(r"map 'load-3' waits for steps, so the key of .* with options\(key=\"…\"\)"):
            flow.map(keyed, items, after=after)
    assert flow.map(load.options(key="acme"), [1], after=first).options == {"key": "acme"}


@pytest.mark.parametrize(
    "use", [str, "{}".format, lambda one: "x" + one, lambda one: one + 1, lambda one: one == 3]
)
def test_result_of_a_step_cannot_be_used_before_it_is_there(use: Any):
    result = StepList("import:1").step(load, 1).result
    with refused("<result of step load> is known only when the flow runs; pass it whole"):
        use(result)


def test_items_of_a_list_are_checked_before_anything_is_sent():
    flow = StepList("import:1")
    wrong: list[Any] = [1, (2, 3)]
    with pytest.raises(TypeError, match=r"item 1 of map load: .*; pass a tuple of all arguments"):
        flow.map(load, wrong)
    assert not flow.steps


def test_steps_that_wait_for_each_other_are_named():
    flow = StepList("import:1")
    flow.step(load, 1, name="a", after="c")
    flow.step(load, 1, name="b", after="a")
    flow.step(load, 1, name="c", after="b")
    with refused("steps wait for each other: a -> b -> c -> a; remove one"):
        checked_graph(flow.steps)
    lonely = StepList("import:1")
    lonely.step(load, 1, after="x", name="y")
    with refused("step 'y' waits for 'x', which this flow doesn't have; it has y"):
        checked_graph(lonely.steps)


def defined(first: int = 1, **changed: Any) -> StepList:
    flow = StepList("import:1")
    rows = flow.map(load, [first], results=True)
    flow.step(report, rows.results, title="x", **changed)
    flow.wait("go", timeout=5)
    flow.at(datetime(2026, 11, 22, tzinfo=UTC), after=rows)
    return flow


def test_equal_definitions_have_one_hash_and_others_another():
    def hashed(flow: StepList, keep_s: float = 5) -> str:
        return hash_of(flow.steps.values(), keep_s)

    assert hashed(defined()) == hashed(defined(first=2))  # streamed items are no part of it
    longer = defined()
    longer.step(load.options(retries=9), 1)
    other = defined()
    other.step(load, 1)
    hashes = {
        hashed(defined()), hashed(defined(), 6), hashed(defined(name="z")), hashed(defined(after="go")), hashed(longer),
        hashed(other),
    }  # fmt: skip
    assert len(hashes) == 6
