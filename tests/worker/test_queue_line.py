"""The calls of one child to one queue."""

from __future__ import annotations

from itertools import count

import pytest

from jobq.client.clock import boot_ns
from jobq.client.connection import Client
from jobq.config import WorkerSettings
from jobq.errors import UnavailableError
from jobq.queue import keys
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Lease
from jobq.worker import queue_line as module
from jobq.worker.queue_health import AWAY, BROKEN, QueueHealth
from jobq.worker.queue_line import AWAY_ERRORS, NotReportedError, QueueCaller, QueueLine
from jobq.worker.shared_state import lease_deadline


@pytest.fixture
def health():
    return QueueHealth(1)


@pytest.fixture
def line(queue, health):
    caller = QueueCaller(lambda: None, "caller0123456789", count(1))
    return QueueLine(0, queue, caller, health, WorkerSettings(queues=(("low", 1),)))


def reported(line, *endings, limit=0):
    """What the line hands out as it reports these endings, in the slots from 0 on."""
    line.outbox += [(slot, one, boot_ns()) for slot, one in enumerate(endings)]
    return line.ask(limit)


def test_one_ending_that_the_server_refuses_holds_up_no_other(line, queue, health, caplog):
    for mid in "abc":
        queue.enqueue(b"v", mid=mid)
    messages, _ = line.dequeue(3)
    endings = [Ending(mid=one.mid, token=one.token) for one in messages.messages]
    endings[1] = Ending(mid="b", token=endings[1].token, age_ms=-(10**9))
    with pytest.raises(NotReportedError):
        reported(line, *endings)
    assert health.state(0) == BROKEN
    over = []
    line.on_reported = lambda endings, replies, slots: over.extend(slots)

    line.repeat()

    assert over == [0, 1, 2]
    assert queue.status("b").word == "locked"
    assert line.is_idle
    assert not health.state(0)
    assert queue.status("a").word == queue.status("c").word == "done-awaiting-gc"
    assert "b: outcome 'done' was lost, because the server rejected it" in caplog.text


def test_endings_wait_in_their_order_while_the_queue_is_broken(line, queue, redis):
    for mid in "ab":
        queue.enqueue(b"v", mid=mid)
    messages, _ = line.dequeue(2)
    meta = keys.key(queue.prefix, "meta")
    redis.rename(meta, f"{meta}-kept")
    redis.set(meta, "x")
    for one in messages.messages:
        with pytest.raises(NotReportedError):
            reported(line, Ending(mid=one.mid, token=one.token))
    with pytest.raises(NotReportedError):
        line.repeat()
    assert not line.release([Lease("b", messages.messages[1].token)])
    redis.rename(f"{meta}-kept", meta)

    assert line.repeat() == (None, 0)
    assert queue.admin.counts().done == 2
    assert line.release([])


@pytest.mark.one_server
@pytest.mark.parametrize("call", ["dequeue", "report"])
def test_deadline_counts_from_before_the_call_when_its_reply_takes_long(
    line, queue, monkeypatch, call
):
    """The server may have locked the message as soon as it was asked."""
    clock, perform = [10**15], queue.client.perform
    monkeypatch.setattr(module, "boot_ns", lambda: clock[0])

    def slow(*args, **options):
        reply = perform(*args, **options)
        clock[0] += 10 * 10**9
        return reply

    queue.enqueue(b"v", mid="a")
    monkeypatch.setattr(queue.client, "perform", slow)
    asked_at, lease_s = clock[0], WorkerSettings().lease_s
    if call == "dequeue":
        handed, deadline = line.dequeue(1)
    else:
        handed, deadline = reported(line, Ending(mid="none", token="t"), limit=1)
    assert [one.mid for one in handed.messages] == ["a"]
    assert deadline == lease_deadline(asked_at, lease_s)


FAR = b"9007199254740990"


@pytest.mark.parametrize("record", [b"x" + FAR + b"\x1e\x1e", FAR + b"\x1e\x1e", None])
def test_line_goes_on_under_another_id_when_somebody_spoils_its_record(record, line, queue, redis):
    """Who may write to a queue reads its callers' ids in the tokens, and can write what the scripts keep of them."""
    queue.rules(max=9)  # the scripts for plain calls replace a record of another type
    queue.enqueue(b"v", mid="a")
    queue.enqueue(b"v", mid="b")
    [held] = line.dequeue(1)[0].messages
    key = f"{queue.prefix}call:{held.token.split('.')[0]}"
    redis.delete(key)
    redis.set(key, record) if record else redis.rpush(key, "x")
    with pytest.raises(NotReportedError):
        reported(line, Ending(mid="a", token=held.token))

    line.repeat()

    assert queue.status("a").word == "done-awaiting-gc"
    assert [one.mid for one in line.dequeue(1)[0].messages] == ["b"]


