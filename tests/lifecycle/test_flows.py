"""Flows with real workers: their code, and its effects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from jobq import Batch, Flow, FlowRun, Queue
from jobq.client.connection import connect
from jobq.config import CodecSettings, ServerSettings, parse_codec_keys
from jobq.errors import (
    FlowClosedError,
    FlowConflictError,
    JobFailedError,
    ResultNotStoredError,
    ResultTimeoutError,
)
from jobq.flows.identity import member_mid
from jobq.flows.state import FlowView
from jobq.queue.bin import ANY
from jobq.queue.partitioning import partition
from tests.client.deployments import Spread
from tests.conftest import binary

from .conftest import DEADLINE_S, Worker, until
from .jobs_in_flows import alert, grow, hold, listed, load, tell, total

MODULE = "tests.lifecycle.jobs_in_flows"


class Notes:
    """Return the notes of the jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def lines(self) -> list[str]:
        """Every note, sorted: jobs of several children write them."""
        file = self.folder / "notes"
        return sorted(file.read_text().splitlines()) if file.exists() else []


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """A note that no job has written yet."""
    return Notes(tmp_path)


@pytest.fixture
def work(start: Callable[..., Worker], tmp_path: Path) -> Callable[..., Worker]:
    """work("--processes", "2"): a worker of all queues of these flows."""

    def begin(*options: str, **more: str) -> Worker:
        env = {"FLOWS_FOLDER": str(tmp_path), **more}
        return start(*options, module=MODULE, queues="low,high,default", env=env)

    return begin


def states(view: FlowView) -> dict[str, str]:
    return {step.name: step.state for step in view.steps}


def ended(run: FlowRun) -> FlowView:
    return run.wait(DEADLINE_S)


def whole(client: Any, id: str) -> tuple[Flow, Any]:
    """A flow with a step of each kind."""
    flow = Flow("import", id, client=client)
    rows = flow.map(load, range(600), results=True)
    summed = flow.step(total, rows.results, title="sum ")
    gate = flow.wait("approved", timeout="1h", after=summed)
    late = flow.at(time.time() + 0.2, name="later")
    told = flow.step(tell, summed.result, {"gate": [gate.value]}, after=late, name="told")
    numbers = flow.step(listed, 3)
    again = flow.map(load, numbers.result, name="again")
    sub = Flow("sub")
    inner = sub.map(tell, ["inner"], name="inner")
    sub.step(tell, "sub", after=inner)
    flow.flow(sub, after=[told, again])
    flow.map(load.options(key="k"), [load.args(-2), (-3,), -4], after=numbers, name="listed-2")
    return flow, summed


@pytest.mark.parametrize(("codec", "partitions"), [("", 0), ("sign", 3), ("encrypt", 0)])
def test_whole_flow_runs_once_and_hands_results_on(
    client: Any, work: Callable[..., Worker], notes: Notes, codec: str, partitions: int
):
    if partitions:
        partition(client, "low", partitions)
    keys = {"JOBQ_CODEC": codec, "JOBQ_CODEC_KEYS": f"k1:{'abcd' * 11}"} if codec else {}
    if codec:
        sealing = CodecSettings(keys=parse_codec_keys(keys["JOBQ_CODEC_KEYS"]), mode=codec)
        client = connect(settings=replace(client.settings, url=client.url, codec=sealing))
    worker = work("--processes", "2", "--lease", "1h", **keys)
    flow, summed = whole(client, "1")
    run = flow.start()
    assert run.result(summed, timeout=DEADLINE_S) == "sum 179700"
    until(lambda: "signal" in [one.code for one in run.status().waits_for])
    with pytest.raises(ResultTimeoutError, match=r"a signal for approved.*within 0\.1 s"):
        run.wait(0.1)
    run.signal("approved", {"by": "ann"})
    assert {*states(ended(run)).values()} == {"done"}, [
        one for one in run.status().steps if one.state != "done"
    ]
    assert run.result("approved") == {"by": "ann"}
    again = whole(client, "1")[0]
    again.steps["later"].at_s = flow.steps["later"].at_s  # type: ignore[attr-defined]
    assert states(again.start().status()) == states(run.status())
    loads = [*range(600), 0, 1, 2, -2, -3, -4]
    told = ["sum 179700 {'gate': [{'by': 'ann'}]}", "inner", "sub"]
    assert notes.lines() == sorted([*(f"load {one}" for one in loads), *told])
    with pytest.raises(FlowClosedError, match="is done; it can't be signalled"):
        run.signal("approved")
    assert worker.stop() == 0


def test_batch_tells_of_failures_and_is_done_after_a_retry(
    client: Any, work: Callable[..., Worker], notes: Notes
):
    work("--lease", "1h")
    batch = Batch(load, [load.args(one, unlucky=7) for one in range(10)], client=client)
    batch.then(tell, "all").on_end(tell, "ended").on_failure(alert, batch.failures)
    run = batch.start()
    found = {"load": "failed", "tell": "skipped", "tell-2": "done", "alert": "done"}
    assert states(ended(run)) == found
    assert [one for one in notes.lines() if "load" not in one] == [
        "ended",
        "failed 7 ValueError: no luck (attempt 1 of 1)",
    ]
    with pytest.raises(JobFailedError, match="skipped, because load is failed"):
        run.result("tell")
    with pytest.raises(ResultNotStoredError, match="doesn't keep its result"):
        run.result(batch.calls)
    (notes.folder / "lucky").touch()
    run.retry()
    until(lambda: run.status().state == "done")
    assert states(run.status()) == {**found, "load": "done", "tell": "done"}
    others = [one for one in notes.lines() if not one.startswith("load")]
    assert others == ["all", "ended", "failed 7 ValueError: no luck (attempt 1 of 1)"]
    assert len(notes.lines()) == 13


