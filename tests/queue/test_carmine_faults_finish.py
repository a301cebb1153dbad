"""Carmine's faults of late finishes and lost holders: nobody but the holder ends an attempt."""

from __future__ import annotations

import pytest

from jobq.errors import LeaseLostError

LEASE = 1_000


@pytest.fixture
def two_holders(queue, at):
    """A's lock on m expired, B holds it now."""
    queue.enqueue(b"v1", mid="m", now=at(0))
    [a] = queue.dequeue(lease=LEASE / 1000, now=at(0)).messages
    [b] = queue.dequeue(lease=LEASE / 1000, now=at(LEASE)).messages
    assert (a.mid, b.mid, b.attempt, b.ncrashes) == ("m", "m", 2, 1)
    return a, b


def test_b01_late_finish_after_collection_changes_nothing(queue, two_holders, at, end, facts):
    """A late ack after GC left an orphan in done; the mid's next message was collected unrun."""
    a, b = two_holders
    assert end(queue, b, now=at(1_100)) == "ok"
    queue.admin.collect(now=at(1_200))
    before = facts()

    assert end(queue, a, now=at(1_300)) == "stale"

    assert facts() == before
    assert queue.enqueue(b"v2", mid="m", now=at(1_400)).action == "added"
    assert [m.content for m in queue.dequeue(now=at(1_500)).messages] == [b"v2"]


@pytest.mark.parametrize("outcome", ["done", "retry", "dead", "crashed"])
def test_b02_late_finish_leaves_the_next_generation_alone(
    queue, two_holders, at, end, facts, outcome
):
    """ABA: a late ack of generation 1 marked the queued generation 2 of the mid as done."""
    a, b = two_holders
    end(queue, b, now=at(1_100))
    queue.admin.collect(now=at(1_200))
    queue.enqueue(b"v2", mid="m", now=at(1_300))
    before = facts()

    assert end(queue, a, outcome, now=at(1_400)) == "stale"

    assert facts() == before
    [second] = queue.dequeue(now=at(1_500)).messages
    assert (second.content, second.attempt) == (b"v2", 1)
    assert second.generation not in (a.generation, b.token)


@pytest.mark.parametrize(
    "outcome", ["done", "retry", "dead", "crashed", "snooze", "release", "expired"]
)
def test_b03_late_finish_does_not_release_the_new_holders_lock(
    queue, two_holders, at, end, outcome
):
    """A late ack of the first holder freed the second one's lock: a third got the message."""
    a, b = two_holders

    assert end(queue, a, outcome, now=at(1_100)) == "stale"

    assert queue.dequeue(now=at(1_200)).messages == []
    assert queue.extend([(b.mid, b.token)], LEASE / 1000, now=at(1_300)) == [True]
    assert queue.status("m", now=at(1_300)).lock_at == at(1_300 + LEASE)


@pytest.mark.parametrize("late_first", [True, False])
def test_b04_late_success_does_not_undo_the_holders_retry(queue, two_holders, at, end, late_first):
    """A late success put the mid among the done, so the live holder's retry was collected."""
    a, b = two_holders

    if late_first:
        assert end(queue, a, now=at(1_050)) == "stale"
    assert end(queue, b, "retry", backoff=0.5, now=at(1_100)) == "ok"
    if not late_first:
        assert end(queue, a, now=at(1_150)) == "stale"

    assert queue.dequeue(now=at(1_599)).messages == []
    [third] = queue.dequeue(now=at(1_600)).messages
    assert (third.mid, third.attempt) == ("m", 3)


def test_b13_requeued_message_starts_without_the_old_lock(queue, at, end):
    """Requeue kept the old lock: the new run waited for it, or a late HDEL freed its own."""
    queue.enqueue(b"v1", mid="m", lease=3600, now=at(0))
    [a] = queue.dequeue(now=at(0)).messages
    assert queue.enqueue(b"v2", mid="m", can_requeue=True, now=at(10)).action == "requeued"

    assert end(queue, a, now=at(20)) == "ok"
    [b] = queue.dequeue(lease=LEASE / 1000, now=at(30)).messages
    assert (b.content, b.attempt, b.lock_at) == (b"v2", 1, at(30 + LEASE))

    assert end(queue, a, now=at(40)) == "stale"
    assert queue.status("m", now=at(40)).word == "locked"


def test_b14_clear_refuses_the_outcome_of_what_was_running(queue, redis, at, end, facts):
    """Clear was fifteen DELs and no fence: a later ack made the mid's next message vanish."""
    queue.enqueue(b"v1", mid="m", now=at(0))
    [a] = queue.dequeue(now=at(0)).messages
    redis.config_resetstat()
    assert queue.admin.clear(now=at(10)) == 1
    calls = redis.info("commandstats")
    assert "cmdstat_del" not in calls
    assert (
        calls["cmdstat_evalsha"]["calls"] - calls["cmdstat_evalsha"].get("rejected_calls", 0) <= 2
    )

    assert queue.enqueue(b"v2", mid="m", now=at(20)).action == "added"
    before = facts()
    assert end(queue, a, now=at(30)) == "stale"
    assert facts() == before
    [b] = queue.dequeue(now=at(40)).messages
    assert b.content == b"v2"
    assert b.fence > a.fence


def test_b21_dequeue_whose_reply_was_lost_hands_the_same_messages_again(queue, redis, at):
    """A lost reply left a leased message that nobody handled for an hour."""
    from jobq.client.numbered_calls import Caller

    queue.enqueue_many([("a", b"1"), ("b", b"2")], now=at(0))
    caller = Caller()
    lost = queue.dequeue(2, caller=caller, now=at(0))
    caller.number -= 1

    again = queue.dequeue(2, caller=caller, now=at(100))

    assert again == lost
    assert redis.lrange(f"{queue.prefix}mid-circle", 0, -1) == [b"a", b"b"]


def test_b21_closed_caller_tells_what_its_lost_reply_held(queue, at):
    """The same, when the caller is dead: its supervisor asks what it got, and gives it back."""
    from jobq.client.numbered_calls import Caller

    queue.enqueue_many([("a", b"1"), ("b", b"2")], now=at(0))
    caller = Caller()
    got = queue.dequeue(2, caller=caller, now=at(0)).messages

    holds = queue.close_caller(caller.id)

    assert holds == [(m.mid, m.token) for m in got]
    assert queue.release(holds, now=at(10)) == [True, True]
    assert [m.mid for m in queue.dequeue(2, now=at(20)).messages] == ["a", "b"]
    with pytest.raises(LeaseLostError, match="closed"):
        queue.dequeue(caller=caller, now=at(30))


def test_b22_lock_is_renewed_as_long_as_its_holder_runs(queue, at, end):
    """No renewal: a job longer than its lock always ran twice."""
    queue.enqueue(b"long", mid="m", now=at(0))
    [a] = queue.dequeue(lease=LEASE / 1000, now=at(0)).messages

    for elapsed in range(500, 5_001, 500):
        assert queue.extend([(a.mid, a.token)], LEASE / 1000, now=at(elapsed)) == [True]
        assert queue.dequeue(now=at(elapsed + 400)).messages == []

    assert end(queue, a, now=at(5_500)) == "ok"
    assert queue.admin.collect(now=at(5_600)) == (0, 0)
