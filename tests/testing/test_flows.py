"""The kit runs flows: with drain, at once, and what it asserts of their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobq.errors import ConfigError
from jobq.flows.announcing import announce
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
        (("import:1", "load"), {"size": 1}, "a step has no 'size'; give members, done, dead"),
    ],
)  # fmt: skip
def test_what_can_never_hold_is_refused(
    jobq: Kit, start: Callable[[], str], words: Any, counts: Any, says: str
) -> None:
    start()
    jobq.client.command("ZADD", "jobq:flows", 1, "import:1")
    with pytest.raises(ConfigError, match=says):
        jobq.assert_step(*words, **counts)
