"""`@job(partitions=…)` creates a queue that doesn't exist yet with partitions."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.errors import ConfigError, ScriptError
from jobq.jobs.job import Job
from jobq.jobs.registry import Registry, job
from jobq.queue.partitioning import created, exists, left_in, partition
from jobq.queue.partitions import map_key, read_map
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.worker.partition_watch import queues_to_serve

pytestmark = pytest.mark.one_server


@pytest.fixture
def work(client: Client) -> Job[..., Any]:
    """A job whose queue is to have three partitions."""

    @job(registry=Registry(), queue="low", partitions=3)
    def work(number: int) -> None:
        pass

    return work.options(client=client)


def size(client: Client) -> int:
    """Return the number of partitions of queue low."""
    return read_map(client, "low").newest.size


def test_the_first_enqueue_creates_the_partitions_when_the_queue_does_not_exist(
    client: Client, work: Job[..., Any]
) -> None:
    receipt = work.enqueue(1)

    assert size(client) == 3
    assert (receipt.queue, receipt.partition[:4]) == ("low", "low/")
    assert left_in(client, "low").is_sealed


@pytest.mark.parametrize("way", ["many", "async", "async many", "receipt"])
def test_each_way_of_enqueueing_creates_the_partitions_when_it_comes_first(
    client: Client, work: Job[..., Any], way: str
) -> None:
    if way == "many":
        assert all(receipt.partition for receipt in work.enqueue_many([(1,), (2,)]))
    elif way == "receipt":
        work.receipt("m1")
    else:
        asyncio.run(work.aenqueue(1) if way == "async" else work.aenqueue_many([(1,), (2,)]))

    assert size(client) == 3


def test_a_worker_creates_the_partitions_when_it_starts_first(client: Client) -> None:
    served = queues_to_serve(client, (("low", 2), ("other", 1)), {"low": 2, "elsewhere": 4})

    assert served == (("low", 2), ("low/0", 2), ("low/1", 2), ("other", 1))
    assert not read_map(client, "elsewhere").is_partitioned


@pytest.mark.parametrize("trace", ["waiting", "done", "dead", "schedule", "rule", "paused"])
def test_a_queue_stays_as_it_is_when_it_exists(
    client: Client, work: Job[..., Any], trace: str
) -> None:
    queue = Queue("low", client)
    if trace in ("waiting", "done", "dead"):
        queue.enqueue(b"x")
    if trace in ("done", "dead"):
        [message] = queue.dequeue().messages
        queue.finish([Ending(mid=message.mid, token=message.token, outcome=trace)])
        queue.admin.collect()
    if trace == "schedule":
        queue.admin.schedule("add", "hourly", "{}")
    if trace == "rule":
        queue.rules(key_max=2)
    if trace == "paused":
        queue.admin.pause()

    assert exists(client, "low")
    assert work.enqueue(1).partition == ""
    assert size(client) == 0


def test_a_queue_does_not_exist_when_a_worker_only_waited_for_it(client: Client) -> None:
    queue = Queue("low", client)
    queue.dequeue()
    queue.admin.collect()
    queue.register()

    assert not exists(client, "low")


def test_the_number_of_the_map_counts_when_the_code_declares_another(
    client: Client, work: Job[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    partition(client, "low", 2)

    assert work.enqueue(1).partition in ("low/0", "low/1")
    with caplog.at_level(logging.WARNING):
        queues_to_serve(client, (("low", 1),), {"low": 3})
    assert size(client) == 2
    assert "queue low has 2 partitions, although its jobs declare partitions=3" in caplog.text


def test_the_first_number_counts_when_two_clients_create_the_queue_at_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobq.queue import partitioning

    before = read_map(client, "low")
    created(client, "low", 3)
    maps = iter((before, before))
    monkeypatch.setattr(
        partitioning, "read_map", lambda *given: next(maps, None) or read_map(*given)
    )

    assert created(client, "low", 5).newest.size == 3


def test_creation_continues_when_it_stopped_before_the_seal(client: Client) -> None:
    wanted = read_map(client, "low").after(3)
    Queue("low", client).scripts["set_partitions"].run({"known": "", "map": str(wanted)})

    assert created(client, "low", 3) == wanted
    assert left_in(client, "low").is_sealed


def test_nothing_is_created_when_a_call_goes_to_another_queue(
    client: Client, work: Job[..., Any]
) -> None:
    work.options(queue="other").enqueue(1)

    assert not read_map(client, "other").is_partitioned
    assert not read_map(client, "low").is_partitioned


@pytest.mark.parametrize("number", [0, 257, True, "8"])
def test_a_number_is_refused_when_it_is_out_of_range(number: Any) -> None:
    with pytest.raises(ConfigError, match="partitions="):
        job(queue="low", partitions=number, registry=Registry())(lambda: None)


def test_a_second_number_is_refused_when_jobs_of_one_queue_disagree() -> None:
    registry = Registry()
    job(queue="low", name="a", partitions=8, registry=registry)(lambda: None)
    job(queue="low", name="b", registry=registry)(lambda: None)
    job(queue="high", name="c", partitions=4, registry=registry)(lambda: None)

    with pytest.raises(ConfigError, match="partitions=4 of queue 'low', but job a declares"):
        job(queue="low", name="d", partitions=4, registry=registry)(lambda: None)
    assert registry.partitions() == {"low": 8, "high": 4}


def test_the_number_is_refused_when_it_is_an_option_of_one_call(work: Job[..., Any]) -> None:
    with pytest.raises(ConfigError, match="is an option of a job"):
        work.options(partitions=4)  # type: ignore[call-arg]


@pytest.mark.parametrize("declared", [{}, {"low": 2}])
def test_a_worker_serves_its_other_queues_when_a_map_cannot_be_read(
    client: Client, declared: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    client.command("SET", map_key(client, "low"), "no hash")
    partition(client, "high", 1)
    queues = (("low", 1), ("high", 3))

    served = queues_to_serve(client, queues, declared, looks_again=True)

    assert served == (("low", 1), ("high", 3), ("high/0", 3))
    assert "queue low is served without its partitions for now" in caplog.text
    with pytest.raises(ScriptError):  # a burst ends: an unread queue may have messages
        queues_to_serve(client, queues, declared)
