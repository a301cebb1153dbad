"""Dead messages are kept up to a number and an age; the oldest go first, a few in each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobq.errors import ConfigError
from jobq.events import decode
from jobq.queue.queue import Queue
from jobq.queue.types import DeadLimits

DAY_MS = 86_400_000


@pytest.fixture
def die(queue: Queue, end: Callable[..., str]) -> Callable[..., None]:
    """die(now, mid, …): each of them dies then."""

    def all_of(now: int, *mids: str) -> None:
        for mid in mids:
            queue.enqueue(b"v", mid=mid, now=now)
            [held] = queue.dequeue(now=now).messages
            assert end(queue, held, "dead", now, reason="why") == "ok"

    return all_of


@pytest.fixture
def dead(queue: Queue) -> Callable[[], list[str]]:
    """dead(): the mids of the dead, oldest first."""
    return lambda: [message.mid for message in queue.admin.dead()][::-1]


def evicted(queue: Queue, redis: Any) -> list[tuple[str, str]]:
    found = [decode(record[b"1"]) for _, record in redis.xrange(queue.prefix + "events")]
    return [(event.mid, event.error) for event in found if event.kind == "evicted"]


def test_limits_are_10_000_and_180_days_unless_set(queue: Queue):
    assert queue.admin.retention() == DeadLimits(10_000, 15_552_000, 0)
    assert queue.admin.retention(most=7) == DeadLimits(7, 15_552_000, 0)
    assert queue.admin.retention(age="30d") == DeadLimits(7, 2_592_000, 0)
    assert queue.admin.retention() == DeadLimits(7, 2_592_000, 0)
    for wrong in ({"most": 0}, {"most": 10**10}, {"age": 0}, {"age": -1}):
        with pytest.raises(ConfigError, match="out of range"):
            queue.admin.retention(**wrong)  # type: ignore[arg-type]


def test_the_oldest_make_room_for_what_dies(queue: Queue, at: Any, die: Any, dead: Any, redis: Any):
    queue.admin.retention(most=2)
    for number, mid in enumerate("abcd"):
        die(at(number), mid)
        assert len(dead()) == min(2, number + 1)
    assert dead() == ["c", "d"]
    assert evicted(queue, redis) == [("a", "count"), ("b", "count")]
    assert queue.admin.retention().evicted == 2
    assert queue.status("a").word == "nil" and queue.status("c").word == "dead"
    assert queue.admin.fsck() == []


def test_a_set_that_is_too_large_shrinks_with_each_death_and_upkeep(
    queue: Queue, at: Any, die: Any, dead: Any
):
    die(at(0), *"abcdefgh")
    queue.admin.retention(most=3)
    die(at(1), "i")
    assert dead() == list("cdefghi"), "two go for one that comes"
    left = queue.admin.upkeep(2, now=at(2))
    assert (dead(), left.surplus) == (list("efghi"), 1)
    assert queue.admin.upkeep(100, now=at(2)).surplus == 0
    assert dead() == list("ghi")
    assert queue.admin.upkeep(100, now=at(2)).surplus == 0
    assert dead() == list("ghi")


def test_upkeep_deletes_what_is_too_old(queue: Queue, at: Any, die: Any, dead: Any, redis: Any):
    die(at(0), "a", "b")
    die(at(DAY_MS), "c")
    queue.admin.retention(age="10d")
    queue.admin.collect(now=at(10 * DAY_MS - 1))
    assert dead() == ["a", "b", "c"]
    queue.admin.collect(now=at(10 * DAY_MS))
    assert dead() == ["c"]
    assert evicted(queue, redis) == [("a", "age"), ("b", "age")]


def test_the_newest_dead_of_a_mid_stays_known(queue: Queue, at: Any, die: Any, dead: Any):
    queue.admin.retention(most=2)
    die(at(0), "a")
    die(at(1), "a")
    die(at(2), "b")
    assert dead() == ["a", "b"]
    [kept] = queue.admin.dead(mid="a")
    assert queue.admin.revive(kept.dead_id) == ["revived"]


def test_what_strangers_wrote_as_limits_is_not_obeyed(
    queue: Queue, at: Any, die: Any, dead: Any, redis: Any
):
    for rubbish in (b"-1", b"nan", b"many", b"\xff"):
        redis.hset(queue.prefix + "meta", mapping={"dead_max": rubbish, "dead_age_ms": rubbish})
        die(at(0), "a")
        assert "a" in dead()
        assert queue.admin.retention().age_s
