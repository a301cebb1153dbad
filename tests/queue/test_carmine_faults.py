"""Faults of Carmine's message queue, by their numbers, that no other file tests."""

from __future__ import annotations

import pytest

from jobq.errors import ConfigError
from jobq.events import attempt_record, decode
from jobq.queue.queue import Queue
from jobq.queue.types import Ending

HOUR_S = 3_600
HOUR = 1_000 * HOUR_S
LEASE = 1_000


@pytest.mark.parametrize("state", ["nil", "locked", "done-awaiting-gc", "done-with-backoff"])
def test_b08_delay_is_honoured_whatever_the_mid_was(queue, at, end, state):
    """ "In 1 h" ran immediately when the mid was done and awaited collection, or was requeued."""
    later = {"mid": "m", "on_conflict": "requeue", "delay": HOUR_S}
    if state != "nil":
        queue.enqueue(b"v1", mid="m", now=at(0))
        [a] = queue.dequeue(now=at(0)).messages
    if state.startswith("done"):
        end(queue, a, backoff=0.1 if state == "done-with-backoff" else 0, now=at(1))
        assert queue.status("m", now=at(1)).word == state

    queue.enqueue(b"v2", **later, now=at(2))
    if state == "locked":
        end(queue, a, now=at(3))

    for elapsed in (4, 200, HOUR, HOUR + 1):
        assert queue.dequeue(now=at(elapsed)).messages == []
    [b] = queue.dequeue(now=at(HOUR + 2)).messages
    assert (b.content, b.attempt) == (b"v2", 1)


def test_b10_update_under_an_expired_lock_is_handled(queue, at, end):
    """An update while the lock had expired was lost when the old holder acked the old content."""
    queue.enqueue(b"v1", mid="m", now=at(0))
    [a] = queue.dequeue(lease=1, now=at(0)).messages

    assert queue.enqueue(b"v2", mid="m", on_conflict="replace", now=at(1_000)).action == "updated"
    assert end(queue, a, now=at(1_001)) == "ok"

    [b] = queue.dequeue(now=at(1_002)).messages
    assert b.content == b"v2"
    assert end(queue, b, now=at(1_003)) == "ok"


def test_b11_update_after_a_retry_with_requeue_is_what_runs(queue, at, end):
    """Retry with a requeue pending was a hidden state: v3 was then overwritten by v2."""
    queue.enqueue(b"v1", mid="m", now=at(0))
    [a] = queue.dequeue(now=at(0)).messages
    queue.enqueue(b"v2", mid="m", on_conflict="requeue", now=at(1))
    assert end(queue, a, "retry", backoff=0.5, now=at(2)) == "ok"
    assert queue.status("m", now=at(3))[:2] == ("queued", 0)

    assert queue.enqueue(b"v3", mid="m", on_conflict="replace", now=at(4)).action == "updated"

    [b] = queue.dequeue(now=at(5)).messages
    assert (b.content, b.attempt) == (b"v3", 1)
    end(queue, b, now=at(6))
    queue.admin.collect(now=at(7))
    assert queue.status("m", now=at(1_000)).word == "nil"


@pytest.mark.parametrize("length", [0, -1, 86_400_001])
def test_b12_lock_of_no_length_is_refused(queue, facts, length):
    """lock-ms 0 was accepted: the same message was handed out on every call."""
    with pytest.raises(ConfigError, match="lease"):
        queue.enqueue(b"v", lease=length / 1000)
    for call in (queue.dequeue, lambda **o: queue.finish([], dequeue=1, **o)):
        with pytest.raises(ConfigError, match="lease"):
            call(lease=length / 1000)
    with pytest.raises(ConfigError, match="lease"):
        queue.extend([("m", "t")], length / 1000)
    assert facts() == {}


@pytest.mark.parametrize("delay", [0, 5])
def test_b17_shortened_delay_moves_the_message_and_wakes(queue, redis, at, delay):
    """Shortening a delay neither promoted the message nor woke a worker."""
    queue.enqueue(b"v", mid="m", delay=HOUR_S, now=at(0))
    redis.delete(queue.wake_key)
    dry = queue.dequeue(now=at(1))
    assert dry.messages == []
    # As it is: only that it would be gone in a few ms by the server's clock.
    redis.set(f"{queue.prefix}eoq-backoff?", at(1) + dry.poll_after_ms)

    queue.enqueue(b"v", mid="m", on_conflict="replace", delay=delay, now=at(100))

    assert not redis.exists(f"{queue.prefix}eoq-backoff?")
    assert redis.llen(queue.wake_key) == 1
    assert [m.mid for m in queue.dequeue(now=at(100 + 1_000 * delay)).messages] == ["m"]


