"""The fence: who lost a message, in whatever way, can't change a byte of it."""

from __future__ import annotations

import pytest

from jobq.queue.types import Ending

LEASE = 1_000


def superseded(queue, held, at, end):
    assert queue.dequeue(lease=LEASE / 1000, now=at(LEASE)).messages


def recovered(queue, held, at, end):
    queue.admin.collect(now=at(LEASE))


def finished(queue, held, at, end):
    assert end(queue, held, now=at(10)) == "ok"


def retried(queue, held, at, end):
    assert end(queue, held, "retry", backoff=5, now=at(10)) == "ok"


def crashed(queue, held, at, end):
    assert end(queue, held, "crashed", now=at(10)) == "ok"


def dead(queue, held, at, end):
    assert end(queue, held, "dead", reason="no use", now=at(10)) == "ok"


def released(queue, held, at, end):
    assert queue.release([(held.mid, held.token)], now=at(10)) == [True]


def cancelled(queue, held, at, end):
    assert queue.cancel(held.mid, now=at(10)) == ["cancelled"]


def cleared(queue, held, at, end):
    assert queue.admin.clear(now=at(10)) == 1


def collected(queue, held, at, end):
    end(queue, held, now=at(10))
    queue.admin.collect(now=at(20))


def enqueued_anew(queue, held, at, end):
    collected(queue, held, at, end)
    assert queue.enqueue(b"v2", mid="m", now=at(30)).action == "added"


def handed_out_anew(queue, held, at, end):
    enqueued_anew(queue, held, at, end)
    assert queue.dequeue(lease=LEASE / 1000, now=at(40)).messages


def requeued(queue, held, at, end):
    queue.enqueue(b"v2", mid="m", on_conflict="requeue", now=at(10))
    assert end(queue, held, now=at(20)) == "ok"


def updated_and_recovered(queue, held, at, end):
    assert queue.enqueue(b"v2", mid="m", on_conflict="replace", now=at(LEASE)).action == "updated"
    queue.admin.collect(now=at(LEASE))


WAYS = [
    superseded, recovered, finished, retried, crashed, dead, released, cancelled, cleared,
    collected, enqueued_anew, handed_out_anew, requeued, updated_and_recovered,
]  # fmt: skip
OUTCOMES = ["done", "retry", "dead", "crashed", "snooze", "release", "expired"]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def lost(request, queue, at, end):
    """A hand-out whose right was lost, one way or another."""
    queue.enqueue(b"v1", mid="m", now=at(0))
    [held] = queue.dequeue(lease=LEASE / 1000, now=at(0)).messages
    request.param(queue, held, at, end)
    return held


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_finish_of_a_stale_attempt_changes_nothing(queue, redis, lost, at, end, facts, outcome):
    before = facts()

    late = {"backoff": 0.7, "reason": "late", "result": b"late", "result_ttl": 60}

    assert end(queue, lost, outcome, now=at(1_500), **late) == "stale"
    assert facts() == before
    assert not redis.exists(queue.result_key("m"))


def test_extend_by_a_stale_attempt_changes_nothing(queue, lost, at, facts):
    before = facts()
    assert queue.extend([("m", lost.token)], 60, now=at(1_500)) == [False]
    assert facts() == before


def test_release_by_a_stale_attempt_changes_nothing(queue, lost, at, facts):
    before = facts()
    assert queue.release([("m", lost.token)], now=at(1_500)) == [False]
    assert facts() == before


def test_progress_of_a_stale_attempt_changes_nothing(queue, lost, facts):
    before = facts()
    assert queue.progress("m", lost.token, "90 %") is False
    assert facts() == before


@pytest.mark.parametrize("token", ["", "x", "0"])
def test_made_up_token_holds_nothing_even_where_there_is_none(queue, at, facts, token):
    queue.enqueue(b"v", mid="m", now=at(0))
    before = facts()

    for mid in ("m", "unknown"):
        ending = Ending(mid=mid, token=token)
        assert queue.finish([ending], now=at(1)).replies == ["stale"]
        assert queue.extend([(mid, token)], now=at(1)) == [False]
        assert queue.release([(mid, token)], now=at(1)) == [False]
        assert queue.progress(mid, token, "x") is False

    assert facts() == before


def test_stale_endings_do_not_touch_the_good_ones_beside_them(queue, at):
    queue.enqueue_many([(f"m{i}", b"") for i in range(4)], now=at(0))
    held = queue.dequeue(4, now=at(0)).messages
    queue.cancel("m1", now=at(1))
    endings = [Ending(mid=m.mid, token=m.token) for m in held]

    replies = queue.finish([*endings, endings[0]], now=at(2)).replies

    assert replies == ["ok", "stale", "ok", "ok", "stale"]
    assert (queue.admin.counts().done, queue.admin.counts().deduped) == (3, 1)


def test_holder_whose_lock_ran_out_untaken_may_still_finish(queue, at, end):
    queue.enqueue(b"v", mid="m", now=at(0))
    [held] = queue.dequeue(lease=LEASE / 1000, now=at(0)).messages
    assert queue.status("m", now=at(5_000)).word == "queued"

    assert end(queue, held, now=at(5_000)) == "ok"

    assert queue.dequeue(now=at(5_001)).messages == []
    assert queue.admin.counts().messages == 0


def test_fence_numbers_only_ever_grow(queue, at, end):
    fences = []
    for cycle in range(30):
        queue.enqueue_many([(f"m{i}", b"") for i in range(3)], now=at(cycle), on_conflict="requeue")
        messages = queue.dequeue(3, now=at(cycle)).messages
        fences += [m.fence for m in messages]
        if cycle % 10 == 9:
            queue.admin.clear(now=at(cycle))
        else:
            for message in messages:
                end(queue, message, ["done", "retry", "release"][cycle % 3], now=at(cycle))

    assert fences == sorted(set(fences))
    assert len(fences) == 90


def test_tokens_of_two_hand_outs_never_agree(queue, at, end):
    queue.enqueue_many([(f"m{i}", b"") for i in range(3)], now=at(0))
    tokens = []
    for cycle in range(20):
        messages = queue.dequeue(3, now=at(cycle)).messages
        tokens += [m.token for m in messages]
        queue.release([(m.mid, m.token) for m in messages], now=at(cycle))

    assert len(set(tokens)) == len(tokens) == 60
