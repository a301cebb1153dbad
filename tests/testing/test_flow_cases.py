"""Batches as other systems got them wrong, and flows together with keys, limits and schedules."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from freezegun import freeze_time

from jobq import Batch, Flow, RateLimit, current, job, schedule
from jobq.client.connection import connect
from jobq.errors import ConfigError, FlowClosedError
from jobq.flows.inputs import StepResults
from jobq.flows.listing import failed_members, flow_page, remove_flow
from jobq.flows.run import FlowRun
from jobq.flows.store import FlowStore
from jobq.jobs.registry import Registry
from jobq.queue.queue import Queue
from jobq.testing import Kit

pytestmark = [pytest.mark.one_server, pytest.mark.usefixtures("run_ids")]


@pytest.fixture
def ran() -> list[Any]:
    """What ran, in order."""
    return []


@pytest.fixture
def note(registry: Registry, ran: list[Any]) -> Any:
    """A job that says what it was called with."""

    @job(name="note", queue="notes", registry=registry)
    def note(what: Any) -> None:
        ran.append(what)

    return note


@pytest.fixture
def load(registry: Registry, ran: list[Any]) -> Any:
    """A job that is dead for odd numbers, until `ran` has "lucky"."""

    @job(name="load", queue="loads", retries=0, registry=registry)
    def load(number: int) -> int:
        if number % 2 and "lucky" not in ran:
            raise ValueError("odd")
        return number

    return load


def test_empty_batch_calls_back_once(jobq: Kit, note: Any, load: Any, ran: list[Any]) -> None:
    batch = Batch(load, [], id="1", client=jobq.client)
    run = batch.then(note, "then").on_end(note, "end").on_failure(note, "bad").start()
    jobq.drain()
    assert sorted(ran) == ["end", "then"]
    jobq.assert_flow(run, "done")


def test_dead_members_that_are_retried_call_back_once_more_and_only_then(
    jobq: Kit, note: Any, load: Any, ran: list[Any]
) -> None:
    batch = Batch(load, range(4), id="1", client=jobq.client)
    run = batch.then(note, "then").on_end(note, "end").on_failure(note, "bad").start()
    jobq.drain(raises=False)
    assert sorted(ran) == ["bad", "end"]
    jobq.assert_flow(run, "failed")
    run.retry()
    jobq.drain(raises=False)
    assert sorted(ran) == ["bad", "end"]

    ran.append("lucky")
    for _ in range(2):
        run.retry()
        jobq.drain(raises=False)
    assert Counter(ran) == {"bad": 1, "end": 1, "lucky": 1, "then": 1}
    jobq.assert_flow(run, "done")
    assert batch.start().status().state == "done"
    jobq.drain()
    assert len(ran) == 4


def test_batch_in_a_batch_ends_before_the_outer_one(
    jobq: Kit, note: Any, load: Any, ran: list[Any]
) -> None:
    inner = Flow("inner", id="1", client=jobq.client)
    rows = inner.map(load, [0, 2, 4], results=True)
    inner.step(note, rows.results)
    outer = Flow("outer", id="1", client=jobq.client)
    first = outer.step(note, "first")
    part = outer.flow(inner, after=first)
    outer.step(note.args("last"), after=part)
    jobq.drain()
    assert ran == []
    run = outer.start()
    jobq.drain()
    assert ran == ["first", [0, 2, 4], "last"]
    jobq.assert_flow(run, "done")
    jobq.assert_flow("inner:1", "done")


def test_what_the_last_member_adds_is_waited_for(
    jobq: Kit, registry: Registry, note: Any, ran: list[Any]
) -> None:
    @job(name="grow", queue="loads", registry=registry)
    def grow(number: int) -> None:
        ran.append(number)
        if number < 3:
            current().flow.map(grow, [number + 1], name=f"more-{number}")

    flow = Flow("grows", id="1", client=jobq.client)
    flow.map(grow, [0], name="all")
    run = flow.start()
    jobq.drain()
    assert ran == [0, 1, 2, 3]
    jobq.assert_flow(run, "done")


def test_sub_flow_is_refused_from_a_running_step_and_with_keys_made_from_arguments(
    jobq: Kit, registry: Registry, note: Any
) -> None:
    said: list[str] = []

    @job(name="grow", queue="loads", registry=registry)
    def grow() -> None:
        try:
            current().flow.flow(Flow("inner"), name="inner")  # type: ignore[attr-defined]
        except ConfigError as error:
            said.append(str(error))

    flow = Flow("grows", id="1", client=jobq.client)
    flow.step(grow)
    flow.start()
    jobq.drain()
    assert "a running step can't add a sub-flow to flow grows:1; add its steps here" in said[0]
    inner = Flow("inner", client=jobq.client)
    inner.map(note.options(key=lambda what: str(what)), [1, 2])
    outer = Flow("outer", client=jobq.client)
    outer.flow(inner)
    with pytest.raises(ConfigError, match="map 'note' waits for steps, so the key of"):
        outer.start()


def test_step_that_cannot_be_sent_says_why(jobq: Kit, registry: Registry, note: Any) -> None:
    @job(name="count", queue="loads", result_ttl=60, registry=registry)
    def count() -> int:
        return 3

    flow = Flow("counts", id="1", client=jobq.client)
    flow.map(note, flow.step(count).result)
    run = flow.start()
    jobq.drain()
    [failed] = failed_members(jobq.client, jobq.assert_flow(run, "failed"), 5)
    assert (failed.mid, failed.reason) == (
        "~counts:1.r1.note.0",
        "step count returned int, but a map needs a list",
    )


def test_flow_that_was_started_takes_no_steps_and_one_that_was_cancelled_no_retry(
    jobq: Kit, note: Any
) -> None:
    flow = Flow("once", id="1", client=jobq.client)
    flow.step(note, 1)
    run = flow.start()
    with pytest.raises(ConfigError, match="was started, so step 'note-2' would never run"):
        flow.step(note, 2)
    assert flow.start().status().by_name.keys() == {"note"}
    run.cancel()
    with pytest.raises(FlowClosedError, match="is cancelled and can't be retried; start it"):
        run.retry()


def test_failures_beyond_those_that_are_read_say_so(
    jobq: Kit, load: Any, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobq.flows.inputs.MAX_REASONS", 1)
    batch = Batch(load, [1, 3], id="1", client=jobq.client)
    run = batch.start()
    jobq.drain(raises=False)
    first, second = StepResults(jobq.client, run.status().facts.run).failures("load")
    assert first["reason"].startswith("ValueError: odd")
    assert second["reason"] == (
        "dead (errors are read for the first 1 only; jobq why ~load:1.r1.load.1 shows this error)"
    )


def test_steps_with_a_key_keep_its_order_and_members_wait_for_a_limit(
    jobq: Kit, registry: Registry, ran: list[Any]
) -> None:
    @job(name="limited", queue="loads", registry=registry, limits=[RateLimit("two", "2/m")])
    def limited(number: int) -> None:
        ran.append((jobq.clock.now(), number))

    @job(name="keyed", queue="keys", registry=registry, key="key", ordered=True)
    def keyed(key: str, number: int) -> None:
        ran.append(number)

    Queue("keys", jobq.client).rules(key_max=1)
    flow = Flow("mixed", id="1", client=jobq.client)
    every = flow.map(limited, range(5))
    flow.map(keyed, [("k", number) for number in range(4)])
    run = flow.start()
    jobq.drain()
    members = [one for one in ran if isinstance(one, tuple)]
    assert [one for one in ran if isinstance(one, int)] == [0, 1, 2, 3]
    assert sorted(number for _, number in members) == list(range(5))
    assert members[4][0] > members[0][0]
    jobq.assert_step(run, every.name, "done", members=5, done=5)
    jobq.assert_flow(run, "done")


def test_schedule_starts_a_flow_for_each_of_its_ticks(
    jobq: Kit, registry: Registry, note: Any, ran: list[Any]
) -> None:
    @schedule("0 * * * *", tz="UTC")
    @job(name="hourly", registry=registry)
    def hourly() -> None:
        tick = current().tick
        assert tick is not None
        flow = Flow("hourly", id=tick.strftime("%Y-%m-%dT%H"), client=jobq.client)
        flow.step(note, tick.hour)
        # The second one is the first one: an attempt may be repeated.
        flow.start()
        flow.start()

    with freeze_time("2031-05-06 07:08:09"):
        for _ in range(2):
            jobq.tick()
            jobq.drain()
            jobq.clock.move("1h")
        jobq.tick()
        jobq.drain()
    assert ran == [8, 9]
    for hour in ("08", "09"):
        run = FlowRun("hourly", f"2031-05-06T{hour}", client=jobq.client)
        jobq.assert_flow(run, "done")


def test_flow_that_grows_by_many_steps_is_not_read_for_each(
    jobq: Kit, registry: Registry, note: Any, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = FlowStore.facts

    @job(name="grow", queue="loads", registry=registry)
    def grow(many: int) -> None:
        flow = current().flow
        with monkeypatch.context() as patched:
            patched.setattr(FlowStore, "facts", lambda self: reads.append("") or read(self))
            for number in range(many):
                after = [f"s{number - 1}"] if number % 2 else []
                flow.step(note.args(number), name=f"s{number}", after=after)
            with pytest.raises(ConfigError, match="waits for 'none', which this flow doesn't have"):
                flow.step(note.args(0), name="late", after=["none"])

    flow = Flow("grows", id="1", client=jobq.client)
    flow.step(grow, 120)
    run = flow.start()
    jobq.drain()
    assert len(reads) == 2
    assert sorted(ran) == list(range(120))
    assert jobq.assert_flow(run, "done").counts == {"done": 121}


def test_signal_that_comes_before_its_wait_begins_counts_when_it_does(
    jobq: Kit, note: Any, ran: list[Any]
) -> None:
    flow = Flow("early", id="1", client=jobq.client)
    gate = flow.wait("approved", timeout="1h", after=flow.step(note, "first"))
    flow.step(note.args(gate.value), after=gate)
    run = flow.start()
    for value in ("ann", "bob"):
        run.signal("approved", value)
    assert run.status().by_name["approved"].state == "done"
    assert ran == []
    jobq.drain()
    assert ran == ["first", "ann"]
    jobq.assert_flow(run, "done")


def test_same_id_in_two_namespaces_is_two_flows(jobq: Kit, note: Any, ran: list[Any]) -> None:
    settings = replace(jobq.client.settings, namespace="elsewhere")
    with closing(connect(settings=settings)) as elsewhere:
        runs = []
        for client in (jobq.client, elsewhere):
            flow = Flow("twice", id="1", client=client)
            flow.step(note, client.namespace)
            runs.append(flow.start())
        jobq.drain()
        here, there = runs
        jobq.assert_flow(here, "done")
        assert ran == [jobq.client.namespace]
        assert there.status().state == "running"
        there.cancel()
        assert (here.status().state, there.status().state) == ("done", "cancelled")
        assert [row.flow for row in flow_page(elsewhere).rows] == ["twice:1"]
        assert remove_flow(elsewhere, "twice:1") == "removed"
        assert here.status().state == "done"
