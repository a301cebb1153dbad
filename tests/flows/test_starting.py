"""Starting a flow, where no worker is there to take it on, and maps of items that nobody can send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jobq import Flow
from jobq.errors import CodecError, FlowConflictError, KeyFullError
from jobq.flows import starting
from jobq.flows.draining import Drainer
from jobq.flows.listing import failed_members, flow_page, remove_flow
from jobq.flows.run import FlowRun
from jobq.flows.types import PER_CHUNK
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.lifecycle.jobs_in_flows import load

pytestmark = pytest.mark.usefixtures("run_ids")


def test_a_started_flow_waits_longer_for_a_worker_than_an_hour(
    client: Any, redis: Any, monkeypatch: pytest.MonkeyPatch
):
    """Even if the starter can't deliver the begin to it: much may lie before it in the outbox."""
    monkeypatch.setattr(starting, "drain_soon", lambda *_: None)
    flow = Flow("import", "7", client=client)
    flow.step(load, 1)
    run = flow.start()
    assert run.status().state == "open"
    lives = {key: redis.pttl(key) for key in redis.keys("jobq:flow:*")}
    assert lives and min(lives.values()) > 300 * 86_400_000, lives


@pytest.mark.parametrize("nbefore", [0, PER_CHUNK + 1, 2 * PER_CHUNK])
@pytest.mark.parametrize(("bad", "error"), [((1, 2), TypeError), ({1, 2}, CodecError)])
def test_an_item_that_no_call_takes_leaves_no_map_open(
    client: Any, nbefore: int, bad: Any, error: type[Exception]
):
    """The members before it run; then the map has failed, and says why."""

    def items() -> Iterator[Any]:
        yield from range(nbefore)
        yield bad
        yield from range(PER_CHUNK)

    flow = Flow("import", "7", client=client)
    rows = flow.map(load, items(), name="rows")
    flow.step(load.args(1), after=rows, name="after")
    flow.step(load.args(2), after=rows, when="failed", name="alert")
    with pytest.raises(error):
        flow.start()
    run = FlowRun("import", "7", client=client)
    view = run.status()
    sent = nbefore // PER_CHUNK * PER_CHUNK
    assert view.by_name["rows"].facts.sealed
    assert (view.by_name["rows"].facts.size, view.dead) == (sent + 1, 1)
    [failed] = failed_members(client, view, 5)
    assert failed.mid == f"~import:7.r1.rows.{sent}"
    assert failed.reason.startswith(error.__name__)
    if not sent:
        states = {one.name: one.state for one in view.steps}
        assert states == {"rows": "failed", "after": "skipped", "alert": "running"}


def test_the_start_of_a_map_goes_on_as_the_line_of_its_key_has_room(
    client: Any, monkeypatch: pytest.MonkeyPatch
):
    """On an empty line, and with fewer places than a chunk has members."""
    low, waited = Queue("low", client), 0
    low.rules(key_waiting=7)
    seen: list[str] = []

    def work(_: float) -> None:
        """In place of a pause."""
        nonlocal waited
        waited += 1
        messages = low.dequeue(5).messages
        seen.extend(one.mid for one in messages)
        low.finish([Ending(mid=one.mid, token=one.token) for one in messages])

    monkeypatch.setattr(starting, "sleep", work)
    flow = Flow("import", "7", client=client)
    flow.map(load.options(key=lambda number: f"k{number % 2}"), range(300), name="rows")
    run = flow.start()
    assert waited > 50
    while messages := low.dequeue(50).messages:
        seen.extend(one.mid for one in messages)
        low.finish([Ending(mid=one.mid, token=one.token) for one in messages])
    assert sorted(seen) == sorted(f"~import:7.r1.rows.{number}" for number in range(300))
    Drainer(client).drain("low")
    assert run.status().state == "done"


