"""Upkeep: promotion, recovery and collection progress whatever else happens, and leave nothing."""

from __future__ import annotations

import random

import pytest

from jobq.queue.types import Counts, Ending


def busy(queue, at, start_ms, steps, limit=1):
    """Enqueue one message for each dequeued message, so ready is never empty. -> mids in order"""
    seen, endings = [], []
    for step in range(steps):
        now = at(start_ms + step)
        queue.enqueue_many([(f"busy{start_ms}-{step}-{i}", b"") for i in range(limit)], now=now)
        messages = queue.finish(endings, dequeue=limit, now=now).dequeued.messages
        assert messages
        endings = [Ending(mid=m.mid, token=m.token) for m in messages]
        seen += [m.mid for m in messages]
    queue.finish(endings, now=at(start_ms + steps))
    return seen


def test_due_messages_are_promoted_beside_a_full_ready_list(queue, at):
    queue.enqueue_many([(f"due{i}", b"") for i in range(200)], delay=0.005, now=at(0))
    queue.enqueue_many([b""] * 50, now=at(0))

    seen = busy(queue, at, 10, 400)

    assert len({f"due{i}" for i in range(200)} & set(seen)) == 200
    assert queue.admin.counts().ready > 0


def test_expired_locks_are_recovered_beside_a_full_ready_list(queue, at):
    queue.enqueue_many([(f"lost{i}", b"") for i in range(100)], now=at(0))
    queue.dequeue(100, lease=0.005, now=at(0))
    queue.enqueue_many([b""] * 50, now=at(0))

    seen = busy(queue, at, 10, 300)

    assert sum(mid[:4] == "lost" and len(mid) < 8 for mid in seen) == 100
    assert queue.admin.counts().ready > 0


@pytest.mark.parametrize("limit", [1, 10, 100])
def test_done_messages_are_collected_beside_a_full_ready_list(queue, at, limit):
    queue.enqueue_many([b""] * 50, now=at(0))
    most = 0
    for part in range(20):
        busy(queue, at, 100 * part, 10, limit)
        most = max(most, queue.admin.counts().done)
    assert most <= 4 * limit + 20


def test_dead_holders_are_found_behind_a_long_circle_of_live_ones(queue, at):
    queue.enqueue_many([(f"live{i}", b"") for i in range(2_000)], now=at(0))
    for _ in range(2):
        queue.dequeue(1_000, lease=3600, now=at(0))
    queue.enqueue(b"", mid="lost", now=at(0))
    queue.dequeue(lease=0.005, now=at(0))
    queue.enqueue_many([b""] * 50, now=at(0))

    assert "lost" in busy(queue, at, 10, 2_000 // 10 + 60)


def test_collect_alone_promotes_recovers_and_collects(queue, at, end):
    queue.enqueue(b"", mid="due", delay=1, now=at(0))
    queue.enqueue_many([("lost", b""), ("done", b"")], now=at(0))
    _, done = queue.dequeue(2, lease=1, now=at(0)).messages
    end(queue, done, now=at(1))

    assert queue.admin.collect(now=at(1_000)) == (0, 0)

    counts = queue.admin.counts()
    assert (counts.messages, counts.ready, counts.done) == (2, 2, 0)


def test_dry_dequeues_alone_do_the_same(queue, at, end):
    queue.enqueue(b"", mid="due", delay=1, now=at(0))
    queue.enqueue_many([("lost", b""), ("done", b"")], now=at(0))
    _, done = queue.dequeue(2, lease=1, now=at(0)).messages
    end(queue, done, now=at(1))

    assert sorted(m.mid for m in queue.dequeue(1, now=at(1_000)).messages) == ["due"]
    assert [m.mid for m in queue.dequeue(5, now=at(1_001)).messages] == ["lost"]
    assert queue.admin.counts().done == 0


def test_dedupe_that_is_over_is_collected(queue, at, end, leftovers):
    for i in range(150):
        queue.enqueue(b"", mid=f"m{i}", until=1, now=at(0))
    for message in queue.dequeue(150, now=at(0)).messages:
        end(queue, message, now=at(0))
    assert queue.admin.counts().deduped == 150

    for step in range(3):
        queue.admin.collect(now=at(1_000 + step))

    assert queue.admin.counts()[:4] == (0, 0, 0, 0)
    assert leftovers() == set()


def test_counts_equal_a_recount_along_a_random_life(queue, redis, at):
    rng = random.Random(7)
    for now in live_at_random(queue, rng, at, 150):
        if rng.random() < 0.2:
            counts = queue.admin.counts()
            ready = list(queue.admin.content("ready", limit=1_000, now=now).entries)
            due = list(queue.admin.content("due", limit=1_000, now=now).entries)
            circle = list(queue.admin.content("circle", limit=1_000, now=now).entries)
            assert counts.ready == len(ready)
            assert counts.circle == len(circle)
            assert counts.delayed + counts.deduped == len(due)
            assert counts.messages == len(ready) + len(due) + len(circle)
            assert counts.done == sum(e.status.startswith("done") for e in circle)
            assert counts.locked == len(circle) - counts.done
            assert queue.admin.fsck() == []


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_left_after_a_mixed_life_and_a_drain(queue, at, leftovers, seed):
    rng = random.Random(seed)
    *_, now = live_at_random(queue, rng, at, 300)
    for _ in range(200):
        now += 2_000
        messages = queue.dequeue(50, now=now, crash_limit=0).messages
        queue.finish([Ending(mid=m.mid, token=m.token) for m in messages], now=now)
        queue.admin.collect(now=now, crash_limit=0)
        if not queue.admin.counts().messages:
            break
    queue.admin.purge(*(dead.dead_id for dead in queue.admin.dead(limit=1_000)))

    assert queue.admin.counts() == Counts(*(0,) * 9, paused=False)
    assert leftovers() == set()
    assert queue.admin.fsck() == []


def live_at_random(queue, rng, at, steps):
    """Any verb on any of thirty mids; yields the time after each step."""
    held: dict[str, str] = {}
    now = at(0)
    outcomes = ["done", "retry", "dead", "crashed", "snooze", "release", "expired"]
    for _ in range(steps):
        now += rng.choice([0, 1, 50, 900])
        mid = f"m{rng.randrange(30)}"
        conflict = rng.choice(("skip", "replace", "requeue"))
        match rng.randrange(9):
            case 0 | 1:
                delay = rng.choice([None, 0, 1])
                until = rng.choice([None, "start", 1])
                queue.enqueue(
                    b"v", mid=mid, delay=delay, until=until, on_conflict=conflict, now=now
                )
            case 2 | 3:
                got = queue.dequeue(rng.randrange(1, 6), lease=0.8, now=now).messages
                held.update((m.mid, m.token) for m in got)
            case 4 | 5 if held:
                mid = rng.choice(list(held))
                outcome = rng.choice(outcomes)
                backoff = rng.choice([None, 0, 0.7])
                ending = Ending(mid=mid, token=held.pop(mid), outcome=outcome, backoff=backoff)
                queue.finish([ending], dequeue=0, now=now)
            case 6:
                queue.cancel(mid, now=now)
            case 7:
                queue.extend(list(held.items()), 0.8, now=now)
                queue.admin.collect(rng.randrange(1, 20), now=now)
            case 8:
                queue.admin.revive(*(dead.dead_id for dead in queue.admin.dead(limit=2)), now=now)
        yield now
