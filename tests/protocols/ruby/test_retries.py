"""Sidekiq's retries in a jobq worker: how often, how long to wait, and until when."""

from __future__ import annotations

import asyncio
import json
import time

import msgspec
import pytest

from jobq.errors import Retry, UnavailableError
from jobq.jobs import retry
from jobq.jobs.codec import decode
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.protocols.ruby.job_format import read_job
from jobq.protocols.ruby.key_names import RubyQueueName
from jobq.protocols.ruby.retries import RubyJobCounts, RubyRetries, wait_s
from jobq.protocols.ruby.scheduled import promote
from jobq.queue.queue import Queue
from jobq.queue.types import Message

PLACE = RubyQueueName("sidekiq", "", "default")


@pytest.fixture
def counts() -> RubyJobCounts:
    return RubyJobCounts()


@pytest.fixture
def attempt(client, counts):
    """attempt(fields, attempt=2, error=…): one run of a Ruby job that fails; its ending."""

    def run(fields, attempt=1, error=None, ruby_queue=PLACE, **declared):
        registry = Registry()
        registry.middleware.add(RubyRetries(client, counts))

        @job(name="HardWorker", registry=registry, **declared)
        def hard_worker():
            if error is not None:
                raise error

        noted = {"class": "HardWorker", "args": [], "jid": "j", **fields}
        content = read_job(ruby_queue, json.dumps(noted).encode(), "o", {}).content
        message = Message("j", content, attempt, 0, 1, "life", "token", 0)
        executor = Executor(registry)
        return executor.run(executor.resolve("default", message))

    return run


@pytest.mark.parametrize(
    ("count", "least", "most"), [(0, 15, 24), (1, 16, 34), (10, 10_015, 10_114)]
)
def test_wait_grows_as_sidekiqs_does(count, least, most):
    assert wait_s(count, lambda: 0.0) == least
    assert wait_s(count, lambda: 0.999) == most


@pytest.mark.parametrize("count", [9_999, 10**400, -5, -(10**400)])
def test_wait_is_one_that_a_queue_can_keep_however_often_a_job_says_it_was_retried(count):
    assert 15 <= wait_s(count) <= 315_360_000


@pytest.mark.parametrize(
    "fields",
    [{"retry": 10_000, "retry_count": 9_000}, {"retry": True, "retry_count": -(10**30)},
     {"retry": True, "retry_for": 10**400}, {"retry": True, "retry_for": -(10**400)},
     {"retry": True, "retry_for": -(10**400), "failed_at": 5}],
    ids=str,
)  # fmt: skip
def test_failure_has_an_ending_that_the_queue_takes_whatever_the_job_notes(attempt, client, fields):
    ending = attempt(fields, error=ValueError("its own"))
    queue = Queue("default", client)
    queue.enqueue(b"x", mid="j")
    [message] = queue.dequeue().messages
    assert queue.finish([msgspec.structs.replace(ending, token=message.token)]).replies[0] in (
        "ok",
        "dead",
    )
    assert "ValueError" in ending.record


def test_first_failure_waits_as_in_sidekiq(attempt):
    ending = attempt({"retry": True}, error=ValueError())
    assert ending.outcome == "retry"
    assert 15 <= ending.backoff <= 24


def test_wait_goes_on_from_the_retries_that_sidekiq_made(attempt):
    ending = attempt({"retry": True, "retry_count": 8}, attempt=2, error=ValueError())
    assert ending.backoff >= 10**4


def test_job_with_a_policy_of_its_own_waits_by_it(attempt):
    ending = attempt({"retry": True}, error=ValueError(), retry=retry.fixed(3))
    assert ending.backoff == 3


def test_job_that_says_when_to_retry_is_heeded(attempt):
    assert attempt({"retry": True}, error=Retry(after=7)).backoff == 7


def test_resque_job_keeps_the_jobs_own_rules(attempt):
    assert attempt({}, error=ValueError(), retry=retry.fixed(3)).backoff == 3


def test_dead_when_as_often_retried_as_ruby_allows(attempt):
    assert attempt({"retry": 2}, attempt=2, error=ValueError()).outcome == "retry"
    assert attempt({"retry": 2}, attempt=3, error=ValueError()).outcome == "dead"


def test_dead_when_the_time_to_retry_in_is_over(attempt):
    fields = {"retry": True, "retry_for": 60, "failed_at": time.time() - 61}
    ending = attempt(fields, error=ValueError("x"))
    assert ending.outcome == "dead"
    assert ending.reason.startswith("ValueError: x (attempt 1, retry_for of 60 s is over)")


def test_time_to_retry_in_begins_with_the_first_failure(attempt, redis):
    fields = {"retry": True, "retry_for": 60, "created_at": 1.0}
    assert attempt(fields, error=ValueError()).outcome == "retry"
    [key] = redis.keys("jobq:first-failure:*")
    assert redis.pttl(key) > 60_000
    redis.set(key, 1_000)
    assert attempt(fields, attempt=2, error=ValueError()).outcome == "dead"


