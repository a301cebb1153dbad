"""Jobs of a partitioned queue: every feature works as in a queue without partitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jobq import Calls
from jobq.client.names import base_of
from jobq.config import CodecSettings
from jobq.errors import DuplicateError, JobFailedError
from jobq.jobs.context import current
from jobq.jobs.job import Job
from jobq.jobs.registry import Registry, job
from jobq.jobs.signing import seal_for
from jobq.queue.partitioning import partition
from jobq.queue.partitions import read_map
from jobq.queue.types import Ending, Message
from jobq.testing import Kit
from jobq.worker.done_calls import DoneCalls

pytestmark = pytest.mark.one_server


@pytest.fixture
def ran() -> list[Any]:
    """The values that jobs noted, in order."""
    return []


@pytest.fixture
def note(registry: Registry, kit: Kit, ran: list[Any]) -> Job[..., Any]:
    """A job of queue low that notes its argument and returns it."""

    @job(registry=registry, queue="low", result_ttl="1h", retries=0)
    def note(value: Any) -> Any:
        ran.append(value)
        return value

    return note


def places(kit: Kit) -> set[str]:
    """Return the partitions in which calls wait."""
    return {call.partition for call in kit.all_enqueued()}


def test_the_context_has_the_name_of_the_queue_when_the_message_is_in_a_partition(
    kit: Kit, registry: Registry, ran: list[Any]
) -> None:
    @job(registry=registry, queue="low")
    def look() -> None:
        extra = current().logger.extra or {}
        ran.append((current().queue, current().partition, extra["queue"], extra["partition"]))

    receipt = look.enqueue()
    kit.drain()

    assert ran == [("low", receipt.partition, "low", receipt.partition)]
    assert (receipt.queue, base_of(receipt.partition)) == ("low", "low")
    assert receipt.partition in read_map(kit.client, "low").newest.names("low")


def test_the_kit_treats_partitions_as_one_queue_when_a_test_names_the_queue(
    kit: Kit, note: Job[..., Any], ran: list[Any]
) -> None:
    for number in range(20):
        note.enqueue(number)

    assert len(places(kit)) > 1
    assert len(kit.all_enqueued("low")) == 20
    kit.assert_enqueued(note, queue="low", count=20)
    assert kit.drain("low").done == 20
    assert sorted(ran) == list(range(20))
    assert kit.all_enqueued() == []


@pytest.mark.parametrize("mode", ["sign", "encrypt"])
def test_sealed_calls_run_when_their_queue_is_partitioned(
    kit: Kit, note: Job[..., Any], ran: list[Any], mode: Any
) -> None:
    codec = CodecSettings(keys=(("k", b"s" * 32),), mode=mode)
    kit.client.settings = replace(kit.client.settings, codec=codec)

    receipt, many = note.enqueue("sealed"), note.enqueue_many([(1,), (2,)])
    kit.drain()

    assert sorted(map(str, ran)) == ["1", "2", "sealed"]
    assert receipt.result(timeout=1) == "sealed"
    assert [one.result(timeout=1) for one in many] == [1, 2]
    assert note.receipt(receipt.mid).result(timeout=1) == "sealed"


def test_a_receipt_finds_its_message_when_it_is_made_from_the_mid(
    kit: Kit, note: Job[..., Any], registry: Registry
) -> None:
    @job(registry=registry, queue="low", retries=0, key="name")
    def fail(name: str) -> None:
        raise ValueError(name)

    waiting, done, dead = note.enqueue(1), note.enqueue(2), fail.enqueue("why")
    for receipt in (waiting, dead):
        assert note.receipt(receipt.mid).status().word == "queued"
        assert note.receipt(receipt.mid).state().word == "queued"
    assert note.receipt(waiting.mid).cancel()
    kit.drain(raises=False)

    assert note.receipt(done.mid).result(timeout=1) == 2
    assert note.receipt(done.mid).state().word == "done"
    assert fail.receipt(dead.mid).state().word == "failed"
    with pytest.raises(JobFailedError, match="why"):
        fail.options(result_ttl="1h").receipt(dead.mid).result(timeout=1)
    assert fail.receipt(dead.mid).revive()
    assert fail.receipt(dead.mid).status().word == "queued"
    kit.drain(raises=False)
    partition(kit.client, "low", 2)  # the dead message is in an old partition now
    revived = fail.receipt(dead.mid)
    assert revived.revive()
    assert revived.status().word == "queued"
    assert fail.receipt(dead.mid).status().word == "queued"
    assert note.receipt("no such mid").status().word == "nil"
    assert not note.receipt("no such mid").cancel()


def test_equal_calls_are_refused_when_the_job_is_unique(kit: Kit, registry: Registry) -> None:
    @job(registry=registry, queue="low", unique=True, on_conflict="raise")
    def once(name: str) -> None:
        pass

    receipts = [once.enqueue(str(number)) for number in range(8)]
    for number in range(8):
        with pytest.raises(DuplicateError):
            once.enqueue(str(number))
    assert len(places(kit)) > 1

    for count in (2, 3):  # the live calls stay where they are
        partition(kit.client, "low", count)
        for number in range(8):
            with pytest.raises(DuplicateError):
                once.enqueue(str(number))
    assert kit.drain().done == 8
    assert once.enqueue("0").accepted
    assert {receipt.queue for receipt in receipts} == {"low"}


def test_the_newest_content_runs_when_calls_replace_or_requeue_one_another(
    kit: Kit, registry: Registry, note: Job[..., Any], ran: list[Any]
) -> None:
    replace = note.options(mid="replace", on_conflict="replace")
    replace.enqueue("first")
    partition(kit.client, "low", 5)
    assert replace.enqueue("second").action == "updated"

    @job(registry=registry, queue="low")
    def again(number: int) -> None:
        ran.append(number)
        if number == 1:
            partition(kit.client, "low", 6)
            done = again.options(mid="requeue", on_conflict="requeue").enqueue(2)
            assert done.action == "requeued"

    again.options(mid="requeue").enqueue(1)
    kit.drain()

    assert sorted(map(str, ran)) == ["1", "2", "second"]


def test_callbacks_run_when_a_call_of_a_partition_dies(
    kit: Kit, registry: Registry, ran: list[Any]
) -> None:
    @job(
        registry=registry,
        queue="low",
        retries=0,
        on_dead=lambda dead: ran.append((dead.job, dead.queue)),
    )
    def fail() -> None:
        raise ValueError("why")

    for _ in range(4):
        fail.enqueue()
    kit.drain(raises=False)

    assert ran == [(fail.name, "low")] * 4


def test_calls_of_a_batch_job_run_together_when_they_are_in_one_partition(
    kit: Kit, registry: Registry, ran: list[Any]
) -> None:
    @job(registry=registry, queue="low", batch=10)
    def together(calls: Calls[int]) -> None:
        ran.append(len(calls))

    together.enqueue_many([(number,) for number in range(30)])
    kit.drain()

    assert ran == [10, 10, 10]


def test_a_call_expires_when_it_waited_too_long_in_a_partition(
    kit: Kit, note: Job[..., Any], ran: list[Any]
) -> None:
    note.options(expires_in="1m").enqueue(1)
    kit.clock.move("2m")

    assert kit.drain().expired == 1
    assert ran == []


def test_progress_and_checkpoints_are_read_when_a_receipt_is_made_from_the_mid(
    kit: Kit, registry: Registry, ran: list[Any]
) -> None:
    @job(registry=registry, queue="low", retries=1)
    def stepwise() -> None:
        ran.append(current().checkpoint_value)
        current().progress(1, 2, note="half")
        [progress] = [stepwise.receipt(current().mid).progress]
        ran.append(progress and progress.note)
        if current().attempt == 1:
            current().checkpoint("half")
            raise ValueError("again")

    stepwise.enqueue()
    kit.drain(raises=False)

    assert ran == [None, "half", "half", "half"]


def test_a_finished_sealed_call_is_known_when_it_comes_back_in_another_partition(kit: Kit) -> None:
    codec = CodecSettings(keys=(("k", b"s" * 32),), mode="sign")
    seal = seal_for(codec)
    assert seal is not None
    call = seal.close_call("low", "m1", b'{"job":"note","args":[]}')
    message = Message("m1", call, 1, 0, 7, "first", "caller.1.0", 0)

    first, second = DoneCalls(kit.client, seal), DoneCalls(kit.client, seal)

    first.look("low/0", [message])
    assert not first.holds(message)
    first.note("low/0", [Ending(mid="m1", token=message.token)], ["ok"])
    second.look("low/3", [message])
    assert second.holds(message)