def test_b25_requeued_message_keeps_the_moment_of_its_own_enqueue(queue, redis, at):
    """The requeue's time stamp was set when it was dequeued, so age and latency were wrong."""
    queue.enqueue(b"enqueued at 0", mid="m", now=at(0))
    [a] = queue.dequeue(now=at(0)).messages
    queue.enqueue(b"enqueued at 1000", mid="m", on_conflict="requeue", now=at(1_000))
    done = Ending(mid="m", token=a.token)
    [b] = queue.finish([done], dequeue=1, now=at(9_000)).dequeued.messages
    assert b.content == b"enqueued at 1000"

    record = attempt_record("job", b.attempt, at(1_000), 500_000, 0, 0, "w")
    queue.finish([Ending(mid="m", token=b.token, age_ms=300, record=record)], now=at(10_000))

    [(_, fields)] = redis.xrevrange(f"{queue.prefix}events", count=1)
    event = decode(fields[b"1"])
    assert (event.finished_at, event.started_at, event.wait_ms) == (at(9_700), at(9_200), 8_200)


@pytest.mark.parametrize("dedupe_ms", [0, 60_000])
@pytest.mark.parametrize("collected", [False, True])
def test_b26_enqueue_around_the_end_of_a_run_says_what_it_does(
    queue, at, end, dedupe_ms, collected
):
    """Whether the same enqueue was refused or ran again hung on when GC happened to pass.

    A dedupe backoff decides it; without one a mid is refused until collected, in so many words.
    """
    queue.enqueue(b"v1", mid="m", now=at(0))
    [a] = queue.dequeue(now=at(0)).messages
    assert queue.enqueue(b"v2", mid="m", now=at(1))[1:] == ("exists", "locked")
    end(queue, a, backoff=dedupe_ms / 1000, now=at(2))
    if collected:
        queue.admin.collect(now=at(3))

    again = queue.enqueue(b"v2", mid="m", now=at(4))

    if dedupe_ms:
        assert again[1:] == ("exists", "done-with-backoff")
        queue.admin.collect(now=at(2 + dedupe_ms))
        assert queue.enqueue(b"v2", mid="m", now=at(3 + dedupe_ms)).action == "added"
    elif collected:
        assert again[1:] == ("added", "")
    else:
        assert again[1:] == ("exists", "done-awaiting-gc")


@pytest.mark.parametrize("state", ["locked", "done-awaiting-gc", "done-with-backoff", "nil"])
def test_b26_requeue_always_brings_one_more_run(queue, at, end, state):
    """With on_conflict="requeue" the answer differs, the outcome doesn't: the newer content runs once."""
    queue.enqueue(b"v1", mid="m", now=at(0))
    [a] = queue.dequeue(now=at(0)).messages
    if state != "locked":
        end(queue, a, backoff=0.05 if state == "done-with-backoff" else 0, now=at(1))
    if state == "nil":
        queue.admin.collect(now=at(2))

    action = queue.enqueue(b"v2", mid="m", on_conflict="requeue", now=at(3)).action

    assert action == ("requeued" if state in ("locked", "done-with-backoff") else "added")
    if state == "locked":
        end(queue, a, now=at(4))
    [b] = queue.dequeue(2, now=at(100)).messages
    assert (b.content, b.attempt) == (b"v2", 1)


def test_b13_requeued_message_starts_without_the_old_lock(queue, at, end):
    """Requeue kept the old lock: the new run waited for it, or a late HDEL freed its own."""
    queue.enqueue(b"v1", mid="m", lease=3600, now=at(0))
    [a] = queue.dequeue(now=at(0)).messages
    assert queue.enqueue(b"v2", mid="m", on_conflict="requeue", now=at(10)).action == "requeued"

    assert end(queue, a, now=at(20)) == "ok"
    [b] = queue.dequeue(lease=LEASE / 1000, now=at(30)).messages
    assert (b.content, b.attempt, b.lock_expires_at) == (b"v2", 1, at(30 + LEASE))

    assert end(queue, a, now=at(40)) == "stale"
    assert queue.status("m", now=at(40)).word == "locked"


@pytest.mark.parametrize("crash_limit", [1, 3, 5])
@pytest.mark.parametrize("how", ["crashed", "lock expired"])
def test_b20_message_that_crashes_its_worker_is_dead_at_the_limit(queue, at, crash_limit, how):
    """No attempt limit in the engine: a crashing job was redelivered every lock-ms without end."""
    queue.enqueue(b"poison", mid="m", now=at(0))
    now = at(0)
    for crash in range(1, crash_limit + 1):
        [message] = queue.dequeue(lease=1, crash_limit=crash_limit, now=now).messages
        assert (message.attempt, message.ncrashes) == (crash, crash - 1)
        now += 1_000
        if how == "crashed":
            ending = Ending(mid="m", token=message.token, outcome="crashed", reason="signal 11")
            queue.finish([ending], crash_limit=crash_limit, now=now)
        else:
            queue.admin.collect(crash_limit=crash_limit, now=now)

    assert queue.dequeue(crash_limit=crash_limit, now=now + 100).messages == []
    assert queue.status("m", now=now).word == "dead"
    [dead] = queue.admin.dead()
    assert (dead.mid, dead.ncrashes, dead.content) == ("m", crash_limit, b"poison")
    assert dead.reason == ("signal 11" if how == "crashed" else "lock expired")


@pytest.mark.parametrize("name", ["", "a b", "a{b", "a}b", "{}", "a\n", "x" * 129])
def test_b24_name_that_would_break_the_tag_is_refused(client, name):
    """A brace in a queue's name would move the hash tag."""
    with pytest.raises(ConfigError, match="queue"):
        Queue(name, client)
