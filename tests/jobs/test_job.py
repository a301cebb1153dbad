"""Jobs and a real server: enqueueing, options, receipts."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from jobq.client.connection import connect
from jobq.config import ServerSettings, WorkerSettings, settings_from_env
from jobq.errors import (
    CodecError,
    ConfigError,
    JobFailedError,
    ResultNotStoredError,
    ResultTimeoutError,
)
from jobq.jobs.context import Call
from jobq.jobs.executor import Executor
from jobq.jobs.registry import job
from jobq.queue.queue import Queue
from jobq.queue.types import PER_CALL


@pytest.fixture
def add(registry, client):
    @job(queue="low", registry=registry, result_ttl=60, retries=0)
    def add(a: int, b: int = 1) -> int:
        return a + b

    return add


@pytest.fixture
def work(registry, queue):
    """work(): run ready messages, like a worker's child."""

    def once(limit=100):
        executor = Executor(registry)
        endings = []
        for message in queue.dequeue(limit).messages:
            call = executor.resolve("low", message)
            endings.append(executor.run(call) if isinstance(call, Call) else call)
        queue.finish(endings)
        return endings

    return once


def test_call_of_a_job_is_a_plain_call(add):
    assert add(2, b=3) == 5


def test_enqueued_call_runs_and_its_result_comes_back(add, work):
    receipt = add.enqueue(2, b=3)
    assert (receipt.action, receipt.accepted, receipt.queue) == ("added", True, "low")
    assert receipt.status().word == "queued"
    work()
    assert receipt.result(timeout=60) == 5
    assert add.receipt(receipt.mid).result(timeout=60) == 5


def test_waiting_callers_are_all_served_without_polling(add, work, redis):
    redis.config_resetstat()
    receipt = add.enqueue(1)
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(receipt.result(timeout=30))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    while redis.info("clients")["blocked_clients"] < 3:
        pass
    work()
    for thread in threads:
        thread.join()
    assert got == [2, 2, 2]
    # One blocking call each, however long it took.
    assert redis.info("commandstats")["cmdstat_blmove"]["calls"] == 3


def test_result_of_a_dead_message_is_its_failure(registry, client, work):
    @job(queue="low", registry=registry, result_ttl=60, retries=0)
    def fail() -> None:
        raise ValueError("broken")

    receipt = fail.enqueue()
    work()
    with pytest.raises(JobFailedError, match="broken"):
        receipt.result(timeout=60)


def test_result_that_does_not_come_in_time_is_a_timeout(add):
    receipt = add.enqueue(1)
    with pytest.raises(ResultTimeoutError, match=f"within 0.05 s; run `jobq why {receipt.mid}`"):
        receipt.result(timeout=0.05)
    with pytest.raises(TimeoutError):
        receipt.result(timeout=0)


def test_result_of_a_job_that_stores_none_is_refused(registry, client):
    @job(queue="low", registry=registry)
    def quiet() -> None: ...

    with pytest.raises(ResultNotStoredError, match="result_ttl"):
        quiet.enqueue().result()


def test_result_is_refused_when_the_message_was_cancelled(add):
    receipt = add.enqueue(1)
    assert receipt.cancel()
    assert not receipt.cancel()
    with pytest.raises((ResultNotStoredError, JobFailedError)):
        receipt.result(timeout=60)


def test_many_calls_take_few_round_trips(add, queue, redis):
    add.enqueue(0)
    before = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    receipts = add.enqueue_many((n, 1) for n in range(2 * PER_CALL + 1))
    assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 3
    assert len({receipt.mid for receipt in receipts}) == 2 * PER_CALL + 1
    assert queue.admin.counts().ready == 2 * PER_CALL + 2
    contents = [
        json.loads(entry.content) for entry in queue.admin.content(offset=1, limit=3).entries
    ]
    assert [content["args"] for content in contents] == [[0, 1], [1, 1], [2, 1]]


def test_many_calls_may_have_arguments_by_name(add, queue):
    receipts = add.enqueue_many(add.args(n, b=2) for n in range(3))
    assert [receipt.action for receipt in receipts] == ["added"] * 3
    contents = [json.loads(entry.content) for entry in queue.admin.content().entries]
    assert [content["kwargs"] for content in contents] == [{"b": 2}] * 3
    with pytest.raises(TypeError, match="missing"):
        add.args()


@pytest.mark.parametrize(
    "options",
    [{}, {"headers": {"a": "b"}, "retries": 3}, {"expires_in": 600}, {"key": "number"}],
)  # fmt: skip
def test_many_calls_have_the_contents_of_single_calls(options, registry, client, redis):
    @job(queue="low", registry=registry, **options)
    def act(number: int, moment: timedelta | None = None) -> None: ...

    calls = [(1,), (2, timedelta(1)), (3, None)]
    single = [act.enqueue(*call).mid for call in calls]
    many = [receipt.mid for receipt in act.enqueue_many(iter(calls))]

    def stored(mids):
        contents = [json.loads(redis.hget("jobq:{low}:messages", mid)) for mid in mids]
        for content in contents:
            assert content.pop("enqueued_at") > 0
            content.get("options", {}).pop("expires_at", None)
        return contents, [redis.hget("jobq:{low}:keys", mid) is None for mid in mids]

    assert stored(single) == stored(many)