def test_plain_call_replaces_the_record_when_it_has_another_type(line, queue, redis):
    for mid in ("a", "b", "c"):
        queue.enqueue(b"v", mid=mid)
    [first] = line.dequeue(1)[0].messages
    [held] = reported(line, Ending(mid="a", token=first.token), limit=1)[0].messages
    key = f"{queue.prefix}call:{held.token.split('.')[0]}"
    redis.delete(key)
    redis.rpush(key, "x")

    [last] = reported(line, Ending(mid="b", token=held.token), limit=1)[0].messages

    assert (last.mid, redis.type(key)) == ("c", b"string")


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
        reported(line, Ending(mid="a", token=held.token), limit=1)
    line.repeat()
    assert queue.status("a").word == "done-awaiting-gc"


@pytest.fixture
def passing(queue, health):
    """A line that goes on when its server is away, as on a Cluster, and a switch that loses replies."""
    lost = []

    def perform(key, state, by=None):
        reply = Client.perform(client, key, state, by)
        if lost:
            raise UnavailableError("the reply was lost")
        return reply

    client = Client(queue.client.settings)
    client.perform = perform
    caller = QueueCaller(lambda: None, "caller0123456789", count(1))
    settings = WorkerSettings(queues=(("low", 1),))
    return QueueLine(0, Queue("low", client), caller, health, settings, AWAY_ERRORS), lost


def test_lost_call_is_made_again_before_any_other_and_hands_out_the_same(passing, queue, health):
    line, lost = passing
    for mid in "abc":
        queue.enqueue(b"v", mid=mid)
    [held] = line.dequeue(1)[0].messages
    lost.append(True)
    with pytest.raises(NotReportedError):
        reported(line, Ending(mid="a", token=held.token), limit=1)
    assert health.state(0) == AWAY
    assert [ending.mid for _, ending, _ in line.late()] == ["a"]
    with pytest.raises(NotReportedError):
        reported(line, Ending(mid="none", token="t"))
    assert not line.release([Lease("none", "t")])
    lost.clear()

    [again] = line.repeat()[0].messages
    assert (again.mid, queue.status("b").attempts) == ("b", 1)
    assert [(one.mid, one.outcome) for _, one, _ in line.late()] == [
        ("none", "done"), ("none", "release"),
    ]  # fmt: skip
    assert line.repeat() == (None, 0)
    assert line.is_idle
    assert not health.state(0)


def test_lost_dequeue_hands_out_the_same_when_it_is_made_again(passing, queue):
    line, lost = passing
    queue.enqueue_many([b"v"] * 2)
    lost.append(True)
    assert not line.dequeue(1)[0].messages
    assert not line.late()
    lost.clear()
    [message] = line.repeat()[0].messages
    assert message.token == "caller0123456789.1.0"
    assert queue.admin.counts().locked == 1


def test_ending_is_as_old_as_it_is_whenever_it_arrives(passing, queue, monkeypatch):
    line, lost = passing
    queue.enqueue(b"v", mid="a")
    [held] = line.dequeue(1)[0].messages
    now, asked = [boot_ns()], []
    monkeypatch.setattr(module, "boot_ns", lambda: now[0])
    monkeypatch.setattr("jobq.client.clock.boot_ns", lambda: now[0])
    rows = line.queue._rows

    def noted(endings):
        asked.append(endings[0].age_ms)
        return rows(endings)

    monkeypatch.setattr(line.queue, "_rows", noted)
    line.queue.finishes.skip = 1
    line.outbox.append((0, Ending(mid="a", token=held.token), now[0] - 5 * 10**9))
    lost.append(True)
    with pytest.raises(NotReportedError):
        line.ask()
    lost.clear()
    now[0] += 60 * 10**9
    line.repeat()
    assert asked == [5_000, 65_000]


def test_caller_of_a_call_that_is_on_its_way_stays_when_a_release_is_refused(line, queue, redis):
    queue.enqueue_many([b"v"] * 2)
    [held] = line.dequeue(1)[0].messages
    line.send(1)
    locks = keys.key(queue.prefix, "tokens")
    redis.rename(locks, f"{locks}-kept")
    redis.set(locks, "x")
    assert not line.release([Lease(held.mid, held.token)])
    redis.delete(locks)
    redis.rename(f"{locks}-kept", locks)

    [message] = line.take(None)[0].messages
    assert queue.extend([(message.mid, message.token)]) == [True]
    line.repeat()
    assert queue.status(held.mid).word == "queued"
