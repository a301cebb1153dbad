"""The kit runs flows: with drain, at once, and what it asserts of their steps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from jobq.errors import ConfigError
from jobq.flows.announcing import announce
from jobq.flows.flow import Flow
from jobq.flows.state import Edge
from jobq.flows.store import FlowStore
from jobq.flows.types import StoredFlow, StoredStep
from jobq.jobs.codec import encode
from jobq.jobs.registry import Registry, job
from jobq.testing import Kit

pytestmark = pytest.mark.one_server


@pytest.fixture
def ran() -> list[str]:
    """What ran, in order."""
    return []


@pytest.fixture
def start(jobq: Kit, registry: Registry, ran: list[str]) -> Callable[[], str]:
    """Start a flow: `load`, then `check`, which fails; behind that `alert` if it failed, and `publish` if not."""

    @job(name="load", queue="low", registry=registry)
    def load() -> None:
        ran.append("load")

    @job(name="check", queue="pdf", retries=0, registry=registry)
    def check() -> None:
        ran.append("check")
        raise ValueError("no pages")

    @job(name="alert", queue="low", registry=registry)
    def alert() -> None:
        ran.append("alert")

    def step(name: str, queue: str, *after: Edge) -> StoredStep:
        return StoredStep(
            name, "step", queue, after, call=encode(name, enqueued_at=1_700_000_000_000)
        )

    def started() -> str:
        steps = (
            step("load", "low"), step("check", "pdf", Edge("load")), step("alert", "low", Edge("check", "failed")),
            step("publish", "low", Edge("check")),
        )  # fmt: skip
        store = FlowStore(jobq.client, "import:1")
        assert store.create(StoredFlow(steps, "hash", "low", 60_000)) == "created"
        announce(jobq.client, "low", "begin", "import:1")
        return "import:1"

    return started


def test_drain_runs_flows_over_all_queues(jobq, start, ran):
    flow = start()
    assert ran == []
    jobq.assert_step(flow, "load", "running", members=1, done=0)
    assert jobq.drain(raises=False) == (2, 0, 1, 0, 0)
    assert ran == ["load", "check", "alert"]
    assert jobq.assert_flow(flow, "failed").counts == {"failed": 1, "skipped": 1, "done": 2}
    assert jobq.assert_step(flow, "check", "failed", dead=1).facts.queue == "pdf"


def test_error_of_a_step_is_the_error_of_the_drain(jobq, start, ran):
    start()
    with pytest.raises(ValueError, match="no pages"):
        jobq.drain()
    assert jobq.drain().done == 1
    assert ran == ["load", "check", "alert"]


def test_inline_flow_runs_as_it_starts_and_goes_on_after_a_failure(jobq, start, ran):
    with jobq.mode("inline"):
        flow = start()
        assert ran == ["load", "check", "alert"]
    jobq.assert_flow(flow, "failed")


def test_error_shows_steps_what_they_wait_for_and_why_members_failed(jobq, start):
    flow = start()
    with pytest.raises(AssertionError) as raised:
        jobq.assert_step(flow, "check", "done", done=1)
    assert str(raised.value).splitlines() == [
        "step check of flow import:1 is waiting, not done; has 0 done, not 1",
        "import:1: running, 0 of 4 steps",
        "  load: running, 0 of 1 ended",
        "  check: waiting, 0 of 1 ended; waits for 1 of 1 step of flow import:1: load",
        "  alert: waiting, 0 of 1 ended; waits for 1 of 1 step of flow import:1: check",
        "  publish: waiting, 0 of 1 ended; waits for 1 of 1 step of flow import:1: check",
        "  waits for step load (queue low)",
    ]
    jobq.drain(raises=False)
    with pytest.raises(
        AssertionError,
        match=r"flow import:1 is failed, not done(\n.*)*check\.0: ValueError: no pages",
    ):
        jobq.assert_flow(flow, "done")


@pytest.mark.parametrize(
    ("words", "counts", "says"),
    [
        (("import:2", "load"), {}, "did you mean 'import:1'"),
        (("import:1", "lood"), {}, "has no step 'lood'; it has load, check, alert, publish"),
        (("import:1", "load", "ended"), {}, "state 'ended' is unknown; use running"),
        (("import:1", "load"), {"size": 1}, "a step has no 'size'; pass members, done, dead"),
    ],
)  # fmt: skip
def test_what_can_never_hold_is_refused(
    jobq: Kit, start: Callable[[], str], words: Any, counts: Any, says: str
) -> None:
    start()
    jobq.client.command("ZADD", "jobq:flows", 1, "import:1")
    with pytest.raises(ConfigError, match=says):
        jobq.assert_step(*words, **counts)


@pytest.fixture
def add(jobq: Kit, registry: Registry, ran: list[str]) -> Any:
    """A job that keeps and returns what it is given."""

    @job(name="add", queue="low", result_ttl="1h", registry=registry)
    def add(*values: Any) -> Any:
        ran.append(f"add {values}")
        return sum(value if isinstance(value, int) else sum(value) for value in values)

    return add


@pytest.mark.parametrize("mode", ["fake", "inline"])
def test_results_of_maps_and_steps_are_arguments(jobq, add, ran, mode):
    flow = Flow("sum", id="1")
    rows = flow.map(add, [1, 2, 3], results=True, name="rows")
    total = flow.step(add, rows.results, name="total")
    flow.step(add, total.result, 10, name="last")
    with jobq.mode(mode):
        run = flow.start()
        if mode == "fake":
            assert jobq.drain().done == 5
    jobq.assert_step(run, rows, "done", members=3, done=3)
    jobq.assert_flow(run, "done")
    assert (run.result(total), run.result("last"), ran[-1]) == (6, 16, "add (6, 10)")


def test_results_of_steps_are_decoded_and_results_by_name_are_json(jobq, registry):
    @job(name="price", queue="low", result_ttl="1h", registry=registry)
    def price(cents: int) -> Decimal:
        return Decimal(cents) / 100

    flow = Flow("shop.prices", id="1")
    first = flow.step(price, 150, name="first")
    others = flow.map(price, [1, 2], results=True, name="others")
    run = flow.start()
    jobq.drain()
    assert run.result(first) == Decimal("1.5")
    assert run.result(others) == [Decimal("0.01"), Decimal("0.02")]
    assert (run.result("first"), run.result("others")) == ("1.5", ["0.01", "0.02"])


def test_flows_and_their_flows_may_have_dots_in_their_names(jobq, add):
    flow, inner = Flow("shop.import", id="1"), Flow("shop.rows", id="2")
    inner.step(add, 1, name="one")
    flow.step(add, 2, after=flow.flow(inner), name="last")
    run = flow.start()
    assert jobq.drain().done == 2
    jobq.assert_flow(run, "done")
    assert run.flow_id == "shop.import:1"


def test_timers_and_timeouts_follow_the_clock_of_the_test(jobq, add, ran):
    flow = Flow("later", id="1")
    morning = flow.at(jobq.clock.now() + timedelta(hours=2), name="morning")
    gate = flow.wait("approved", timeout="3d")
    flow.step(add, 1, after=morning, name="early")
    flow.step(add, 2, after=gate, when="failed", name="reminder")
    run = flow.start()
    assert jobq.drain().done == 0
    jobq.assert_step(run, "approved", "running")
    jobq.clock.move("2h")
    assert jobq.drain().done == 2  # the timer is a message, too
    jobq.assert_step(run, "early", "done")
    jobq.assert_step(run, gate, "running")
    jobq.drain(delayed=True)
    jobq.assert_step(run, gate, "failed")
    jobq.assert_flow(run, "failed")
    assert ran == ["add (1,)", "add (2,)"]


def test_signal_is_taken_in_at_once(jobq, add):
    flow = Flow("ask", id="1")
    gate = flow.wait("approved")
    flow.step(add, gate.value, name="after")
    run = flow.start()
    run.signal("approved", 7)
    jobq.assert_step(run, gate, "done")
    jobq.assert_enqueued(add, count=1)
    jobq.drain()
    assert run.result("after") == 7
