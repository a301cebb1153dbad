"""One queue as a child calls it."""

from __future__ import annotations

from itertools import count

import pytest

from jobq.config import WorkerSettings
from jobq.queue import keys
from jobq.queue.types import Ending
from jobq.worker import queue_client as module
from jobq.worker.queue_client import NotReportedError, QueueCaller, QueueClient
from jobq.worker.queue_health import BROKEN, QueueHealth
from jobq.worker.shared_state import lease_deadline


@pytest.fixture
def health():
    return QueueHealth(1)


@pytest.fixture
def queue_client(queue, health):
    caller = QueueCaller(lambda: None, "caller0123456789", count(1))
    return QueueClient(0, queue, caller, health, WorkerSettings(queues=(("low", 1),)))


def test_one_ending_that_the_server_refuses_holds_up_no_other(queue_client, queue, health, caplog):
    for mid in "abc":
        queue.enqueue(b"v", mid=mid)
    messages, _ = queue_client.dequeue(3)
    endings = [Ending(mid=one.mid, token=one.token) for one in messages.messages]
    endings[1] = Ending(mid="b", token=endings[1].token, age_ms=-(10**9))
    with pytest.raises(NotReportedError):
        queue_client.finish(endings)
    assert health.state(0) == BROKEN
    reported = []
    queue_client.when_reported(lambda: reported.append(queue.status("b").word))

    queue_client.report()

    assert reported == ["locked"]
    assert not queue_client.has_report
    assert not health.state(0)
    assert queue.status("a").word == queue.status("c").word == "done-awaiting-gc"
    assert "b: outcome 'done' is lost, the server refuses it" in caplog.text


def test_endings_wait_in_their_order_while_the_queue_is_broken(queue_client, queue, redis):
    for mid in "ab":
        queue.enqueue(b"v", mid=mid)
    messages, _ = queue_client.dequeue(2)
    meta = keys.key(queue.prefix, "meta")
    redis.rename(meta, f"{meta}-kept")
    redis.set(meta, "x")
    for one in messages.messages:
        with pytest.raises(NotReportedError):
            queue_client.finish([Ending(mid=one.mid, token=one.token)])
    with pytest.raises(NotReportedError):
        queue_client.report()
    assert not queue_client.release([])
    redis.rename(f"{meta}-kept", meta)

    assert queue_client.report() == (None, 0)
    assert queue.admin.counts().done == 2
    assert queue_client.release([])


@pytest.mark.one_server
@pytest.mark.parametrize("call", ["dequeue", "finish"])
def test_deadline_counts_from_before_the_call_when_its_reply_takes_long(
    queue_client, queue, monkeypatch, call
):
    """The server may have locked the message as soon as it was asked."""
    clock, answered = [10**15], getattr(queue, call)
    monkeypatch.setattr(module, "boot_ns", lambda: clock[0])

    def slow(*args, **options):
        reply = answered(*args, **options)
        clock[0] += 10 * 10**9
        return reply

    monkeypatch.setattr(queue_client.queue, call, slow)
    queue.enqueue(b"v", mid="a")
    asked_at, lease_s = clock[0], WorkerSettings().lease_s
    handed, deadline = (
        queue_client.dequeue(1) if call == "dequeue" else queue_client.finish([], dequeue=1)
    )
    assert [one.mid for one in handed.messages] == ["a"]
    assert deadline == lease_deadline(asked_at, lease_s)


FAR = b"9007199254740990"


@pytest.mark.parametrize("record", [b"x" + FAR + b"\x1e\x1e", FAR + b"\x1e\x1e", None])
def test_queue_client_goes_on_under_another_id_when_somebody_spoils_its_record(
    record, queue_client, queue, redis
):
    """Who may write to a queue reads its callers' ids in the tokens, and can write what the scripts keep of them."""
    queue.enqueue(b"v", mid="a")
    queue.enqueue(b"v", mid="b")
    [held] = queue_client.dequeue(1)[0].messages
    key = f"{queue.prefix}call:{held.token.split('.')[0]}"
    redis.delete(key)
    redis.set(key, record) if record else redis.rpush(key, "x")
    with pytest.raises(NotReportedError):
        queue_client.finish([Ending(mid="a", token=held.token)])

    queue_client.report()

    assert queue.status("a").word == "done-awaiting-gc"
    assert [one.mid for one in queue_client.dequeue(1)[0].messages] == ["b"]


def forged(redis, queue, caller, number, mids):
    """The record of a hand-out that the script would repeat."""
    tokens = {mid: f"{caller}.{number}.{index}" for index, mid in enumerate(mids)}
    redis.hset(keys.key(queue.prefix, "tokens"), mapping=tokens)
    redis.hset(keys.key(queue.prefix, "messages"), mapping=dict.fromkeys(mids, b"v"))
    record = b"%d\x1e\x1e%s" % (number, b"\x1f".join([b"0", b"0", b"7", b"9" * 13, *mids]))
    redis.set(f"{queue.prefix}call:{caller}", record)


@pytest.mark.parametrize("mids", [[b"a", b"b", b"c"], [b"x" * 70_000], [b"\xff"]])
def test_queue_client_takes_no_more_than_it_asked_for_and_no_mid_that_is_none(
    mids, queue_client, queue, redis
):
    forged(redis, queue, "caller0123456789", 1, mids)
    found, _ = queue_client.dequeue(2)
    assert not found.messages
    assert queue_client._health.state(0) == BROKEN


@pytest.mark.parametrize("words", [b"ok\x1fok\x1fok", b"", b"zz", b"\xff"])
def test_queue_client_is_refused_when_the_words_of_a_forged_record_are_none(
    words, queue_client, queue, redis
):
    for mid in "ab":
        queue.enqueue(b"v", mid=mid)
    [held] = queue_client.dequeue(1)[0].messages
    record = b"2\x1e%s\x1e%s" % (words, b"\x1f".join([b"0", b"0", b"7", b"9" * 13, b"m"]))
    redis.set(f"{queue.prefix}call:caller0123456789", record)
    redis.hset(keys.key(queue.prefix, "tokens"), "m", "caller0123456789.2.0")
    with pytest.raises(NotReportedError):
        queue_client.finish([Ending(mid="a", token=held.token)], 1)
    queue_client.report()
    assert queue.status("a").word == "done-awaiting-gc"
