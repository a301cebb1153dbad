"""A message source for a worker: replaced when it dies, quiet when told, the last to leave."""

from __future__ import annotations

import json
import os
import signal

import psutil
import pytest

from jobq.queue import presence
from jobq.queue.partitioning import partition

from .conftest import until


@pytest.fixture
def push(redis, ledger):
    """push("quick", "a"): a job as Sidekiq pushes it."""

    def lpush(job: str, name: str) -> None:
        fields = {"class": job, "args": [str(ledger.path), name], "jid": name, "queue": "low"}
        redis.lpush("queue:low", json.dumps(fields))

    return lpush


def source_of(worker) -> int:
    """The process of the message source, once it and a child are there."""

    def told() -> list[int]:
        both = worker.children()
        born = {
            int(line.split()[-2]) for line in worker.log.splitlines() if line.endswith(" started")
        }
        others = [pid for pid in both if pid not in born]
        return others if len(both) == 2 and len(others) == 1 else []

    [source] = until(told)
    return source


def test_source_is_replaced_when_it_is_killed(start, push, ledger):
    worker = start("--processes", "1", "--sidekiq", "low")
    push("quick", "a")
    until(lambda: ledger.lines("end", "a"))
    killed = source_of(worker)
    os.kill(killed, signal.SIGKILL)
    push("quick", "b")
    until(lambda: ledger.lines("end", "b"))
    assert worker.stop() == 0
    assert f"message source {killed} exited with -9" in worker.log


def test_source_dies_with_its_supervisor(start, push, ledger):
    worker = start("--processes", "1", "--sidekiq", "low")
    push("quick", "a")
    until(lambda: ledger.lines("end", "a"))
    source = source_of(worker)
    worker.send(signal.SIGKILL)
    worker.wait()
    until(lambda: not psutil.pid_exists(source))


def test_source_stays_until_the_last_job_has_ended_and_feeds_nothing_more(
    start, push, ledger, redis
):
    worker = start("--processes", "1", "--sidekiq", "low")
    push("gated", "a")
    until(lambda: ledger.lines("start", "a"))
    source = source_of(worker)
    until(lambda: redis.smembers("processes"))
    worker.send(signal.SIGTERM)
    [identity] = redis.smembers("processes")
    until(lambda: redis.hget(identity, "quiet") == b"true")
    push("quick", "b")
    assert psutil.pid_exists(source)
    ledger.gate("a").touch()
    assert worker.wait() == 0
    assert ledger.lines("end", "a") and not ledger.lines("end", "b")
    assert redis.llen("queue:low") == 1
    assert not redis.smembers("processes")


def test_source_that_doesnt_answer_is_killed_when_the_worker_must_hurry(start, push, ledger):
    worker = start("--processes", "1", "--sidekiq", "low")
    push("quick", "a")
    until(lambda: ledger.lines("end", "a"))
    source = source_of(worker)
    os.kill(source, signal.SIGSTOP)
    worker.send(signal.SIGTERM)
    until(lambda: "draining" in worker.log)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    until(lambda: not psutil.pid_exists(source))


def test_quiet_worker_leaves_jobs_where_they_are_until_it_goes_on(start, push, ledger, redis):
    worker = start("--processes", "1", "--sidekiq", "low")
    source_of(worker)
    identity = next(iter(until(lambda: redis.smembers("processes"))))
    worker.send(signal.SIGTSTP)
    until(lambda: redis.hget(identity, "quiet") == b"true")
    push("quick", "a")
    worker.send(signal.SIGCONT)
    until(lambda: ledger.lines("end", "a"))


def test_worker_feeds_queues_beside_its_own(start, push, send, ledger):
    worker = start("--processes", "1", "--sidekiq", "low", queues="other")
    push("quick", "a")
    until(lambda: ledger.lines("end", "a"))
    assert worker.stop() == 0


def test_queue_that_ruby_makes_later_is_served(start, push, redis, ledger, client):
    push("quick", "a")
    redis.sadd("queues", "low")
    worker = start("--processes", "1", "--sidekiq", "*", queues="other")
    until(lambda: ledger.lines("end", "a"))
    fields = {"class": "quick", "args": [str(ledger.path), "b"], "jid": "b", "queue": "new"}
    redis.sadd("queues", "new")
    redis.lpush("queue:new", json.dumps(fields))
    until(lambda: ledger.lines("end", "b"))
    until(lambda: "now also serves new:1" in worker.log)
    served = {"other", "low", "new"}
    until(lambda: {name for one in presence.workers(client) for name in one.queues} == served)
    push("quick", "c")
    until(lambda: ledger.lines("end", "c"))
    assert worker.stop() == 0


def test_running_jobs_are_shown_under_their_queue_when_its_partitions_change(
    start, push, redis, ledger, client
):
    partition(client, "low", 2)
    worker = start("--processes", "1", "--sidekiq", "low")
    push("gated", "a")
    until(lambda: ledger.lines("start", "a"))
    identity = next(iter(until(lambda: redis.smembers("processes")))).decode()

    def shown() -> list[tuple[str, str, str]]:
        works = [json.loads(work) for work in redis.hvals(f"{identity}:work")]
        jobs = [(work["queue"], json.loads(work["payload"])) for work in works]
        return [(queue, job["class"], job["jid"]) for queue, job in jobs]

    until(lambda: shown() == [("low", "gated", "a")])
    partition(client, "low", 3)
    until(lambda: "now also serves low/2:1" in worker.log)
    ledger.gate("a").touch()
    push("gated", "b")
    until(lambda: shown() == [("low", "gated", "b")])
    ledger.gate("b").touch()
    until(lambda: ledger.lines("end", "b"))
    assert worker.stop() == 0
