"""Scripts or keys that vanish under a running queue."""

from __future__ import annotations

from jobq.queue.types import Ending


def test_script_flush_between_calls_is_seen_by_nobody(queue, redis, at, end):
    calls = [
        lambda: queue.enqueue_many([(f"m{i}", b"") for i in range(3)], now=at(0)),
        lambda: queue.dequeue(2, now=at(1)),
        lambda: queue.finish([], dequeue=1, now=at(2)),
        lambda: queue.extend([("m0", "x")], now=at(3)),
        lambda: queue.release([("m0", "x")], now=at(3)),
        lambda: queue.progress("m0", "x", "half"),
        lambda: queue.cancel("m1", now=at(4)),
        lambda: queue.status("m1", now=at(5)),
        queue.admin.counts,
        queue.admin.content,
        queue.admin.dead,
        queue.admin.pause,
        queue.admin.resume,
        lambda: queue.admin.collect(now=at(6)),
        lambda: queue.admin.revive("m#x", now=at(7)),
        lambda: queue.admin.purge("m#x"),
        queue.admin.fsck,
        lambda: queue.end_session("x"),
        queue.admin.events_level,
        lambda: queue.admin.clear(now=at(8)),
    ]
    for call in calls:
        redis.script_flush()
        call()


def test_flushall_while_held_makes_late_calls_stale_and_creates_nothing(queue, redis, at, facts):
    queue.enqueue_many([("a", b""), ("b", b"")], now=at(0))
    a, b = queue.dequeue(2, now=at(0)).messages
    redis.flushall()

    late = Ending(
        mid="a", token=a.token, outcome="retry", backoff=0.005, result=b"", result_ttl=0.009
    )
    assert queue.finish([late], now=at(1)).replies == ["stale"]
    assert queue.extend([("b", b.token)], now=at(1)) == [False]
    assert queue.progress("b", b.token, "half") is False
    assert queue.release([("b", b.token)], now=at(1)) == [False]
    assert queue.cancel("a", "b", now=at(1)) == ["nil", "nil"]

    assert facts() == {}


def test_queue_works_on_after_flushall(queue, redis, at, end, leftovers):
    queue.enqueue(b"1", mid="m", now=at(0))
    [old] = queue.dequeue(now=at(0)).messages
    redis.flushall()

    assert queue.enqueue(b"2", mid="m", now=at(1)).action == "added"
    assert end(queue, old, now=at(2)) == "stale"
    [new] = queue.dequeue(now=at(3)).messages
    assert (new.content, new.attempt) == (b"2", 1)
    assert new.token != old.token
    assert end(queue, new, now=at(4)) == "ok"
    queue.admin.collect(now=at(5))
    assert leftovers() == set()


def test_ready_mid_whose_content_was_evicted_does_not_block_the_queue(queue, redis, at):
    queue.enqueue_many([("gone", b""), ("m", b"")], now=at(0))
    redis.hdel(f"{queue.prefix}messages", "gone")
    assert [m.mid for m in queue.dequeue(2, now=at(1)).messages] == ["m"]
