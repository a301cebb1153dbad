"""Idling: dry dequeues rest longer and longer, and whatever makes work wakes one child."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from jobq.errors import ConfigError
from jobq.queue.types import Ending


@pytest.fixture
def eoq(queue, redis):
    """Whether eoq-backoff? is set."""
    return lambda: bool(redis.exists(f"{queue.prefix}eoq-backoff?"))


def run_dry(queue, redis, at_ms):
    """A dequeue that finds nothing; then no marker is left and everybody rests."""
    dry = queue.dequeue(now=at_ms)
    assert dry.messages == []
    redis.delete(queue.wake_key)
    # The flag lives by the server's clock, a few ms; the test's clock is frozen.
    redis.set(f"{queue.prefix}eoq-backoff?", at_ms + dry.poll_after_ms)
    return dry.poll_after_ms


@pytest.mark.parametrize("has_keys", [False, True])
def test_dry_dequeues_rest_longer_and_longer_up_to_half_a_minute(queue, redis, at, has_keys):
    if has_keys:
        queue.enqueue(b"v", key="a", delay=3_600, now=at(0))
    sleeps = [queue.dequeue(now=at(31_000 * i)).poll_after_ms for i in range(14)]

    assert sleeps[0] <= 20
    assert all(b >= a for a, b in pairwise(sleeps))
    assert all(b <= 2 * a for a, b in pairwise(sleeps))
    assert sleeps[-1] == 30_000
    # Others also rest until then.
    assert int(redis.get(f"{queue.prefix}eoq-backoff?")) == at(31_000 * 13 + 30_000)


def test_rest_is_two_seconds_at_most_while_the_circle_holds_anything(queue, at):
    queue.enqueue(b"v", mid="m", now=at(0))
    queue.dequeue(lease=3600, now=at(0))

    sleeps = [queue.dequeue(now=at(3_000 * i)).poll_after_ms for i in range(1, 14)]

    assert max(sleeps) == sleeps[-1] == 2_000


@pytest.mark.parametrize("due_ms", [1, 700, 1_999, 29_000])
def test_rest_never_lasts_past_the_earliest_due(queue, at, due_ms):
    for i in range(14):
        queue.dequeue(now=at(31_000 * i))
    now = at(31_000 * 14)
    queue.enqueue_many([b"", b""], delay=3_600, now=now)
    queue.enqueue(b"", delay=due_ms / 1_000, now=now)

    poll_after_ms = queue.dequeue(now=now).poll_after_ms

    assert 0 < poll_after_ms <= due_ms
    assert len(queue.dequeue(now=now + due_ms).messages) == 1


def test_rest_is_told_to_every_other_caller_unwritten(queue, redis, at, eoq, facts):
    for i in range(13):
        queue.dequeue(now=at(31_000 * (i - 13)))
    first = queue.dequeue(now=at(0)).poll_after_ms
    assert 0 < redis.pttl(f"{queue.prefix}eoq-backoff?") <= first == 30_000
    redis.persist(f"{queue.prefix}eoq-backoff?")
    before = facts()
    runs = redis.get(f"{queue.prefix}ndry-runs")

    other = queue.dequeue(now=at(first - 5))

    assert other.poll_after_ms == 5
    assert facts() == before
    assert redis.get(f"{queue.prefix}ndry-runs") == runs == b"12"


def test_hand_out_forgets_the_dry_runs(queue, redis, at):
    for i in range(8):
        queue.dequeue(now=at(31_000 * i))
    queue.enqueue(b"v", now=at(300_000))
    assert queue.dequeue(now=at(300_000)).messages
    assert not redis.exists(f"{queue.prefix}ndry-runs")
    assert queue.dequeue(now=at(300_001)).poll_after_ms <= 20


# calls that make a message ready, or bring the earliest due time forward; each gets a queue with one
# message held, one due in an hour, one done under a dedupe backoff and one dead
WAKING: dict[str, Any] = {
    "enqueue": lambda q, held, now: q.enqueue(b"", now=now),
    "enqueue, due first": lambda q, held, now: q.enqueue(b"", delay=60, now=now),
    "enqueue, shortened": lambda q, held, now: q.enqueue(
        b"", mid="due", on_conflict="replace", delay=60, now=now
    ),
    "enqueue, due now": lambda q, held, now: q.enqueue(
        b"", mid="due", on_conflict="replace", delay=0, now=now
    ),
    "enqueue, done before": lambda q, held, now: (
        q.finish([Ending(mid="held", token=held.token)], now=now),
        q.enqueue(b"", mid="held", on_conflict="requeue", now=now),
    ),
    "enqueue under an expired lock": lambda q, held, now: q.enqueue(
        b"", mid="held", on_conflict="replace", now=now + 60_000
    ),
    "retry": lambda q, held, now: q.finish(
        [Ending(mid="held", token=held.token, outcome="retry")], now=now
    ),
    "retry, due first": lambda q, held, now: q.finish(
        [Ending(mid="held", token=held.token, outcome="retry", backoff=0.5)], now=now
    ),
    "crashed": lambda q, held, now: q.finish(
        [Ending(mid="held", token=held.token, outcome="crashed")], now=now
    ),
    "release": lambda q, held, now: q.release([("held", held.token)], now=now),
    "newer content": lambda q, held, now: (
        q.enqueue(b"", mid="held", on_conflict="requeue", now=now),
        q.finish([Ending(mid="held", token=held.token)], now=now),
    ),
    "promote": lambda q, held, now: q.admin.collect(now=now + 3_600_000),
    "recover": lambda q, held, now: q.admin.collect(now=now + 60_000),
    "revive": lambda q, held, now: q.admin.revive(q.admin.dead()[0].dead_id, now=now),
    "revive, due first": lambda q, held, now: q.admin.bin("op").revive(
        (q.admin.dead()[0].dead_id, now + 9), now=now
    ),
    "put_back": lambda q, held, now: q.admin.bin("other").put_back("waiting", "gone", now=now),
    "run_now": lambda q, held, now: q.admin.run_now("due", now=now),
    "reschedule, due first": lambda q, held, now: q.admin.reschedule(
        [("due", "", now + 9)], now=now
    ),
    "resume": lambda q, held, now: q.admin.resume(),
}


@pytest.fixture
def asleep(queue, redis, at):
    """Return whether the call wakes; see WAKING; every child sleeps."""
    queue.enqueue_many([("dead", b""), ("deduped", b""), ("held", b"")], now=at(0))
    dead, deduped, held = queue.dequeue(3, lease=60, now=at(0)).messages
    endings = [
        Ending(mid="dead", token=dead.token, outcome="dead"),
        Ending(mid="deduped", token=deduped.token, backoff=7200),
    ]
    queue.finish(endings, now=at(0))
    queue.enqueue_many([("due", b""), ("gone", b"")], delay=3_600, now=at(0))
    queue.admin.run_now("gone", now=at(0))
    queue.admin.bin("other").take_out(("gone", ""), now=at(0))
    run_dry(queue, redis, at(0))
    return held


@pytest.mark.parametrize("marker", [0, 1])
@pytest.mark.parametrize("verb", WAKING.values(), ids=WAKING)
def test_verb_that_makes_work_ends_the_rest_and_leaves_one_marker(
    queue, redis, asleep, at, eoq, verb, marker
):
    if marker:
        redis.lpush(queue.wake_key, "1")
    assert eoq()

    verb(queue, asleep, at(1))

    assert not eoq()
    assert redis.llen(queue.wake_key) == 1


QUIET: dict[str, Any] = {
    "enqueue, exists": lambda q, held, now: q.enqueue(b"", mid="due", now=now),
    "enqueue, due later": lambda q, held, now: q.enqueue(b"", delay=7_000, now=now),
    "requeued": lambda q, held, now: q.enqueue(b"", mid="held", on_conflict="requeue", now=now),
    "done": lambda q, held, now: q.finish([Ending(mid="held", token=held.token)], now=now),
    "stale": lambda q, held, now: q.finish([Ending(mid="held", token="x")], now=now),
    "extend": lambda q, held, now: q.extend([("held", held.token)], now=now),
    "cancel": lambda q, held, now: q.cancel("due", now=now),
    "collect": lambda q, held, now: q.admin.collect(now=now),
    "status": lambda q, held, now: q.status("held", now=now),
    "pause": lambda q, held, now: q.admin.pause(),
}


@pytest.mark.parametrize("verb", QUIET.values(), ids=QUIET)
def test_verb_that_makes_no_work_lets_children_sleep(queue, redis, asleep, at, eoq, verb):
    verb(queue, asleep, at(1))
    assert eoq()
    assert redis.llen(queue.wake_key) == 0


@pytest.mark.parametrize("together", [False, True])
def test_dequeue_that_leaves_ready_messages_wakes_the_next_child(queue, redis, at, together):
    queue.enqueue_many([b"", b"", b""], now=at(0))
    left = []
    for _ in range(3):
        redis.delete(queue.wake_key)
        if together:
            queue.finish([], dequeue=1, now=at(1))
        else:
            queue.dequeue(now=at(1))
        left.append(redis.llen(queue.wake_key))
    assert left == [1, 1, 0]


def test_marker_lost_with_a_dead_child_is_replaced_by_collect(queue, redis, at):
    queue.enqueue(b"v", now=at(0))
    assert redis.lpop(queue.wake_key) == b"1"
    queue.admin.collect(now=at(1))
    assert redis.llen(queue.wake_key) == 1


def test_paused_queue_hands_nothing_out_but_keeps_itself(queue, redis, asleep, at, end, eoq):
    queue.enqueue(b"", mid="expiring", now=at(1))
    queue.dequeue(lease=1, now=at(1))
    queue.enqueue(b"", mid="soon", delay=1, now=at(1))
    end(queue, asleep, now=at(2))
    queue.enqueue(b"", mid="ready", now=at(2))
    queue.admin.pause()

    dry = queue.dequeue(10, now=at(2_000))

    assert dry.messages == []
    assert dry.paused
    assert 0 < dry.poll_after_ms <= 30_000
    counts = queue.admin.counts()
    assert counts.paused
    assert (counts.ready, counts.locked, counts.done, counts.circle) == (3, 0, 0, 0)
    assert queue.finish([], dequeue=5, now=at(40_000)).dequeued.messages == []

    queue.admin.resume()
    assert not eoq()
    got = queue.dequeue(10, now=at(40_001)).messages
    assert {m.mid for m in got} == {"ready", "soon"}
    assert [m.mid for m in queue.dequeue(10, now=at(40_002)).messages] == ["expiring"]


def test_pause_for_a_time_ends_by_itself(queue, redis, at):
    queue.enqueue(b"", mid="m", now=at(0))
    assert queue.admin.pause("30s", now=at(0)) == at(30_000)

    dry = queue.dequeue(now=at(1_000))
    assert (dry.messages, dry.paused) == ([], True)
    # Other callers rest at most until then, and so does who is told when the next message is due.
    assert dry.next_due_ms == 29_000
    late = queue.dequeue(now=at(29_999))
    assert (late.messages, late.poll_after_ms) == ([], 1)

    got = queue.dequeue(now=at(30_000))
    assert ([m.mid for m in got.messages], got.paused) == (["m"], False)
    assert redis.hmget(queue.prefix + "meta", "paused", "pause_ends") == [None, None]


def test_pause_for_a_time_wakes_who_rests_beyond_its_end(queue, redis, at, eoq):
    queue.admin.pause()
    # The flag lives by the server's clock: after 13 dry dequeues half a minute instead of 20 ms.
    rests = [queue.dequeue(now=at(31_000 * (i - 13))).poll_after_ms for i in range(14)]
    assert rests[-1] == 30_000 and eoq()
    redis.delete(queue.wake_key)
    queue.admin.pause(0.02, now=at(0))
    assert not eoq() and redis.llen(queue.wake_key) == 1
    assert 0 < queue.dequeue(now=at(1)).poll_after_ms <= 19


def test_later_pause_replaces_the_end_of_an_earlier_one(queue, at):
    queue.admin.pause("1s", now=at(0))
    queue.admin.pause()
    assert queue.dequeue(now=at(60_000)).paused
    assert queue.admin.sample().pause_ends == 0 and queue.admin.counts().paused
    queue.admin.resume()
    assert not queue.admin.counts().paused


def test_counts_say_when_a_pause_ends_and_that_it_has(queue):
    now = queue.client.clock_ms()
    ends = queue.admin.pause("1h")
    assert now + 3_600_000 <= ends <= now + 3_700_000
    assert queue.admin.sample().pause_ends == ends and queue.admin.counts().paused
    queue.admin.pause(1, now=now - 5_000)
    assert queue.admin.sample().pause_ends == 0 and not queue.admin.counts().paused


@pytest.mark.parametrize("span", [0, -1, "1w2", 1e12])
def test_pause_for_no_span_is_refused_and_changes_nothing(queue, span):
    with pytest.raises(ConfigError):
        queue.admin.pause(span)
    assert not queue.admin.counts().paused