def test_a_line_that_stays_full_ends_the_start_and_the_same_start_goes_on(
    client: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(starting, "FULL_S", 0.05)
    low = Queue("low", client)
    low.rules(key_waiting=7)

    def flow() -> Flow:
        found = Flow("import", "7", client=client)
        found.map(load.options(key="acme"), range(10), name="rows")
        return found

    with pytest.raises(
        KeyFullError, match=r"map rows of flow import:7 was blocked .*start the same flow again"
    ):
        flow().start()
    assert low.admin.counts().ready == 7
    low.rules(key_waiting=10)
    flow().start()
    assert low.admin.counts().ready == 10


def test_an_iterable_that_breaks_off_leaves_its_map_to_the_same_start_again(client: Any):
    class Away(Exception):
        pass

    def flow(breaks: bool) -> Flow:
        def items() -> Iterator[int]:
            for number in range(600):
                if breaks and number == 300:
                    raise Away
                yield number

        found = Flow("import", "7", client=client)
        found.map(load, items(), name="rows")
        return found

    with pytest.raises(Away):
        flow(True).start()
    view = FlowRun("import", "7", client=client).status()
    assert (view.by_name["rows"].facts.size, view.by_name["rows"].facts.sealed) == (250, False)
    rows = flow(False).start().status().by_name["rows"].facts
    assert (rows.size, rows.sealed, rows.dead) == (600, True, 0)


def test_sub_flows_are_listed_too(client: Any):
    deep, inner, outer = (Flow(name, "7", client=client) for name in ("deep", "inner", "outer"))
    deep.step(load, 1)
    inner.flow(deep)
    outer.flow(inner)
    outer.start()
    rows = {row.flow: row.view for row in flow_page(client).rows}
    assert rows.keys() == {"outer:7", "inner:7", "deep:7"}
    assert {name: view and view.state for name, view in rows.items()} == dict.fromkeys(
        rows, "running"
    )


def nested(client: Any, outer: str = "outer", *, start: bool = True) -> FlowRun:
    """A flow with a step that is the flow inner:7, whose step is the flow deep:7."""
    deep, inner = (Flow(name, "7", client=client) for name in ("deep", "inner"))
    deep.step(load, 1)
    inner.flow(deep)
    flow = Flow(outer, "7", client=client)
    flow.flow(inner)
    return flow.start() if start else FlowRun(outer, "7", client=client)


def cancelled(client: Any) -> None:
    nested(client).cancel()
    Drainer(client).drain("default")
    assert nested(client, start=False).status().state == "cancelled"


def test_start_refuses_a_sub_flow_when_another_flow_has_it(client: Any, redis: Any):
    nested(client)
    before = {key: redis.dump(key) for key in redis.keys("*")}
    with pytest.raises(FlowConflictError, match=r"other:7 can't have inner:7.*outer:7.*running"):
        nested(client, "other")
    assert {key: redis.dump(key) for key in redis.keys("*")} == before


def test_start_refuses_a_sub_flow_when_another_start_has_stored_it_meanwhile(
    client: Any, redis: Any, monkeypatch: pytest.MonkeyPatch
):
    nested(client)
    monkeypatch.setattr(starting.Planned, "check_subs", lambda *_: None)
    with pytest.raises(FlowConflictError, match=r"other:7 can't have inner:7.*outer:7.*running"):
        nested(client, "other")
    # Its stored flow is never begun.
    assert FlowRun("other", "7", client=client).status().state == "open"
    assert redis.pttl("jobq:flow:{other:7}:meta") <= 3_600_000
    assert FlowRun("inner", "7", client=client).status().facts.parent.startswith("outer:7.")


def test_start_refuses_a_sub_flow_of_another_flow_when_its_own_id_is_random(client: Any):
    def start() -> FlowRun:
        flow, part = Flow("outer", client=client), Flow("part", "7", client=client)
        part.step(load, 1)
        flow.flow(part)
        return flow.start()

    assert start().status().state == "running"
    with pytest.raises(FlowConflictError, match="can't have part:7"):
        start()


def test_a_sub_flow_makes_way_when_its_flow_was_removed_and_is_started_again(client: Any):
    cancelled(client)
    before = FlowRun("inner", "7", client=client).status().facts.run_id
    remove_flow(client, "outer:7")
    run = nested(client)
    states = [FlowRun(one, "7", client=client).status() for one in ("outer", "inner", "deep")]
    assert {one.state for one in states} <= {"open", "running"}
    assert {one.facts.run_id for one in states} == {run.status().facts.run_id} != {before}


def test_start_refuses_a_sub_flow_when_it_still_runs_for_an_earlier_run(client: Any, redis: Any):
    nested(client)
    redis.delete(*redis.keys("jobq:flow:{outer:7}*"))
    with pytest.raises(
        FlowConflictError, match=r"inner:7.*outer:7.*running.*jobq flow delete inner:7"
    ):
        nested(client)
    assert redis.keys("jobq:flow:{outer:7}*") == []


def test_start_stores_no_sub_flow_when_the_flow_is_over(client: Any, redis: Any):
    cancelled(client)
    remove_flow(client, "inner:7")
    assert nested(client).status().state == "cancelled"
    assert redis.keys("jobq:flow:{inner:7}*") == []


def test_start_stores_no_sub_flow_when_the_flow_has_other_steps(client: Any, redis: Any):
    nested(client)
    other, flow = (Flow(name, "7", client=client) for name in ("new", "outer"))
    other.step(load, 1)
    flow.flow(other)
    with pytest.raises(FlowConflictError, match="different steps"):
        flow.start()
    assert redis.keys("jobq:flow:{new:7}*") == []


@pytest.mark.parametrize("is_gone", [False, True])
def test_start_goes_on_when_an_earlier_one_stored_the_flows_and_began_none(
    client: Any, monkeypatch: pytest.MonkeyPatch, is_gone: bool
):
    """is_gone: the outer flow has waited for its begin for an hour, and the others wait for a year."""

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(starting, "announce", dies)
        with pytest.raises(KeyboardInterrupt):
            nested(client)
    assert FlowRun("inner", "7", client=client).status().state == "open"
    if is_gone:
        remove_flow(client, "outer:7")
    assert nested(client).status().state == "running"