def test_jobs_own_error_is_told_when_its_first_failure_cant_be_noted(
    attempt, client, monkeypatch, caplog
):
    def away(*_):
        raise UnavailableError("no answer")

    monkeypatch.setattr(client, "command", away)
    fields = {"retry": 2, "retry_for": 60}
    ending = attempt(fields, error=ValueError("its own"))
    assert (ending.outcome, ending.backoff >= 15) == ("retry", True)
    assert "its own" in caplog.text and "no answer" in caplog.text
    dead = attempt(fields, attempt=3, error=ValueError("its own"))
    assert (dead.outcome, dead.reason[:19]) == ("dead", "ValueError: its own")


def test_runs_and_failures_are_counted_per_system(attempt, counts):
    attempt({})
    attempt({"retry": True}, error=ValueError())
    assert counts.totals("sidekiq") == (2, 1)
    assert counts.totals("resque") == (0, 0)


def test_async_jobs_go_by_the_same_rules(client, counts):
    registry = Registry()
    registry.middleware.add(RubyRetries(client, counts))

    @job(name="HardWorker", registry=registry)
    async def hard_worker():
        raise ValueError

    raw = b'{"class":"HardWorker","args":[],"jid":"j","retry":true}'
    message = Message("j", read_job(PLACE, raw, "o", {}).content, 1, 0, 1, "life", "token", 0)
    executor = Executor(registry)
    ending = asyncio.run(executor.arun(executor.resolve("default", message)))
    assert ending.backoff >= 15
    assert counts.totals("sidekiq") == (1, 1)


def test_message_of_jobqs_own_passes_untouched(client, counts):
    registry = Registry()
    registry.middleware.add(RubyRetries(client, counts))

    @job(name="own", registry=registry)
    def own():
        raise ValueError

    executor = Executor(registry)
    call = executor.resolve("default", Message("m", b'{"job":"own"}', 1, 0, 1, "life", "t", 0))
    assert executor.run(call).backoff <= 5
    assert counts.totals("sidekiq") == (0, 0)


def test_retry_goes_to_the_queue_that_the_job_names_for_it(
    attempt, client, redis, line, default, counts, caplog
):
    fields = {
        "args": [], "queue": "default", "retry": 5, "retry_queue": "slow", "created_at": 1.5e9, "tags": ["t"],
    }  # fmt: skip
    ending = attempt(fields, error=ValueError("not yet"))
    assert ending.outcome == "done" and counts.totals("sidekiq") == (1, 1)
    [(raw, at)] = redis.zrange("retry", 0, -1, withscores=True)
    job = json.loads(raw)
    assert 14 <= at - time.time() <= 25
    assert (job["queue"], job["retry_count"], job["jid"], job["args"]) == ("slow", 0, "j", [])
    assert (job["error_class"], job["error_message"]) == ("ValueError", "not yet")
    assert isinstance(job["failed_at"], float) and "retried_at" not in job
    assert "was added to Sidekiq's retry set, because its retry_queue is slow" in caplog.text
    # There it comes in again, and stays.
    slow = RubyQueueName("sidekiq", "", "slow")
    redis.zadd("retry", {raw: 1})
    promote(client, "")
    line(slow).carry(greedy=True)
    [message] = Queue("slow", client).dequeue().messages
    assert decode(message.content).options.retries == 4
    again = attempt({**job}, error=ValueError(), ruby_queue=slow)
    assert again.outcome == "retry" and not redis.exists("retry")


@pytest.mark.parametrize(
    ("fields", "ruby_queue"),
    [({"retry_queue": "default"}, PLACE), ({"retry_queue": ""}, PLACE), ({"retry_queue": 7}, PLACE),
     ({"retry_queue": "slow"}, RubyQueueName("resque", "resque", "low"))],
    ids=str,
)  # fmt: skip
def test_retry_stays_in_its_queue(attempt, redis, fields, ruby_queue):
    ending = attempt({"retry": 5, **fields}, error=ValueError(), ruby_queue=ruby_queue)
    assert ending.outcome == "retry" and not redis.exists("retry")


def test_job_that_may_not_be_retried_is_dead_whatever_its_retry_queue(attempt, redis):
    ending = attempt({"retry": False, "retry_queue": "slow"}, error=ValueError())
    assert ending.outcome == "dead" and not redis.exists("retry")


def test_retry_stays_in_its_queue_when_sidekiqs_set_cant_be_written(
    attempt, redis, client, monkeypatch
):
    redis.set("retry", "no set")
    ending = attempt({"retry": 5, "retry_queue": "slow"}, error=ValueError())
    assert ending.outcome == "retry"
