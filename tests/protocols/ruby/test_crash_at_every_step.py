"""An intake that dies before or after any one of its calls: nothing is lost, nothing enqueued twice."""

from __future__ import annotations

import json
from collections import Counter
from itertools import count

import pytest

from jobq.jobs.registry import Registry
from jobq.jobs.registry import job as declare
from jobq.protocols.ruby.claims import Claims
from jobq.protocols.ruby.scheduled import promote
from jobq.queue.partitioning import partition
from tests.protocols.ruby.conftest import PLACE


class Died(BaseException):
    """The process is gone."""


@pytest.fixture
def dying(client, monkeypatch):
    """dying(step, after): the client's call number `step` is its last; with `after` it still takes effect."""

    def patch(step, after, *names):
        calls = count()
        for name in names or ("run", "command"):
            monkeypatch.setattr(client, name, last_call(getattr(client, name), calls, step, after))

    return patch


def last_call(real, calls, step, after):
    def call(*args, **options):
        number = next(calls)
        if number > step or (number == step and not after):
            raise Died
        reply = real(*args, **options)
        if number == step:
            raise Died
        return reply

    return call


@pytest.fixture
def keyed_by_customer(monkeypatch):
    """keyed_by_customer(): end all patches, then give HardWorker its argument as key."""
    registry = Registry()
    declare(name="HardWorker", registry=registry, key="customer")(lambda customer: None)

    def patch():
        monkeypatch.undo()
        monkeypatch.setattr("jobq.protocols.ruby.intake.default_registry", registry)

    return patch


@pytest.fixture
def carried_on(redis, client, line, default, run_all):
    """carried_on(): let later intakes take over all open claims, and return the mids of all jobs."""

    def carry():
        ran = []
        for turn in range(5):
            if turn:
                for claim in Claims(client, PLACE).waiting():
                    redis.zadd("jobq:intake:{queue:default}:claims", {claim.claim_id: 0})
                line().carry(greedy=True)
            ran += [mid for place in default.partitions() or [default] for mid in run_all(place)]
        return ran

    return carry


def repeat(turn, *args):
    """Until it dies."""
    for _ in range(4):
        turn(*args)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(6))
def test_each_job_is_enqueued_once(
    redis, client, line, default, pushed, run_all, dying, monkeypatch, step, after
):
    for jid in "abcde":
        pushed(jid)
    redis.lpush("queue:default", b"{bad", b'{"class":"NoJid","args":[]}')
    default.admin.events_level("all")
    dying(step, after)
    with pytest.raises(Died):
        repeat(line().carry, False)
    monkeypatch.undo()
    ran = run_all(default)
    for claim in Claims(client, PLACE).waiting():
        redis.zadd("jobq:intake:{queue:default}:claims", {claim.claim_id: 0})
    for _ in range(2):
        line().carry(greedy=False)
        ran += run_all(default)
    assert len(ran) == 7 and max(Counter(ran).values()) == 1
    assert set("abcde") <= set(ran)
    assert not redis.keys("jobq:intake:*}:claims") + redis.keys("jobq:intake:*}:taken:*")
    assert not redis.exists("queue:default")


@pytest.mark.one_server
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(10))
def test_each_job_is_enqueued_once_when_the_queue_is_partitioned(
    redis, client, line, default, pushed, run_all, dying, monkeypatch, step, after
):
    partition(client, "default", 2)
    for jid in "abcde":
        pushed(jid)
    dying(step, after, "perform")
    with pytest.raises(Died):
        repeat(line().carry, True)
    monkeypatch.undo()
    ran = [mid for place in default.partitions() for mid in run_all(place)]
    for claim in Claims(client, PLACE).waiting():
        redis.zadd("jobq:intake:{queue:default}:claims", {claim.claim_id: 0})
    for _ in range(2):
        line().carry(greedy=True)
        ran += [mid for place in default.partitions() for mid in run_all(place)]
    assert sorted(ran) == ["a", "b", "c", "d", "e"]
    assert not redis.keys("jobq:intake:*}:claims") + redis.keys("jobq:intake:*}:taken:*")


@pytest.mark.one_server
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(20))
def test_each_job_is_enqueued_once_where_a_line_is_full(
    redis, line, default, pushed, dying, keyed_by_customer, carried_on, step, after
):
    keyed_by_customer()
    default.rules(key_waiting=2)
    for jid in "abcde":
        pushed(jid, ["acme"])
    pushed("other", ["bob"])
    taking = line()
    dying(step, after, "perform")
    with pytest.raises(Died):
        repeat(taking.carry, True)
    keyed_by_customer()
    ran = carried_on()
    assert sorted(ran) == ["a", "b", "c", "d", "e", "other"]
    assert not redis.keys("jobq:intake:*}:claims") + redis.keys("jobq:intake:*}:taken:*")


@pytest.mark.one_server
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(29))
def test_each_job_is_enqueued_once_where_a_line_of_a_partition_is_full(
    redis, client, line, default, pushed, dying, keyed_by_customer, carried_on, step, after
):
    keyed_by_customer()
    default.rules(key_waiting=2)
    known = partition(client, "default", 2)
    keys = {known.newest.name_for("default", f"k{n}"): f"k{n}" for n in range(9)}
    full, free = keys["default/0"], keys["default/1"]
    for jid in "abcd":
        pushed(jid, [full])
    pushed("other", [free])
    taking = line()
    dying(step, after, "perform")
    with pytest.raises(Died):
        repeat(taking.carry, True)
    keyed_by_customer()
    ran = carried_on()
    assert sorted(ran) == ["a", "b", "c", "d", "other"]
    assert not redis.keys("jobq:intake:*}:claims") + redis.keys("jobq:intake:*}:taken:*")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(4))
def test_due_job_is_in_one_place(redis, client, dying, monkeypatch, step, after):
    redis.zadd("schedule", {'{"class":"A","args":[],"jid":"a","queue":"default"}': 1})
    redis.zadd("retry", {"{bad": 1})
    dying(step, after)
    with pytest.raises(Died):
        repeat(promote, client, "")
    monkeypatch.undo()
    promote(client, "")
    assert redis.llen("queue:default") == 1
    assert [json.loads(job)["args"] for job in redis.zrange("dead", 0, -1)] == [["{bad"]]
    assert not redis.exists("schedule", "retry")