def test_arguments_of_another_job_are_refused(add, registry):
    other = job(name="other", registry=registry)(lambda a, b=0: a)
    with pytest.raises(ConfigError, match=r"use .*add\.args"):
        add.enqueue_many([other.args(1)])


def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent(add, queue):
    with pytest.raises(TypeError, match="missing"):
        add.enqueue()
    with pytest.raises(TypeError):
        add.enqueue(1, c=2)
    with pytest.raises(CodecError, match="argument 'a'"):
        add.enqueue(object())
    with pytest.raises(ConfigError, match="tuples"):
        add.enqueue_many([1, 2])
    assert queue.admin.counts().messages == 0


def test_enqueueing_from_an_event_loop_does_not_block_it(add, work, redis):
    async def both():
        receipts = await asyncio.gather(add.aenqueue(1), add.aenqueue(2))
        waiting = [asyncio.create_task(one.aresult(timeout=100)) for one in receipts]
        while redis.info("clients")["blocked_clients"] < 2:
            await asyncio.sleep(0.001)
        assert not any(one.done() for one in waiting)
        await asyncio.to_thread(work)
        return [await one for one in waiting]

    assert sorted(asyncio.run(both())) == [2, 3]


def test_options_make_a_copy(add, client):
    later = add.options(queue="other", delay=60, mid="m")
    assert (add.queue, later.queue) == ("low", "other")
    assert later.enqueue(1).mid == "m"
    status = Queue("other", client).status("m")
    assert status.word == "queued-with-backoff"
    assert later.enqueue(1).action == "exists"
    assert later.options(on_conflict="replace", delay=None).enqueue(2).action == "updated"


def test_moment_is_a_datetime_with_a_zone(add, queue):
    at = datetime.now(UTC) + timedelta(hours=1)
    receipt = add.options(at=at).enqueue(1)
    assert receipt.status().not_before == round(at.timestamp() * 1000)


def test_message_waits_under_the_dedupe_it_asked_for(add, work, queue):
    once = add.options(mid="m", until="1h")
    once.enqueue(1)
    work()
    assert queue.status("m").word == "done-with-backoff"
    assert once.enqueue(1).action == "exists"
    assert queue.admin.counts().deduped == 1


def test_retries_of_one_message_override_those_of_the_job(registry, client, work, queue):
    @job(queue="low", registry=registry, retries=0, retry=lambda failures, error: 0)
    def fail() -> None:
        raise ValueError

    fail.options(mid="twice", retries=1).enqueue()
    fail.options(mid="once").enqueue()
    assert [ending.outcome for ending in work()] == ["retry", "dead"]
    assert [ending.outcome for ending in work()] == ["dead"]
    assert sorted(dead.mid for dead in queue.admin.dead()) == ["once", "twice"]


def test_worker_settings_refuse_what_cannot_be():
    for wrong in (
        {"processes": -1}, {"lease_s": 0.01}, {"prefetch": 0}, {"prefetch": 999},
        {"concurrency": 0}, {"max_jobs": 0}, {"crash_limit": -1},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            WorkerSettings(**wrong)


def test_largest_call_is_a_setting(registry, client):
    small = connect(settings=replace(client.settings, max_content=200))

    @job(registry=registry)
    def show(text: str) -> None: ...

    show.options(client=small).enqueue("x" * 10)
    with pytest.raises(CodecError, match="at most 200 are allowed"):
        show.options(client=small).enqueue("x" * 200)
    small.close()
    assert settings_from_env({"JOBQ_MAX_CONTENT": "200"}).max_content == 200
    for wrong in (0, 1024 * 1024 + 1):
        with pytest.raises(ConfigError, match="max_content"):
            ServerSettings(max_content=wrong)


def test_lease_of_a_message_and_the_wait_for_its_result_are_durations(add, work, queue):
    receipt = add.options(lease="1m").enqueue(1)
    [message] = queue.dequeue(lease="1s").messages
    assert message.lock_expires_at - time.time() * 1000 > 50_000
    queue.release([(message.mid, message.token)])
    work()
    assert receipt.result(timeout="5s") == 2


def test_duplicate_says_the_status_of_the_message_that_exists(add):
    add.options(mid="m").enqueue(1)
    receipt = add.options(mid="m").enqueue(1)
    assert (receipt.action, receipt.existing_status) == ("exists", "queued")
    assert repr(receipt) == "Receipt(mid='m', action='exists', existing_status='queued')"
