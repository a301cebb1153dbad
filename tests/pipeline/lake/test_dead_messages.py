"""Dead messages get into the lake once each, with their contents, and stay away once they have expired."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobq.pipeline.lake import dead_messages, inspection, upkeep
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.pipeline.lake.conftest import DAY, rows


def test_dead_messages_are_kept_with_their_content_once(lake, valkey_client, valkey_queue):
    for name in ("a", "b"):
        valkey_queue.enqueue(name.encode(), mid=name)
    _bury(valkey_queue, 2)
    assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 2
    valkey_queue.enqueue(b"c", mid="c")
    _bury(valkey_queue, 1)
    assert dead_messages.keep_dead(lake, valkey_client, ["low", "empty"]) == 1
    assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 0
    found = {row["mid"]: (row["content"], row["reason"]) for row in rows(lake, "dead")}
    assert found == {"a": (b"a", "tried"), "b": (b"b", "tried"), "c": (b"c", "tried")}
    assert len(rows(lake, "dead")) == 3


def test_dead_that_expired_are_not_kept_again(lake, valkey_client, valkey_queue):
    valkey_queue.enqueue_many([b"a", b"b"])
    _bury(valkey_queue, 2)
    assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 2
    later = datetime.now(UTC) + timedelta(days=2)
    assert upkeep.expire(lake, 0, ["dead"], now=later)[0].rows == 2
    assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 0
    valkey_queue.enqueue(b"c")
    # A death on a day that has expired can only be an old one: the clock is two days behind.
    _bury(valkey_queue, 1)
    assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 0
    assert not [one for one in inspection.check(lake) if one.level == "fail"]


def test_places_of_the_dead_go_forward_when_the_newest_is_revived(lake, valkey_client):
    first, second = Queue("low", valkey_client), Queue("high", valkey_client)
    for number, mid in enumerate("ab"):
        first.enqueue(b"x", mid=mid, now=DAY)
        _bury(first, 1, DAY + 1000 * number)
    dead_messages.keep_dead(lake, valkey_client, ["low"])
    [newest] = [row["dead_id"] for row in rows(lake, "dead") if row["mid"] == "b"]
    assert first.admin.revive(newest) == ["revived"]
    second.enqueue(b"c")
    _bury(second, 1)
    assert dead_messages.keep_dead(lake, valkey_client, ["low", "high"]) == 1
    assert not [one for one in inspection.check(lake) if one.level == "fail"]


@pytest.mark.parametrize("score", [253_402_300_799_999, 1e17, float("inf")])
def test_dead_are_kept_when_one_before_them_claims_to_have_died_in_the_far_future(
    lake, valkey_client, valkey_queue, valkey_redis, score
):
    valkey_queue.enqueue_many([b"v"] * 5)
    _bury(valkey_queue, 2)
    valkey_redis.zadd("jobq:{low}:dead", {"m#1": score})
    assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 2
    _bury(valkey_queue, 3)
    assert dead_messages.keep_dead(lake, valkey_client, ["low"]) == 3


def _bury(queue: Queue, count: int, now: int | None = None) -> None:
    for message in queue.dequeue(count, now=now).messages:
        dead = Ending(mid=message.mid, token=message.token, outcome="dead", reason="tried")
        queue.finish([dead], now=now)
