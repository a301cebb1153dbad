"""A numbered call made twice is one; a lower number or a closed caller is refused unwritten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from jobq.client.numbered_calls import Caller
from jobq.errors import LeaseLostError
from jobq.queue.types import Ending


@dataclass(frozen=True)
class Stage:
    """A queue with one of everything: held a and b, ready c and d, a dead one."""

    queue: Any
    held: list[Any]
    dead_id: str
    at: Callable[[int], int]

    def endings(self) -> list[Ending]:
        a, b = self.held
        return [
            Ending(mid="a", token=a.token, result=b"r", result_ttl=60),
            Ending(mid="b", token=b.token, outcome="retry", backoff=5),
            Ending(mid="c", token="made up"),
        ]

    def holds(self) -> list[tuple[str, str]]:
        return [(m.mid, m.token) for m in self.held]


@pytest.fixture
def stage(queue, at, end) -> Stage:
    queue.admin.events_level("all")
    queue.enqueue(b"x", mid="x", now=at(0))
    end(queue, queue.dequeue(now=at(0)).messages[0], "dead", now=at(1))
    queue.enqueue_many([(mid, mid.encode()) for mid in "abcd"], now=at(2))
    held = queue.dequeue(2, now=at(3)).messages
    queue.enqueue(b"gone", mid="gone", now=at(4))
    queue.admin.bin("other").take_out(("gone", ""), now=at(4))
    return Stage(queue, held, queue.admin.dead()[0].dead_id, at)


VERBS: dict[str, Callable[[Stage, Caller, int], Any]] = {
    "enqueue": lambda s, c, now: s.queue.enqueue(b"n", mid="new", caller=c, now=now),
    "enqueue, exists": lambda s, c, now: s.queue.enqueue(b"n", mid="c", caller=c, now=now),
    "enqueue, delayed": lambda s, c, now: s.queue.enqueue(
        b"n", mid="n", delay=9, caller=c, now=now
    ),
    "enqueue, updated": lambda s, c, now: s.queue.enqueue(
        b"n", mid="c", on_conflict="replace", caller=c, now=now
    ),
    "enqueue, requeued": lambda s, c, now: s.queue.enqueue(
        b"n", mid="a", on_conflict="requeue", caller=c, now=now
    ),
    "dequeue": lambda s, c, now: s.queue.dequeue(2, caller=c, now=now),
    "finish": lambda s, c, now: s.queue.finish(s.endings(), caller=c, now=now),
    "finish and dequeue": lambda s, c, now: s.queue.finish(
        s.endings(), dequeue=2, caller=c, now=now
    ),
    "crashed": lambda s, c, now: s.queue.finish(
        [Ending(mid="a", token=s.held[0].token, outcome="crashed", reason="x")], caller=c, now=now
    ),
    "release": lambda s, c, now: s.queue.release(s.holds(), caller=c, now=now),
    "cancel": lambda s, c, now: s.queue.cancel("a", "c", "none", caller=c, now=now),
    "revive": lambda s, c, now: s.queue.admin.revive(s.dead_id, "x#none", caller=c, now=now),
    "edit": lambda s, c, now: s.queue.admin.bin("op").edit(
        ("c", "", b"new"), ("none", "", b""), caller=c, now=now
    ),
    "take_out": lambda s, c, now: s.queue.admin.bin("op").take_out(
        ("c", ""), ("none", ""), caller=c, now=now
    ),
    "take_out, dead": lambda s, c, now: s.queue.admin.bin("op").take_out_dead(
        s.dead_id, caller=c, now=now
    ),
    "revive into the bin": lambda s, c, now: s.queue.admin.bin("op").revive(
        (s.dead_id, None), caller=c, now=now
    ),
    "put_back": lambda s, c, now: s.queue.admin.bin("other").put_back(
        "waiting", "gone", "none", caller=c, now=now
    ),
    "reschedule": lambda s, c, now: s.queue.admin.reschedule(
        [("c", "", now + 9_000), ("none", "", None)], caller=c, now=now
    ),
    "clear": lambda s, c, now: s.queue.admin.clear(caller=c, now=now),
}
every_verb = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)


@every_verb
def test_call_made_twice_is_made_once(stage, facts, verb):
    caller = Caller()
    first = verb(stage, caller, stage.at(10))
    after = facts()
    caller.number -= 1

    again = verb(stage, caller, stage.at(20))

    assert again == first
    assert facts() == after


@every_verb
def test_next_call_of_the_same_caller_is_a_new_one(stage, verb):
    caller = Caller()
    verb(stage, caller, stage.at(10))
    verb(stage, caller, stage.at(20))
    assert caller.number == 2


@every_verb
def test_lower_number_is_refused_unwritten(stage, facts, verb):
    caller = Caller()
    caller.number = 7
    stage.queue.cancel("none", caller=caller)
    caller.number = 6
    before = facts()

    with pytest.raises(LeaseLostError, match="rejected"):
        verb(stage, caller, stage.at(10))

    assert facts() == before


@every_verb
def test_call_that_arrives_after_its_caller_was_closed_is_refused_unwritten(stage, facts, verb):
    caller = Caller()
    assert stage.queue.end_session(caller.id) == []
    before = facts()

    for _ in range(2):
        with pytest.raises(LeaseLostError, match="closed"):
            verb(stage, caller, stage.at(10))

    assert facts() == before


@every_verb
def test_repeat_is_refused_once_the_caller_is_closed(stage, facts, verb):
    caller = Caller()
    verb(stage, caller, stage.at(10))
    stage.queue.end_session(caller.id)
    before = facts()
    caller.number -= 1

    with pytest.raises(LeaseLostError):
        verb(stage, caller, stage.at(20))

    assert facts() == before


def test_closing_twice_answers_the_same(stage, facts):
    caller = Caller()
    stage.queue.enqueue(b"v", mid="e", caller=caller, now=stage.at(10))
    got = stage.queue.dequeue(3, caller=caller, now=stage.at(20)).messages
    assert [m.mid for m in got] == ["c", "d", "e"]

    first = stage.queue.end_session(caller.id)
    after = facts()

    assert first == [(m.mid, m.token) for m in got]
    assert stage.queue.end_session(caller.id) == first
    assert facts() == after


def test_close_tells_only_what_is_still_held(stage, end):
    caller = Caller()
    c, d = stage.queue.dequeue(2, caller=caller, now=stage.at(10)).messages
    end(stage.queue, c, now=stage.at(20))
    assert stage.queue.end_session(caller.id) == [("d", d.token)]


def test_close_knows_what_a_finish_handed_out(stage):
    caller = Caller()
    handed = stage.queue.finish(
        stage.endings(), dequeue=2, caller=caller, now=stage.at(10)
    ).dequeued
    assert stage.queue.end_session(caller.id) == [(m.mid, m.token) for m in handed.messages]


@pytest.mark.parametrize("together", [False, True])
def test_repeat_hands_again_only_what_is_still_held(stage, end, together):
    caller = Caller()

    def call(now):
        if together:
            return stage.queue.finish(stage.endings(), dequeue=2, caller=caller, now=now).dequeued
        return stage.queue.dequeue(2, caller=caller, now=now)

    c, d = call(stage.at(10)).messages
    end(stage.queue, c, now=stage.at(20))
    caller.number -= 1

    assert call(stage.at(30)).messages == [d]


def test_repeat_reads_the_content_anew(stage):
    caller = Caller()
    c, d = stage.queue.dequeue(2, caller=caller, now=stage.at(10)).messages
    record = stage.queue.client.command("GET", f"{stage.queue.prefix}call:{caller.id}")
    assert len(record) < 300
    assert (c.content, d.content) == (b"c", b"d")
    caller.number -= 1

    assert [
        m.content for m in stage.queue.dequeue(2, caller=caller, now=stage.at(20)).messages
    ] == [b"c", b"d"]


def test_results_of_a_repeated_finish_are_stored_once(stage, redis):
    caller = Caller()
    for _ in range(2):
        caller.number = 0
        assert stage.queue.finish(stage.endings(), caller=caller, now=stage.at(10)).replies == [
            "ok",
            "ok",
            "stale",
        ]
    assert redis.lrange(stage.queue.result_key("a"), 0, -1) == [b"r"]


def test_result_of_a_later_run_takes_the_place_of_the_earlier_one(queue, redis, at, end):
    for number in (1, 2):
        queue.enqueue(b"v", mid="m", on_conflict="requeue", now=at(number))
        [held] = queue.dequeue(now=at(number)).messages
        assert end(queue, held, result=b"%d" % number, result_ttl=60, now=at(number)) == "ok"
    assert redis.lrange(queue.result_key("m"), 0, -1) == [b"2"]


def test_records_of_calls_expire_and_stay_one_per_caller(stage, redis):
    caller = Caller()
    for step in range(50):
        stage.queue.enqueue(b"v", mid="e", caller=caller, now=stage.at(10 + step))
    keys = [key for key in redis.keys("*") if caller.id.encode() in key]
    assert len(keys) == 1
    assert 0 < redis.pttl(keys[0]) <= 600_000


def test_verbs_without_numbers_are_harmless_to_repeat(stage, facts):
    queue, at = stage.queue, stage.at
    calls = [
        lambda: queue.extend(stage.holds(), now=at(10)),
        lambda: queue.progress("a", stage.held[0].token, "half"),
        lambda: queue.checkpoint("a", stage.held[0].token, "7"),
        queue.admin.pause,
        lambda: queue.admin.events_level("off"),
        lambda: queue.admin.collect(now=at(10)),
        lambda: queue.admin.purge(stage.dead_id),
        queue.admin.resume,
    ]
    for call in calls:
        call()
        after = facts()
        call()
        assert facts() == after
