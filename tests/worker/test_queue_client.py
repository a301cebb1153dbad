"""One queue as a child asks it."""

from __future__ import annotations

from itertools import count

import pytest

from jobq.config import WorkerSettings
from jobq.queue import keys
from jobq.queue.types import Ending
from jobq.worker.queue_client import NotReportedError, QueueCaller, QueueClient
from jobq.worker.queue_health import BROKEN, QueueHealth


@pytest.fixture
def standing():
    return QueueHealth(1)


@pytest.fixture
def line(queue, standing):
    caller = QueueCaller(lambda: None, "caller0123456789", count(1))
    return QueueClient(0, queue, caller, standing, WorkerSettings(queues=(("low", 1),)))


def test_one_ending_that_the_server_refuses_holds_up_no_other(line, queue, standing, caplog):
    for mid in "abc":
        queue.enqueue(b"v", mid=mid)
    messages, _ = line.dequeue(3)
    endings = [Ending(mid=one.mid, token=one.token) for one in messages.messages]
    endings[1] = Ending(mid="b", token=endings[1].token, age_ms=-(10**9))
    with pytest.raises(NotReportedError):
        line.finish(endings)
    assert standing.state(0) == BROKEN
    paid = []
    line.when_reported(lambda: paid.append(queue.status("b").word))

    line.report()

    assert paid == ["locked"]
    assert not line.has_report
    assert not standing.state(0)
    assert queue.status("a").word == queue.status("c").word == "done-awaiting-gc"
    assert "b: outcome 'done' is lost, the server refuses it" in caplog.text


def test_endings_wait_in_their_order_while_the_queue_is_broken(line, queue, redis):
    for mid in "ab":
        queue.enqueue(b"v", mid=mid)
    messages, _ = line.dequeue(2)
    meta = keys.key(queue.prefix, "meta")
    redis.rename(meta, f"{meta}-kept")
    redis.set(meta, "x")
    for one in messages.messages:
        with pytest.raises(NotReportedError):
            line.finish([Ending(mid=one.mid, token=one.token)])
    with pytest.raises(NotReportedError):
        line.report()
    assert not line.release([])
    redis.rename(f"{meta}-kept", meta)

    assert line.report() == (None, 0)
    assert queue.admin.counts().done == 2
    assert line.release([])


FAR = b"9007199254740990"


@pytest.mark.parametrize("record", [b"x" + FAR + b"\x1e\x1e", FAR + b"\x1e\x1e", None])
def test_line_goes_on_under_another_id_when_somebody_spoils_its_record(record, line, queue, redis):
    """Who may write to a queue reads its callers' ids in the tokens, and can write what the scripts keep of them."""
    queue.enqueue(b"v", mid="a")
    queue.enqueue(b"v", mid="b")
    [held] = line.dequeue(1)[0].messages
    key = f"{queue.prefix}call:{held.token.split('.')[0]}"
    redis.delete(key)
    redis.set(key, record) if record else redis.rpush(key, "x")
    with pytest.raises(NotReportedError):
        line.finish([Ending(mid="a", token=held.token)])

    line.report()

    assert queue.status("a").word == "done-awaiting-gc"
    assert [one.mid for one in line.dequeue(1)[0].messages] == ["b"]


def forged(redis, queue, caller, number, mids):
    """The record of a hand-out that the script would repeat."""
    tokens = {mid: f"{caller}.{number}.{index}" for index, mid in enumerate(mids)}
    redis.hset(keys.key(queue.prefix, "tokens"), mapping=tokens)
    redis.hset(keys.key(queue.prefix, "messages"), mapping=dict.fromkeys(mids, b"v"))
    record = b"%d\x1e\x1e%s" % (number, b"\x1f".join([b"0", b"0", b"7", b"9" * 13, *mids]))
    redis.set(f"{queue.prefix}call:{caller}", record)


@pytest.mark.parametrize("mids", [[b"a", b"b", b"c"], [b"x" * 70_000], [b"\xff"]])
def test_line_takes_no_more_than_it_asked_for_and_no_mid_that_is_none(mids, line, queue, redis):
    forged(redis, queue, "caller0123456789", 1, mids)
    found, _ = line.dequeue(2)
    assert not found.messages
    assert line._health.state(0) == BROKEN


@pytest.mark.parametrize("words", [b"ok\x1fok\x1fok", b"", b"zz", b"\xff"])
def test_line_is_refused_when_the_words_of_a_forged_record_are_none(words, line, queue, redis):
    for mid in "ab":
        queue.enqueue(b"v", mid=mid)
    [held] = line.dequeue(1)[0].messages
    record = b"2\x1e%s\x1e%s" % (words, b"\x1f".join([b"0", b"0", b"7", b"9" * 13, b"m"]))
    redis.set(f"{queue.prefix}call:caller0123456789", record)
    redis.hset(keys.key(queue.prefix, "tokens"), "m", "caller0123456789.2.0")
    with pytest.raises(NotReportedError):
        line.finish([Ending(mid="a", token=held.token)], 1)
    line.report()
    assert queue.status("a").word == "done-awaiting-gc"