def test_step_adds_steps_once_though_its_process_died(
    client: Any, work: Callable[..., Worker], notes: Notes
):
    work("--lease", "1h")
    flow = Flow("grow", "1", client=client)
    grown = flow.step(grow, 3)
    flow.step(tell, "behind", after=grown)
    run = flow.start()
    view = ended(run)
    assert {*states(view).values()} == {"done"}
    assert [one.name for one in view.steps] == ["grow", "tell", "more", "sum", "grown"]
    assert notes.lines() == [
        "behind", "grow grow:1 grow 0", "grown", "load 100", "load 101", "load 102",
    ]  # fmt: skip


@pytest.mark.main_thread
@pytest.mark.one_server
def test_supervisor_takes_to_flows_what_no_child_can(
    client: Any, work: Callable[..., Worker], notes: Notes, monkeypatch: pytest.MonkeyPatch
):
    work("--processes", "1", "--lease", "1h")
    hold.options(client=client).enqueue("gate")
    until(lambda: notes.lines() == ["holds"])
    # The producer dies right after it has announced the flow, and the only child is busy.
    monkeypatch.setattr("jobq.flows.starting.drain_soon", lambda *_: None)
    flow = Flow("import", "1", client=client)
    flow.step(tell, "told")
    run = flow.start()
    until(lambda: Queue("high", client).admin.counts().ready == 1)
    (notes.folder / "gate").touch()
    assert states(ended(run)) == {"tell": "done"}


@pytest.mark.one_server
def test_flow_spans_the_nodes_of_a_cluster(
    server: Any, start: Callable[..., Worker], notes: Notes, tmp_path: Path
):
    spread = Spread(binary(server.kind), tmp_path)
    try:
        cluster = connect(settings=ServerSettings(url=spread.url))
        queues = ["a", "b", "c"]
        assert len({key_slot(f"{{{one}}}".encode()) // 5461 for one in queues}) == 3
        env = {"FLOWS_FOLDER": str(tmp_path)}
        start("--processes", "2", module=MODULE, queues=",".join(queues), url=spread.url, env=env)
        flow = Flow("import", client=cluster)
        rows = flow.map(load.options(queue="a"), range(300), results=True)
        summed = flow.step(total.options(queue="b"), rows.results)
        flow.step(tell.options(queue="c"), summed.result)
        run = flow.start()
        assert {*states(ended(run)).values()} == {"done"}
        assert notes.lines()[-1] == "load 99" and notes.lines()[0] == "44850"
        cluster.close()
    finally:
        spread.close()


@pytest.mark.one_server
def test_producer_that_died_amid_a_map_goes_on_where_it_was(
    client: Any, work: Callable[..., Worker], notes: Notes
):
    def items(most: int) -> Iterator[int]:
        for number in range(800):
            if number == most:
                raise OSError("the producer died")
            yield number

    def flow(most: int) -> Flow:
        made = Flow("import", "1", client=client)
        made.step(tell, "all", after=made.map(load, items(most)))
        return made

    with pytest.raises(OSError, match="died"):
        flow(620).start()
    work("--lease", "1h")
    until(lambda: len(notes.lines()) == 500)
    assert states(FlowRun("import", "1", client=client).status()) == {
        "load": "running",
        "tell": "waiting",
    }
    run = flow(-1).start()
    assert states(ended(run)) == {"load": "done", "tell": "done"}
    assert notes.lines() == sorted([*(f"load {one}" for one in range(800)), "all"])


@pytest.mark.one_server
def test_what_is_said_too_late_or_otherwise_is_refused(client: Any):
    def flow(text: str) -> Flow:
        made = Flow("import", "1", client=client)
        gate = made.wait("go")
        made.step(tell, text, gate.value)
        return made

    run = flow("a").start()
    flow("a").start()
    with pytest.raises(
        FlowConflictError, match="import:1 was already started with different steps"
    ):
        flow("b").start()
    with pytest.raises(Exception, match="has no wait named 'stop'; it has go"):
        run.signal("stop")
    run.cancel()
    assert (ended(run).state, states(run.status())["tell"]) == ("cancelled", "cancelled")
    run.cancel()
    with pytest.raises(FlowClosedError, match="is cancelled; it can't be signalled"):
        run.signal("go")
    with pytest.raises(FlowClosedError, match="import:2 doesn't exist"):
        FlowRun("import", "2", client=client).status()


@pytest.mark.one_server
def test_worker_without_the_module_of_a_flow_moves_it_on_and_leaves_its_jobs_to_others(
    client: Any, start: Callable[..., Worker], work: Callable[..., Worker], notes: Notes
):
    other = start("--lease", "1h", module="tests.lifecycle.jobs_at_work", queues="low,high,default")
    flow = Flow("import", "1", client=client)
    first = flow.step(tell, "one", name="first")
    flow.step(tell, "two", name="second", after=first)
    run = flow.start()
    mid = member_mid(run.status().facts.run, "first")
    until(lambda: Queue("high", client).status(mid).unknowns > 0)
    assert states(run.status()) == {"first": "running", "second": "waiting"}
    assert other.stop() == 0
    # Immediately, instead of after the pause before another worker tries.
    Queue("high", client).admin.reschedule([(mid, ANY, None)])
    work("--lease", "1h")
    assert states(ended(run)) == {"first": "done", "second": "done"}
    assert notes.lines() == ["one", "two"]
