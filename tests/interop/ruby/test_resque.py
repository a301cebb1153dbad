"""Resque both ways: against the real gem where it is installed, and against node-resque, which shares its keys."""

from __future__ import annotations

import pytest

from jobq.protocols.ruby import ResqueQueue
from jobq.queue.queue import Queue
from tests.interop.ruby.conftest import until

#: What Ruby and Node do is the same on each server; test_sidekiq_out tries both.
pytestmark = pytest.mark.one_server


@pytest.fixture(params=["gem", "node"])
def peer(request):
    """Whoever speaks Resque."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def low(client) -> Queue:
    """The jobq queue that Resque's `low` goes to."""
    return Queue("low", client)


def test_job_runs_when_resque_enqueued_it(peer, worker, ledger):
    for name in "abc":
        peer("enqueue", queue="low", **{"class": "HardWorker"}, args=[str(ledger.path), name])
    worker("--resque", "low", "--processes", "1")
    until(lambda: len(ledger.lines()) == 3)
    assert [line["name"] for line in ledger.lines()] == ["a", "b", "c"]
    assert peer("queued", queue="low") == []


def test_namespace_and_queue_with_colons_are_the_same_for_both(
    node_in, client, worker, ledger, redis
):
    namespace, queue = "resque:GitHub", "mail:low"
    node = node_in(namespace)
    given = ("--resque", queue, "--resque-namespace", namespace)
    node("enqueue", queue=queue, **{"class": "HardWorker"}, args=[str(ledger.path), "in"])
    one = worker(*given)
    until(lambda: ledger.lines(name="in"))
    assert one.stop() == 0
    pushing = ResqueQueue(queue, client, namespace=namespace)
    pushing.push("HardWorker", [str(ledger.path), "out", "run"])
    assert node("queues") == [queue] and len(node("queued", queue=queue)) == 1
    node("work", queue=queue)
    [ran] = until(lambda: ledger.lines(name="out"))
    assert ran["by"] == "node"
    assert not redis.keys("resque:queue*")


def test_worker_of_all_queues_takes_from_each(peer, worker, ledger):
    for queue in ("low", "high", "slow"):
        peer("enqueue", queue=queue, **{"class": "HardWorker"}, args=[str(ledger.path), queue])
    worker("--resque", "*,!slow")
    until(lambda: len(ledger.lines()) == 2)
    assert {line["queue"] for line in ledger.lines()} == {"low", "high"}
    assert len(peer("queued", queue="slow")) == 1


def test_resque_runs_what_was_pushed(peer, client, ledger):
    ResqueQueue("low").push_many("HardWorker", [[str(ledger.path), n, "run", 1] for n in "abc"])
    assert peer("queues") == ["low"]
    assert len(peer("queued", queue="low")) == 3
    peer("work", queue="low")
    until(lambda: len(ledger.lines()) == 3)
    assert [(line["name"], line["rest"]) for line in ledger.lines()] == [(n, [1]) for n in "abc"]


def test_worker_is_listed_while_it_runs(peer, worker, redis, ledger):
    one = worker("--resque", "low,high")
    until(lambda: peer("workers"))
    [identity] = redis.smembers("resque:workers")
    assert identity.decode().endswith(f"/jobq:{one.process.pid}:low,high")
    assert redis.hexists("resque:workers:heartbeat", identity)
    peer("enqueue", queue="low", **{"class": "HardWorker"}, args=[str(ledger.path), "a", "wait"])
    assert "HardWorker" in str(
        until(lambda: "HardWorker" in str(peer("working")) and peer("working"))
    )
    assert 0 < redis.ttl(b"resque:worker:" + identity) <= 60
    ledger.open_gate("a")
    until(lambda: ledger.lines())
    assert one.stop() == 0
    assert not peer("workers")
    assert int(peer("stats")["processed"]) == 1
    assert not redis.keys("resque:worker*")


def test_dead_job_is_among_resques_failed_and_runs_again_when_retried_there(
    peer, worker, ledger, low
):
    args = [str(ledger.path), "a", "fail"]
    peer("enqueue", queue="low", **{"class": "HardWorker"}, args=args)
    worker("--resque", "low", "--ruby-dead")
    [failed] = until(lambda: peer("failed"))
    assert (failed["queue"], failed["exception"]) == ("low", "ValueError")
    assert failed["error"] == "a isn't ready (attempt 6 of 6)"
    assert (failed["payload"]["class"], failed["payload"]["args"]) == ("HardWorker", args)
    assert any("ValueError" in line for line in failed["backtrace"])
    ledger.open_gate("a")
    peer("retry", index=0)
    until(lambda: ledger.lines())


def test_worker_isnt_pruned_when_a_real_one_starts_beside_it(gem, worker, ledger):
    one = worker("--resque", "low")
    [shown] = until(lambda: gem("workers"))
    assert (shown["queues"], shown["state"]) == (["low"], "idle")
    gem("enqueue", queue="low", **{"class": "HardWorker"}, args=[str(ledger.path), "a", "wait"])
    until(lambda: gem("working"))
    assert gem("work", queue="low")
    assert gem("failed") == []
    assert [listed["id"] for listed in gem("workers")] == [shown["id"]]
    ledger.open_gate("a")
    until(lambda: ledger.lines())
    assert one.stop() == 0
