"""Keys inside a queue: lines, turns, limits, rates, holds, order."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from jobq.durations import Rate
from jobq.errors import ConfigError, KeyFullError
from jobq.events import attempt_record, decode
from jobq.queue.fsck import repair
from jobq.queue.queue import Queue
from jobq.queue.rules import QueueRules, Rule
from jobq.queue.types import Ending, Message

pytestmark = pytest.mark.one_server


def key_in(options: bytes | None) -> str:
    parts = (options or b"").decode().split(",", 3)
    return parts[3] if len(parts) > 3 else ""


@pytest.fixture
def key_of(queue: Queue, redis: Any) -> Callable[[Message], str]:
    return lambda message: key_in(redis.hget(f"{queue.prefix}options", message.mid))


def endings(messages: list[Message], **how: Any) -> list[Ending]:
    return [Ending(mid=one.mid, token=one.token, **how) for one in messages]


def sound(queue: Queue, redis: Any) -> None:
    """K1, K2: the facts of each key match its contents; and nothing else is wrong."""
    options = redis.hgetall(f"{queue.prefix}options")
    running = Counter(key_in(options.get(mid)) for mid in redis.hkeys(f"{queue.prefix}locks"))
    waiting = Counter(
        place.decode().partition(":")[2] for place in redis.hkeys(f"{queue.prefix}lines")
    )
    states = {
        key.decode(): struct.unpack("<dddddddB", state)
        for key, state in redis.hgetall(f"{queue.prefix}keys").items()
    }
    for key in {*states, *running, *waiting} - {""}:
        assert states[key][2:4] == (waiting[key], running[key]), key
    assert queue.admin.fsck() == []


def test_limits_of_keys_do_not_bind_messages_without_a_key(queue, at):
    queue.rules(key_max=1, key_rate="2/m")
    queue.enqueue_many([b"v"] * 10, now=at(0))
    assert len(queue.dequeue(5, now=at(1)).messages) == 5
    assert len(queue.dequeue(5, now=at(1)).messages) == 5


def test_one_of_another_key_passes_a_backlog(queue, key_of, at):
    queue.enqueue_many([b"x"] * 500, key="A", now=at(0))
    queue.enqueue(b"x", key="B", now=at(0))
    queue.enqueue(b"x", now=at(0))

    handed = [queue.dequeue(now=at(1)).messages[0] for _ in range(5)]

    assert {key_of(one) for one in handed} == {"A", "B", ""}


def test_weights_hold_for_any_batch_with_and_without_limits(queue, key_of, at):
    for batch, most in ((1, None), (16, None), (16, 4)):
        queue.admin.clear()
        queue.rule("A", weight=3, max=most)
        queue.rule("B", weight=1, max=most)
        queue.enqueue_many([(None, b"x", "AB"[i % 2]) for i in range(1_000)], now=at(0))
        seen: Counter[str] = Counter()
        while sum(seen.values()) < 400:
            messages = queue.dequeue(batch, now=at(1)).messages
            seen.update(map(key_of, messages))
            queue.finish(endings(messages), now=at(1))
        assert 2.7 <= seen["A"] / seen["B"] <= 3.3, (batch, most, seen)


def test_every_key_comes_within_a_lap_a_crashed_message_too(queue, key_of, at):
    """K8: even while others, and messages without a key, arrive all the time."""
    names = [f"k{i}" for i in range(12)]
    queue.enqueue_many([(f"first {name}", b"x", name) for name in names], now=at(0))
    for one in queue.dequeue(20, now=at(0)).messages[::3]:
        queue.finish(endings([one], outcome="crashed"), now=at(0))
    queue.release([(m.mid, m.token) for m in queue.dequeue(20, now=at(0)).messages], now=at(0))
    for batch in (1, 5):
        for name in names:
            queue.enqueue(b"x", mid=f"{name} {batch}", key=name, now=at(1))
        came: set[str] = set()
        for _ in range(40):
            queue.enqueue_many([b"x"] * batch + [(None, b"x", "flood")] * batch, now=at(2))
            messages = queue.dequeue(batch, now=at(2), crash_limit=0).messages
            came |= {key_of(one) for one in messages}
            queue.finish(endings(messages), now=at(2))
        assert came >= {*names, "flood", ""}, batch


def test_a_limit_of_a_key_and_of_the_queue_count_what_runs(queue, key_of, at, redis):
    queue.rules(key_max=2, max=5)
    queue.enqueue_many([(None, b"x", "ABCD"[i % 4]) for i in range(40)], now=at(0))
    held = [one for _ in range(9) for one in queue.dequeue(8, lease=1, now=at(0)).messages]

    assert len(held) == 5
    assert max(Counter(map(key_of, held)).values()) == 2
    assert queue.finish(endings(held[:1]), dequeue=8, now=at(1)).dequeued.messages
    sound(queue, redis)
    again = queue.dequeue(8, now=at(2_000)).messages  # leases have ended
    assert again
    sound(queue, redis)


def test_no_span_of_a_rate_holds_more_than_it_allows(queue, at):
    for rate in ("7/s", "40/s", "100/s"):
        queue.admin.clear()
        queue.rule("A", rate=rate)
        queue.enqueue_many([b"x"] * 500, key="A", now=at(0))
        times = []
        for now in range(0, 3_000, 3):
            dequeued = queue.dequeue(5, now=at(now), lease=1_000)
            times += [now] * len(dequeued.messages)
            queue.finish(endings(dequeued.messages), now=at(now))
            queue.scripts["resume"].run()  # ends the rest: callers come whenever they like
        most = int(rate.removesuffix("/s"))
        worst = max(sum(start <= one < start + 1_000 for one in times) for start in times)
        assert worst <= most
        assert len(times) >= 2.5 * most


def test_a_hold_gives_back_without_an_attempt_and_nothing_of_the_key_comes(queue, key_of, at):
    queue.enqueue_many([("a1", b"x", "A"), ("a2", b"x", "A"), ("b", b"x", "B")], now=at(0))
    first = queue.dequeue(now=at(0)).messages
    queue.finish(endings(first, outcome="hold", backoff=30), now=at(0))

    assert [one.mid for one in queue.dequeue(9, now=at(29_000)).messages] == ["b"]
    row = next(row for row in queue.admin.keys(now=at(29_000)).rows if row.key == "A")
    assert (row.waiting, row.held_until, row.oldest) == (2, at(30_000), "a1")
    later = queue.dequeue(9, now=at(30_000)).messages
    assert [(one.mid, one.attempt) for one in later] == [("a1", 1), ("a2", 1)]


def test_a_hold_from_outside_ends_when_told(queue, at):
    queue.enqueue(b"x", key="A", now=at(0))
    assert queue.hold("A", "1h", now=at(0)) == at(3_600_000)
    assert not queue.dequeue(now=at(1)).messages
    assert queue.hold("A", 0, now=at(2)) == 0
    assert queue.dequeue(now=at(3)).messages


def test_an_ordered_key_keeps_its_order_whatever_ends_an_attempt(queue, at):
    queue.enqueue_many([(f"m{i}", b"x") for i in range(4)], key="A", ordered=True, now=at(0))
    now, started = 0, []
    for outcome in ("retry", "crashed", "release", "snooze", "done", "done", "done", "done"):
        now += 20_000
        messages = queue.dequeue(9, now=at(now)).messages
        started += [one.mid for one in messages]
        queue.finish(
            endings(messages, outcome=outcome, backoff=10 if outcome != "done" else None),
            now=at(now),
        )
        assert outcome not in ("retry", "snooze") or not queue.dequeue(now=at(now + 1)).messages
    assert started == ["m0"] * 5 + ["m1", "m2", "m3"]


def test_a_full_line_refuses_the_whole_call(queue, at):
    queue.rules(key_waiting=3)
    queue.enqueue_many([("m1", b"x", "A"), ("m2", b"x", "A")], now=at(0))

    with pytest.raises(
        KeyFullError, match="key A has 3 waiting messages, the maximum; nothing was"
    ):
        queue.enqueue_many([("b", b"x", "B"), ("m3", b"x", "A"), ("m4", b"x", "A")], now=at(0))

    assert queue.admin.counts().messages == 2
    assert queue.enqueue(b"x", mid="m1", key="A", now=at(0)).action == "exists"
    assert queue.enqueue(b"x", mid="m3", key="A", now=at(0)).action == "added"


def test_a_key_stays_with_its_message(queue, redis, at):
    """Through an update, newer content under another key, death and revival."""
    options = f"{queue.prefix}options"
    queue.enqueue(b"x", mid="m", key="a,b:1", lease=60, now=at(0))
    queue.enqueue(b"y", mid="m", on_conflict="replace", lease=70, now=at(0))
    assert redis.hget(options, "m") == b"70000,,0,a,b:1"
    held = queue.dequeue(now=at(1)).messages
    queue.enqueue(b"z", mid="m", on_conflict="requeue", key="other", now=at(1))
    queue.finish(endings(held, outcome="dead", reason="why"), now=at(2))
    assert key_in(redis.hget(options, "m")) == "other"
    assert [one.content for one in queue.dequeue(now=at(3)).messages] == [b"z"]
    sound(queue, redis)
    queue.admin.clear()
    queue.admin.revive(queue.admin.dead()[0].dead_id)
    assert key_in(redis.hget(options, "m")) == "a,b:1"
    sound(queue, redis)


def test_rules_tell_what_holds_and_refuse_what_they_can_not_be(queue):
    assert queue.rules() == QueueRules()
    queue.rules(max=200, key_max=5, key_rate="100/m", key_waiting=10_000)
    assert queue.rules(key_max=None) == QueueRules(200, None, Rate(100, 60_000), None, 10_000)
    assert queue.rule("acme", max=20, weight=3) == Rule(20, None, 3, None)
    for wrong, text in (
        ({"rate": "100"}, "rate='100' is not a rate; write '100/m', '5/s' or '1000/h'"),
        ({"weight": 0}, "weight=0 is invalid; use a whole number from 1 to 1,000"),
        ({"max": True}, "max=True is invalid"),
    ):
        with pytest.raises(ConfigError, match=text):
            queue.rule("acme", **wrong)
    with pytest.raises(ConfigError, match="key='' can't be used; use 1-128 printable characters"):
        queue.enqueue(b"x", key="")


def test_why_tells_what_a_message_waits_for(queue, at):
    queue.rules(key_max=1, key_rate="60/m")
    queue.enqueue_many([("a1", b"x"), ("a2", b"x"), ("a3", b"x")], key="A", now=at(0))
    queue.dequeue(9, now=at(0))

    facts = queue.why("a3", now=at(1))

    assert (facts.status, facts.key, facts.place, facts.waiting, facts.running) == (
        "queued",
        "A",
        2,
        2,
        1,
    )
    assert (facts.max, facts.rate, facts.queue_running) == (1, Rate(60, 60_000), 1)
    assert [mid for mid, _ in facts.holders] == ["a1"]


def test_virtual_time_begins_anew_before_it_ends(queue, redis, key_of, at):
    queue.enqueue_many([(None, b"x", "ABC"[i % 3]) for i in range(30)], now=at(0))
    queue.dequeue(3, now=at(0))
    redis.hset(f"{queue.prefix}meta", "turn", 4_000_000_000_000_001)

    handed = [queue.dequeue(1, now=at(1)).messages[0] for _ in range(12)]

    assert set(Counter(map(key_of, handed)).values()) <= {3, 4, 5}
    assert int(redis.hget(f"{queue.prefix}meta", "turn")) < 1e9
    sound(queue, redis)


def some_act(
    queue: Queue, dice: random.Random, held: list[Message], mids: list[str], now: int
) -> None:
    """Make one call of a producer, a worker or a person."""
    act = dice.random()
    if act < 0.3:
        rows = [(None, b"c", dice.choice("ABCD")) for _ in range(dice.randint(1, 5))]
        more = dice.choice(({}, {}, {"delay": 0.01}, {"ordered": True}))
        mids += [one.mid for one in queue.enqueue_many(rows, now=now, **more)]
    elif act < 0.55:
        lease = dice.choice((0.005, 60))
        held += queue.dequeue(dice.randint(1, 6), lease=lease, now=now).messages
    elif act < 0.8:
        outcome = dice.choice(("done", "retry", "dead", "crashed", "snooze", "release", "hold"))
        how = {"outcome": outcome, "backoff": dice.choice((0, 0.005)), "reason": "r"}
        queue.finish(endings(held[::2], **how), now=now)
        del held[::2]
    elif act < 0.85:
        queue.cancel(*dice.sample(mids, min(3, len(mids))), now=now)
    elif act < 0.9:
        queue.hold(dice.choice("AB"), dice.choice((0, 0.01)), now=now)
    elif mids:
        row = (dice.choice(mids), b"z", dice.choice(("A", "Z", None)))
        queue.enqueue_many(
            [row], on_conflict=dice.choice(("replace", "requeue")), until="start", now=now
        )


@pytest.mark.parametrize("rules", [{}, {"key_max": 2, "max": 5}, {"key_rate": "50/s"}], ids=str)
def test_nothing_is_wrong_or_left_whatever_happens(queue, redis, at, rules):
    dice, now = random.Random(str(rules)), 0
    queue.rules(**rules)
    held: list[Message] = []
    mids: list[str] = []
    for step in range(250):
        now += dice.choice((0, 1, 5))
        some_act(queue, dice, held, mids, at(now))
        if step % 5 == 0:
            sound(queue, redis)
    queue.finish(endings(held), now=at(now))
    while queue.admin.counts().messages:
        now += 200
        queue.finish(endings(queue.dequeue(50, now=at(now)).messages), now=at(now))
        queue.admin.collect(now=at(now))
        assert now < 10_000_000
    for _ in range(4):
        now += 100_000
        queue.admin.collect(now=at(now))
    for name in ("keys", "lines", "turns", "rests", "options", "locks"):
        assert not redis.exists(f"{queue.prefix}{name}"), name


def test_repair_makes_lines_and_states_anew(queue, redis, at):
    queue.enqueue_many([(f"m{i}", b"x", "AB"[i % 2]) for i in range(6)], now=at(0))
    queue.dequeue(2, now=at(0), lease=3_600)
    redis.hset(f"{queue.prefix}keys", "A", b"x" * 57)
    redis.hset(f"{queue.prefix}lines", "99:A", "m4")
    redis.delete(f"{queue.prefix}turns")
    list(repair(queue, queue.admin.fsck()))
    sound(queue, redis)
    assert len(queue.dequeue(9, now=at(1)).messages) == 4


def test_events_of_attempts_and_enqueues_have_the_key(queue: Queue, redis: Any, at: Any):
    queue.admin.events_level("all")
    rows = [
        ("done", b"v", "acme"),
        ("retry", b"v", "b"),
        ("lost", b"v", "c"),
        ("plain", b"v", None),
    ]
    queue.enqueue_many(rows, now=at(0))
    held = {one.mid: one for one in queue.dequeue(4, lease=1, now=at(0)).messages}
    record = attempt_record("job", 1, 0, 5, 5, 5, "w")
    full = attempt_record("job", 1, 7, 5, 5, 5, "w", "Error", "f", 3, "0" * 32)
    ends = [("done", "done", record), ("plain", "done", record), ("retry", "retry", full)]
    queue.finish(
        [
            Ending(mid=mid, token=held[mid].token, outcome=how, record=text)
            for mid, how, text in ends
        ],
        now=at(1),
    )
    queue.admin.collect(now=at(5_000))
    entries = redis.xrange(f"{queue.prefix}events")
    found = [decode(value, name) for _, fields in entries for name, value in fields.items()]

    assert [(one.kind, one.mid, one.key) for one in found] == [
        ("enqueued", "done", "acme"), ("enqueued", "retry", "b"), ("enqueued", "lost", "c"), ("enqueued", "plain", ""),
        ("done", "done", "acme"), ("done", "plain", ""), ("retry", "retry", "b"), ("recovered", "lost", "c"),
    ]  # fmt: skip
    assert (found[6].trace_id, found[6].error, found[4].worker) == ("0" * 32, "Error", "w")
