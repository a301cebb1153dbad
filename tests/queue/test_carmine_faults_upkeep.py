"""Carmine's faults of the circle, of idling and of counting."""

from __future__ import annotations

import pytest

from jobq.queue.types import Ending


def test_b05_full_ready_list_starves_nothing(queue, at):
    """Ready always won: delayed and expired messages and collection waited for its end."""
    queue.enqueue(b"d", mid="delayed", delay=0.010, now=at(0))
    queue.enqueue(b"x", mid="expired", now=at(0))
    queue.dequeue(lease=0.01, now=at(0))
    queue.enqueue_many([(f"m{i}", b"") for i in range(100)], now=at(0))
    seen, endings, most = [], [], 0

    for step in range(300):
        queue.enqueue(b"", mid=f"n{step}", now=at(20 + step))
        [message] = queue.finish(endings, dequeue=1, now=at(20 + step)).dequeued.messages
        endings = [Ending(mid=message.mid, token=message.token)]
        seen.append(message.mid)
        most = max(most, queue.admin.counts().done)

    assert {"delayed", "expired"} <= set(seen[:110])
    assert most <= 20
    assert queue.admin.counts().ready > 90


def test_b09_dry_dequeue_leaves_nothing_that_ends_the_wait(queue, redis, at, end):
    """The idle sleep named a list that wasn't empty, returned at once, and so polled."""
    queue.enqueue(b"v", mid="m", now=at(0))
    end(queue, queue.dequeue(now=at(0)).messages[0], now=at(1))
    queue.admin.collect(now=at(2))
    while redis.lpop(queue.wake_key):
        pass

    sleeps = [queue.dequeue(now=at(10 + 40_000 * i)).sleep_ms for i in range(12)]

    assert sleeps[0] > 0
    assert sleeps == sorted(sleeps)
    assert sleeps[-1] > 10_000
    assert redis.llen(queue.wake_key) == 0


@pytest.mark.parametrize("outcome", ["retry", "release", "snooze", "done"])
def test_b16_hot_mid_has_one_copy_in_the_lists(queue, redis, at, outcome):
    """Copies of a hot mid piled up in the circle: 1,000 cycles, 2,000 copies."""
    queue.enqueue(b"v", mid="m", now=at(0))
    endings = []
    for cycle in range(1_000):
        [message] = queue.finish(endings, dequeue=1, now=at(cycle)).dequeued.messages
        if outcome == "done":
            queue.enqueue(b"v", mid="m", can_requeue=True, now=at(cycle))
        endings = [Ending(mid="m", token=message.token, outcome=outcome)]

    copies = {
        name: redis.lrange(queue.prefix + name, 0, -1).count(b"m")
        for name in ("ready", "mid-circle")
    }
    assert copies["mid-circle"] == 1
    assert copies["ready"] <= 1
    assert redis.scard(f"{queue.prefix}left-circle") <= 1
    assert redis.scard(f"{queue.prefix}left-ready") <= 1


def test_b16_copy_behind_a_long_circle_is_taken_over(queue, redis, at, end):
    """The same where the circle is too long for its walk to drop the stale copies in time."""
    queue.enqueue_many([(f"live{i}", b"") for i in range(500)], now=at(0))
    queue.dequeue(500, lease=60, now=at(0))
    queue.enqueue(b"v", mid="m", now=at(0))

    for cycle in range(20):
        [message] = queue.dequeue(now=at(cycle)).messages
        end(queue, message, "retry", now=at(cycle))

    assert redis.llen(f"{queue.prefix}mid-circle") == 501
    assert redis.smembers(f"{queue.prefix}left-circle") == {b"m"}
    assert queue.admin.fsck() == []


def test_b18_counts_know_a_backoff_that_is_over(queue, redis, at):
    """Backoffs stayed when handled and were counted: nqueued was clipped to 0."""
    queue.enqueue_many([(f"m{i}", b"") for i in range(100)], delay=1, now=at(0))
    queue.enqueue_many([(f"n{i}", b"") for i in range(10)], now=at(0))
    assert queue.admin.counts()[:3] == (110, 10, 100)

    queue.admin.collect(now=at(1_000))
    assert queue.admin.counts()[:3] == (110, 110, 0)
    assert redis.hlen(f"{queue.prefix}backoffs") == 0

    messages = queue.dequeue(110, now=at(1_001)).messages
    queue.finish([Ending(mid=m.mid, token=m.token) for m in messages], now=at(1_002))
    counts = queue.admin.counts()
    assert (counts.ready, counts.delayed, counts.locked, counts.done) == (0, 0, 0, 110)


@pytest.mark.parametrize("crash_limit", [1, 3, 5])
@pytest.mark.parametrize("how", ["crashed", "lock expired"])
def test_b20_message_that_crashes_its_worker_is_dead_at_the_limit(queue, at, crash_limit, how):
    """No attempt limit in the engine: a crashing job was redelivered every lock-ms for ever."""
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
