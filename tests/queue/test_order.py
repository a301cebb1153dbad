"""Order: first in, first out among ready messages; returned messages have a separate place."""

from __future__ import annotations

import pytest

from jobq.queue.types import Ending


def mids(dequeued):
    return [m.mid for m in dequeued.messages]


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_ready_messages_go_out_in_the_order_they_came(queue, at, limit):
    queue.enqueue_many([(f"m{i:02}", b"") for i in range(10)], now=at(0))
    for i in range(10, 20):
        queue.enqueue(b"", mid=f"m{i}", now=at(0))
    seen = []
    while got := queue.dequeue(limit, now=at(1)).messages:
        seen += [m.mid for m in got]
    assert seen == [f"m{i:02}" for i in range(20)]


def test_due_messages_go_out_in_the_order_of_their_times(queue, at):
    for mid, delay in (("c", 3), ("a", 1), ("b", 2)):
        queue.enqueue(b"", mid=mid, delay=delay, now=at(0))
    queue.enqueue(b"", mid="ready", now=at(0))
    assert mids(queue.dequeue(10, now=at(5_000))) == ["ready", "a", "b", "c"]


@pytest.mark.parametrize("by_finish", [False, True])
def test_released_messages_go_to_the_front_in_their_order(queue, at, by_finish):
    queue.enqueue_many([(mid, b"") for mid in "abcd"], now=at(0))
    held = queue.dequeue(3, now=at(0)).messages
    if by_finish:
        endings = [Ending(mid=m.mid, token=m.token, outcome="release") for m in held]
        assert queue.finish(endings, now=at(1)).replies == ["ok"] * 3
    else:
        assert queue.release([(m.mid, m.token) for m in held], now=at(1)) == [True] * 3

    again = queue.dequeue(4, now=at(2))

    assert mids(again) == ["a", "b", "c", "d"]
    assert {m.attempt for m in again.messages} == {1}


def test_first_crash_goes_to_the_front_later_ones_to_the_back(queue, at, end):
    queue.enqueue_many([(mid, b"") for mid in "abc"], now=at(0))
    [a] = queue.dequeue(now=at(0)).messages
    end(queue, a, "crashed", now=at(1))
    [a] = queue.dequeue(now=at(2)).messages
    assert (a.mid, a.ncrashes) == ("a", 1)
    end(queue, a, "crashed", now=at(3))
    assert mids(queue.dequeue(2, now=at(4))) == ["b", "c"]
    assert mids(queue.dequeue(2, now=at(5))) == ["a"]


@pytest.mark.parametrize("outcome", ["retry", "snooze"])
def test_retried_message_goes_to_the_back(queue, at, end, outcome):
    queue.enqueue_many([(mid, b"") for mid in "abc"], now=at(0))
    [a] = queue.dequeue(now=at(0)).messages
    end(queue, a, outcome, now=at(1))
    assert mids(queue.dequeue(3, now=at(2))) == ["b", "c", "a"]


def test_recovered_message_goes_to_the_back(queue, at):
    queue.enqueue_many([(mid, b"") for mid in "abc"], now=at(0))
    queue.dequeue(lease=1, now=at(0))
    queue.admin.collect(now=at(1_000))
    assert mids(queue.dequeue(3, now=at(1_001))) == ["b", "c"]
    assert mids(queue.dequeue(3, now=at(1_002))) == ["a"]


def test_newer_content_goes_to_the_back(queue, at, end):
    queue.enqueue_many([(mid, b"1") for mid in "ab"], now=at(0))
    [a] = queue.dequeue(now=at(0)).messages
    queue.enqueue(b"2", mid="a", on_conflict="requeue", now=at(1))
    end(queue, a, now=at(2))
    assert [(m.mid, m.content) for m in queue.dequeue(2, now=at(3)).messages] == [
        ("b", b"1"),
        ("a", b"2"),
    ]


def test_update_keeps_the_place(queue, at):
    queue.enqueue_many([(mid, b"1") for mid in "abc"], now=at(0))
    queue.enqueue(b"2", mid="a", on_conflict="replace", now=at(1))
    got = queue.dequeue(3, now=at(2)).messages
    assert [(m.mid, m.content) for m in got] == [("a", b"2"), ("b", b"1"), ("c", b"1")]


def test_message_with_a_crash_goes_out_alone(queue, at, end):
    queue.enqueue_many([(mid, b"") for mid in "abcde"], now=at(0))
    held = {m.mid: m for m in queue.dequeue(3, now=at(0)).messages}
    end(queue, held["b"], "crashed", now=at(1))
    queue.release([("a", held["a"].token)], now=at(2))
    queue.release([("c", held["c"].token)], now=at(2))

    replies = [mids(queue.dequeue(5, now=at(3 + i))) for i in range(3)]

    assert replies == [["c", "a"], ["b"], ["d", "e"]]


def test_cancelled_message_in_the_middle_is_passed_over(queue, at):
    queue.enqueue_many([(mid, b"") for mid in "abcd"], now=at(0))
    queue.cancel("a", "c", now=at(1))
    assert mids(queue.dequeue(2, now=at(2))) == ["b", "d"]


def test_cancelled_and_enqueued_again_message_goes_out_once(queue, at):
    queue.enqueue_many([(mid, b"1") for mid in "abc"], now=at(0))
    queue.cancel("b", now=at(1))
    assert queue.enqueue(b"2", mid="b", now=at(2)).action == "added"
    got = queue.dequeue(10, now=at(3)).messages
    assert sorted((m.mid, m.content) for m in got) == [("a", b"1"), ("b", b"2"), ("c", b"1")]
