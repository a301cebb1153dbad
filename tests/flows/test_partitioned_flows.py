"""Flows whose steps run in a partitioned queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jobq import Batch, Flow
from jobq.config import CodecSettings
from jobq.flows.checking import FlowCheck
from jobq.flows.draining import Drainer
from jobq.flows.identity import member_mid
from jobq.jobs.registry import Registry, job
from jobq.queue.durability import SharedConfirmation
from jobq.queue.partitioning import partition
from jobq.queue.partitions import place_text, read_map
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.testing import Kit

pytestmark = pytest.mark.one_server


class Jobs:
    """Jobs of queue low, and their notes."""

    def __init__(self, registry: Registry) -> None:
        self.ran: list[Any] = []
        self.unlucky: set[int] = set()

        @job(queue="low", name="load", registry=registry, result_ttl="1h", retries=0)
        def load(number: int) -> int:
            self.ran.append(number)
            if number in self.unlucky:
                raise ValueError("no luck")
            return number

        @job(queue="low", name="total", registry=registry, result_ttl="1h", retries=0)
        def total(numbers: list[int]) -> int:
            self.ran.append("total")
            return sum(numbers)

        self.load, self.total = load, total

    def flow(self, numbers: range, id: str = "1") -> Flow:
        """A map over numbers, and their total."""
        flow = Flow("import", id)
        loads = flow.map(self.load, numbers, results=True, name="load")
        flow.step(self.total, loads.results, name="total")
        return flow


@pytest.fixture
def jobs(registry: Registry, kit: Kit) -> Jobs:
    """Jobs of a partitioned queue."""
    return Jobs(registry)


@pytest.mark.parametrize("mode", ["", "sign", "encrypt"])
def test_a_flow_is_done_when_its_steps_are_in_partitions(kit: Kit, jobs: Jobs, mode: Any) -> None:
    if mode:
        codec = CodecSettings(keys=(("k", b"s" * 32),), mode=mode)
        kit.client.settings = replace(kit.client.settings, codec=codec)

    run = jobs.flow(range(20)).start()
    kit.drain()

    assert run.status().state == "done"
    assert run.result("total", timeout=1) == sum(range(20))
    assert sorted(map(str, jobs.ran)) == sorted([*map(str, range(20)), "total"])


def test_a_large_map_uses_several_partitions_when_it_has_several_chunks(
    kit: Kit, jobs: Jobs
) -> None:
    run = jobs.flow(range(3_100)).start()

    assert len({call.partition for call in kit.all_enqueued()}) > 1
    kit.drain()
    assert run.result("total", timeout=1) == sum(range(3_100))
    assert len(jobs.ran) == 3_101


def test_a_chunk_stays_in_one_partition_when_its_members_have_no_keys() -> None:
    texts = [place_text(member_mid("f:1:r", "load", number), None) for number in range(500)]

    assert len(set(texts[:250])) == len(set(texts[250:])) == 1
    assert texts[0] != texts[-1]


def test_members_go_to_the_partitions_of_their_keys_when_the_job_has_a_key(
    kit: Kit, registry: Registry
) -> None:
    ran = []

    @job(queue="low", name="keyed", registry=registry, key=lambda number: f"k{number % 8}")
    def keyed(number: int) -> None:
        ran.append(number)

    run = Batch(keyed, range(300), name="batch", id="1").start()
    newest = read_map(kit.client, "low").newest
    rows = {
        row.key: place.name
        for place in Queue("low", kit.client).alone()
        for row in place.admin.iter_keys()
    }
    assert rows == {f"k{i}": newest.name_for("low", f"k{i}") for i in range(8)}

    kit.drain()
    assert run.status().state == "done"
    assert sorted(ran) == list(range(300))


def test_a_failed_step_runs_again_when_the_flow_is_retried_after_a_change(
    kit: Kit, jobs: Jobs
) -> None:
    jobs.unlucky = {3, 7}
    run = jobs.flow(range(10)).start()
    kit.drain(raises=False)
    assert run.status().state == "failed"

    jobs.unlucky = {7}
    run.retry()
    kit.drain(raises=False)
    assert run.status().state == "failed"

    jobs.unlucky = set()
    partition(kit.client, "low", 3)
    run.retry()
    kit.drain()
    assert run.result("total", timeout=1) == sum(range(10))
    assert (jobs.ran.count(3), jobs.ran.count(7)) == (2, 3)


def test_a_retry_is_confirmed_in_each_partition_when_members_died_in_several(
    kit: Kit, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    @job(queue="low", name="keyed", registry=registry, key=lambda number: f"k{number}", retries=0)
    def keyed(number: int) -> None:
        raise ValueError(number)

    run = Batch(keyed, range(8), name="batch", id="1").start()
    kit.drain(raises=False)
    asked: list[str] = []
    confirm = SharedConfirmation.missing_at
    monkeypatch.setattr(
        SharedConfirmation,
        "missing_at",
        lambda self, key: asked.append(key) or confirm(self, key),
    )
    partitions = {call.partition for call in kit.all_dead()}
    run.retry()
    kit.drain(raises=False)
    assert len(partitions) > 1
    assert sorted(key.partition("{")[2].partition("}")[0] for key in asked) == sorted(partitions)


def test_no_member_is_lost_or_doubled_when_the_number_changes_between_steps(
    kit: Kit, jobs: Jobs
) -> None:
    runs = []
    for count in (8, 3, 16):
        runs.append(jobs.flow(range(20), f"before-{count}").start())
        partition(kit.client, "low", count)
        runs.append(jobs.flow(range(20), f"after-{count}").start())
    kit.drain()

    assert [run.result("total", timeout=1) for run in runs] == [190] * 6
    assert len(jobs.ran) == 6 * 21


def test_messages_of_flows_stay_when_their_queue_is_first_partitioned(
    kit: Kit, registry: Registry
) -> None:
    ran = []

    @job(queue="fresh", name="fresh", registry=registry)
    def fresh(number: int) -> None:
        ran.append(number)

    run = Batch(fresh, range(10), name="batch", id="1").start()
    partition(kit.client, "fresh", 2)
    kit.drain()

    assert run.status().state == "done"
    assert sorted(ran) == list(range(10))


def test_waiting_members_are_cancelled_when_the_flow_is(kit: Kit, jobs: Jobs) -> None:
    run = jobs.flow(range(20)).start()
    partition(kit.client, "low", 3)
    run.cancel()
    kit.drain()

    assert run.status().state == "cancelled"
    assert jobs.ran == []
    assert kit.all_enqueued() == []


def test_waits_and_added_steps_work_when_their_queue_is_partitioned(kit: Kit, jobs: Jobs) -> None:
    flow = Flow("import", "1")
    gate = flow.wait("approved", timeout="3d")
    flow.step(jobs.load, 5, name="load", after=gate)
    run = flow.start()
    kit.drain()
    assert jobs.ran == []

    run.signal("approved", "yes")
    kit.drain()
    assert jobs.ran == [5]
    assert run.status().state == "done"


def test_callbacks_of_a_batch_run_when_its_calls_have_ended(
    kit: Kit, jobs: Jobs, registry: Registry
) -> None:
    ended = []

    @job(queue="low", name="report", registry=registry)
    def report(failures: list[Any]) -> None:
        ended.append(len(failures))

    @job(queue="low", name="finished", registry=registry)
    def finished() -> None:
        ended.append("done")

    jobs.unlucky = {1}
    batch = Batch(jobs.load, range(4), name="batch", id="1")
    batch.on_failure(report, batch.failures)
    batch.then(finished)
    run = batch.start()
    kit.drain(raises=False)
    assert ended == [1]

    jobs.unlucky = set()
    run.retry()
    kit.drain()
    assert ended == [1, "done"]


def test_a_chunk_is_enqueued_once_when_two_drainers_send_it(kit: Kit, jobs: Jobs) -> None:
    contents = [(member_mid("f:1:r", "load", number), b"{}") for number in range(40)]
    queue = Queue("low", kit.client)
    queue.enqueue_members(contents, in_order=True)
    partition(kit.client, "low", 3)
    for place in queue.alone():
        messages = place.dequeue(100).messages
        place.finish([Ending(mid=one.mid, token=one.token) for one in messages])
        place.admin.collect()

    again = Queue("low", kit.client).enqueue_members(contents, in_order=True)
    assert {(one.action, one.existing_status) for one in again} == {("exists", "accepted")}


def test_a_check_finds_the_ends_when_the_flow_has_lost_them(kit: Kit, jobs: Jobs) -> None:
    run = jobs.flow(range(6)).start()
    for place in Queue("low", kit.client).alone():
        for message in place.dequeue(100).messages:
            ending = Ending(
                mid=message.mid,
                token=message.token,
                record="load\x1f1",
                result=b'{"ok":1}',
                result_ttl=99,
            )
            place.finish([ending])
        place.client.command("DEL", f"{place.prefix}flow-outbox")

    checked = FlowCheck(kit.client).flow(run.flow_id)

    assert (checked.ended, checked.lost) == (6, ())
    kit.drain()
    assert run.result("total", timeout=1) == 6


def test_entries_of_all_partitions_are_read_when_a_flow_asks_for_what_is_undelivered(
    kit: Kit, jobs: Jobs
) -> None:
    run = jobs.flow(range(600)).start()
    places = Queue("low", kit.client).alone()
    for place in places:
        while messages := place.dequeue(100).messages:
            place.finish(
                [
                    Ending(mid=one.mid, token=one.token, outcome="dead", reason="why")
                    for one in messages
                ]
            )

    changes = Drainer(kit.client).unapplied("low", run.status().facts.run)

    numbers = [number for one in changes for number in (one.members or (one.number,))]
    assert sorted(numbers) == list(range(600))
