"""The server's clock, read once per script, with a floor under it."""

from __future__ import annotations

import pytest
from freezegun import freeze_time

from jobq.events import decode


def events(redis, queue):
    return [decode(fields[b"1"]) for _, fields in redis.xrange(f"{queue.prefix}events")]


def floor(redis, queue):
    return int(redis.hget(f"{queue.prefix}meta", "floor"))


@pytest.mark.parametrize("step_ms", [1, 1_000, 60_000])
def test_step_back_of_up_to_a_minute_is_absorbed(queue, redis, at, end, step_ms):
    queue.enqueue(b"v", mid="m", now=at(0))
    [held] = queue.dequeue(lease=5, now=at(0)).messages

    assert queue.dequeue(now=at(-step_ms)).messages == []
    assert queue.extend([(held.mid, held.token)], 5, now=at(-step_ms)) == [True]

    assert queue.status("m", now=at(-step_ms)).lock_expires_at == at(5_000)
    assert end(queue, held, now=at(-step_ms)) == "ok"
    [done] = events(redis, queue)
    assert done.finished_at == at(0)
    assert floor(redis, queue) == at(0)


def test_larger_step_back_rebases_and_says_so(queue, redis, at):
    queue.enqueue(b"v", mid="m", now=at(0))
    queue.dequeue(lease=5, now=at(0))

    queue.dequeue(lease=5, now=at(-60_001))

    assert floor(redis, queue) == at(-60_001)
    [jump] = events(redis, queue)
    assert (jump.kind, jump.finished_at, jump.error) == ("clock_jump", at(-60_001), "60001")
    queue.dequeue(now=at(-60_000))
    assert len(events(redis, queue)) == 1


def test_larger_step_back_clamps_live_locks_on_the_walk(queue, at):
    hour = 3_600_000
    queue.enqueue_many([(f"m{i}", b"") for i in range(250)], now=at(hour))
    queue.dequeue(250, lease=5, now=at(hour))

    for step in range(5):
        queue.admin.collect(100, now=at(step))

    expiries = {queue.status(f"m{i}", now=at(10)).lock_expires_at for i in range(250)}
    assert max(expiries) <= at(4 + 5_000)
    assert min(expiries) >= at(5_000)
    assert len(queue.dequeue(1, now=at(5_100)).messages) == 1


def test_lock_longer_than_the_lease_survives_the_clamp(queue, at):
    queue.enqueue(b"v", mid="long", lease=600, now=at(0))
    queue.enqueue(b"v", mid="short", now=at(0))
    queue.dequeue(2, lease=5, now=at(0))

    queue.admin.collect(now=at(1))

    assert queue.status("long", now=at(1)).lock_expires_at == at(600_000)
    assert queue.status("short", now=at(1)).lock_expires_at == at(5_000)


def test_rest_begun_before_a_step_back_does_not_last_until_the_old_time(queue, redis, at):
    hour = 3_600_000
    assert queue.dequeue(now=at(hour)).poll_after_ms > 0
    # As the server's own clock does it: the flag's expiry is an hour away as well.
    redis.persist(f"{queue.prefix}eoq-backoff?")
    queue.enqueue(b"v", mid="m", delay=0.001, now=at(0))
    redis.set(f"{queue.prefix}eoq-backoff?", at(hour + 20))

    assert [m.mid for m in queue.dequeue(now=at(10)).messages] == ["m"]


def test_messages_are_never_early_when_the_clock_steps(queue, at):
    queue.enqueue(b"v", mid="m", delay=10, now=at(0))
    for now in (at(5_000), at(-3_600_000), at(0), at(9_999)):
        assert queue.dequeue(now=now).messages == []
    assert [m.mid for m in queue.dequeue(now=at(10_000)).messages] == ["m"]


def test_forward_jump_hands_over_and_refuses_the_late_holder(queue, at, end):
    queue.enqueue(b"v", mid="m", now=at(0))
    [a] = queue.dequeue(lease=5, now=at(0)).messages
    [b] = queue.dequeue(lease=5, now=at(3_600_000)).messages

    assert end(queue, a, now=at(3_600_001)) == "stale"
    assert end(queue, b, now=at(1)) == "ok"


def test_floor_never_falls_through_small_steps(queue, redis, at):
    floors = []
    for now in (0, 50, 20, 100, -100, 99, 101):
        queue.admin.collect(now=at(now))
        floors.append(floor(redis, queue))
    assert floors == sorted(floors)


def test_reading_the_state_does_not_move_the_floor(queue, at, facts):
    queue.enqueue(b"v", mid="m", now=at(0))
    before = facts()
    queue.status("m", now=at(5_000))
    queue.admin.content(now=at(5_000))
    queue.admin.counts()
    queue.admin.fsck()
    assert facts() == before


def test_clock_of_the_client_is_never_read(queue, redis):
    with freeze_time("2099-01-01", tick=True):
        queue.enqueue(b"v", mid="m", delay=30)
        [not_before] = [queue.status("m").not_before]
        queue.enqueue(b"w", mid="n")
        [held] = queue.dequeue(lease=20).messages
        queue.finish([], dequeue=1)

    seconds, _ = redis.time()
    assert 1_000 * (seconds - 600) < not_before < 1_000 * (seconds + 31)
    assert 1_000 * (seconds - 600) < held.lock_expires_at < 1_000 * (seconds + 21)
    assert floor(redis, queue) < 1_000 * (seconds + 1)
