"""Jobs that share a jid: equal calls are one, others each run, and nothing that waits is replaced."""

from __future__ import annotations

import json
from itertools import count

import pytest

from jobq.client.connection import connect
from jobq.config import CodecSettings, ServerSettings
from jobq.jobs.codec import decode
from jobq.jobs.signing import opened, seal_of
from jobq.protocols.ruby.claims import Claims
from jobq.protocols.ruby.duplicate_jids import DuplicateJids
from jobq.protocols.ruby.intake import QueueIntake
from jobq.protocols.ruby.settings import IntakeSettings
from jobq.queue.partitioning import partition
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.protocols.ruby.conftest import PLACE
from tests.protocols.ruby.test_crash_at_every_step import Died, last_call


def run_calls(queue) -> list[tuple[str, object]]:
    """Run everything; mid and first argument of each, in their order."""
    ran = []
    while messages := queue.dequeue(100).messages:
        for message in messages:
            call = opened(seal_of(queue.client), queue.name, message.mid, message.content)
            ran.append((message.mid, (decode(call).args or [None])[0]))
        queue.finish([Ending(mid=one.mid, token=one.token) for one in messages])
    return ran


@pytest.fixture
def come(pushed, line):
    """come(1, 2): jobs of one jid with these arguments are pushed and taken in as one claim."""

    def arrive(*args, **fields):
        for arg in args:
            pushed("a", [arg], **fields)
        line().carry(greedy=False)

    return arrive


@pytest.mark.parametrize("together", [True, False], ids=["in one claim", "in two"])
def test_equal_calls_are_one_while_the_first_waits(come, default, together):
    _ = come(1, 1) if together else (come(1), come(1, retry=7, tags=["x"]))
    assert run_calls(default) == [("a", 1)]


@pytest.mark.parametrize("together", [True, False], ids=["in one claim", "in two"])
def test_other_calls_run_each_with_a_warning(come, default, caplog, together):
    _ = come(1, 2, True) if together else (come(1), come(2), come(True))
    ran = run_calls(default)
    assert [arg for _, arg in ran] == [1, 2, True]
    assert ran[0][0] == "a" and len({mid for mid, _ in ran}) == 3
    assert (
        caplog.text.count("jid a is already used by a job with another class or other argum") == 2
    )


def test_other_class_is_another_call(come, default):
    come(1)
    come(1, **{"class": "Other"})
    assert len(run_calls(default)) == 2


def test_equal_call_runs_again_after_the_run_that_goes_on_and_once_however_often_it_comes(
    come, default
):
    come(1)
    [running] = default.dequeue().messages
    for _ in range(3):
        come(1)
        assert default.status("a").word == "locked-with-requeue"
    default.finish([Ending(mid="a", token=running.token)])
    default.admin.collect()
    assert run_calls(default) == [("a", 1)]


def test_other_call_runs_beside_the_run_that_goes_on(come, default):
    come(1)
    [running] = default.dequeue().messages
    come(2)
    come(1)
    come(3)
    assert sorted(arg for _, arg in run_calls(default)) == [2, 3]
    default.finish([Ending(mid="a", token=running.token)])
    default.admin.collect()
    assert run_calls(default) == [("a", 1)]


def test_any_call_runs_again_when_the_first_is_done(come, default):
    for arg in (1, 1, 2):
        come(arg)
        assert run_calls(default) == [("a", arg)]


def test_message_that_python_enqueued_under_the_jid_is_left_alone(come, default):
    default.enqueue(b'{"job":"own","args":["own"]}', mid="a")
    come(1)
    assert sorted(arg for _, arg in run_calls(default) if arg != "own") == [1]
    default.enqueue(b"no call", mid="a", on_conflict="requeue")
    come(2)
    assert {message.content for message in default.dequeue(9).messages} > {b"no call"}


def test_refused_jobs_of_one_jid_are_dead_each(come, redis, line, default):
    for text in (b'{"jid":"a"}', b'{"jid":"a","args":[]}', b'{"jid":"a"}'):
        redis.lpush("queue:default", text)
    line().carry(greedy=False)
    assert {json.loads(one.content)["raw"] for one in default.dequeue(9).messages} == {
        '{"jid":"a"}', '{"jid":"a","args":[]}',
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["sign", "encrypt"])
def test_calls_are_compared_under_their_seal(server, pushed, mode):
    codec = CodecSettings(mode=mode, keys=(("k", b"x" * 32),))
    client = connect(settings=ServerSettings(url=server.url, codec=codec))
    queue = Queue("default", client)
    one = QueueIntake(client, PLACE, queue, IntakeSettings(ruby_queues=(PLACE,)))
    for args in ([1], [1], [2]):
        pushed("a", args)
        one.carry(greedy=False)
    assert [arg for _, arg in run_calls(queue)] == [1, 2]
    client.close()


def test_nothing_is_lost_when_the_first_ends_and_another_comes_between_look_and_write(
    come, default, monkeypatch
):
    come(1)
    [running] = default.dequeue().messages
    real = DuplicateJids._compared

    def compared(self, mid, plain):
        found = real(self, mid, plain)
        monkeypatch.undo()
        default.finish([Ending(mid="a", token=running.token)])
        default.admin.collect()
        default.enqueue(b'{"job":"B","args":["other"]}', mid="a", on_conflict="requeue")
        return found

    monkeypatch.setattr(DuplicateJids, "_compared", compared)
    come(1)
    assert sorted(map(str, (arg for _, arg in run_calls(default)))) == ["1", "other"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(12))
def test_every_call_runs_when_an_intake_dies_at_any_step(
    redis, client, line, default, pushed, monkeypatch, step, after
):
    pushed("a", [1])
    line().carry(greedy=False)
    for arg in (2, 1, 3):
        pushed("a", [arg])
    calls = count()
    for name in ("run", "command"):
        monkeypatch.setattr(client, name, last_call(getattr(client, name), calls, step, after))
    try:
        line().carry(greedy=False)
    except Died:
        monkeypatch.undo()
    monkeypatch.undo()
    ran = run_calls(default)
    for claim in Claims(client, PLACE).waiting():
        redis.zadd("jobq:intake:{queue:default}:claims", {claim.claim_id: 0})
    for _ in range(2):
        line().carry(greedy=False)
        ran += run_calls(default)
    args = [arg for _, arg in ran]
    assert set(args) == {1, 2, 3}
    assert args.count(2) == args.count(3) == 1
    assert args.count(1) <= 2
    assert not redis.keys("jobq:intake:*}:claims") + redis.keys("jobq:intake:*}:taken:*")


def test_equal_calls_are_one_and_others_run_each_when_the_queue_is_partitioned(
    come, default, client, caplog
):
    partition(client, "default", 3)
    for arg in (1, 1, 2):
        come(arg)

    ran = [run for place in default.partitions() for run in run_calls(place)]
    assert sorted(arg for _, arg in ran) == [1, 2]
    assert caplog.text.count("is already used by a job with another class") == 1
