"""A server at its memory limit: enqueue and revive are rejected as one, and all draining verbs continue."""

from __future__ import annotations

import pytest

from jobq.errors import ServerFullError
from jobq.queue.types import Ending


@pytest.fixture
def full(queue, redis, at):
    """Held a-f, ready g and h, a dead one, and not a byte to spare."""
    queue.enqueue(b"v", mid="dead", now=at(0))
    [dead] = queue.dequeue(now=at(0)).messages
    queue.finish([Ending(mid="dead", token=dead.token, outcome="dead")], now=at(0))
    queue.enqueue_many([(mid, b"v" * 100) for mid in "abcdefgh"], now=at(0))
    held = {m.mid: m for m in queue.dequeue(6, lease=1, now=at(0)).messages}
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", 1)
    yield held
    redis.config_set("maxmemory", 0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mid": "g", "on_conflict": "replace"},
        {"mid": "a", "on_conflict": "requeue"},
        {"mid": "later", "delay": 60},
        {"mid": "own", "lease": 0.009, "until": 9},
    ],
    ids=["new", "update", "requeue", "delayed", "options"],
)
def test_enqueue_is_refused_whole_when_memory_is_full(queue, full, at, facts, options):
    before = facts()
    with pytest.raises(ServerFullError):
        queue.enqueue(b"v", **options, now=at(1))
    assert facts() == before


def test_enqueue_of_many_is_refused_whole_when_memory_is_full(queue, full, at, facts):
    before = facts()
    with pytest.raises(ServerFullError):
        queue.enqueue_many([b"v"] * 1_000, now=at(1))
    assert facts() == before


def test_revive_is_refused_whole_when_memory_is_full(queue, redis, full, at, facts):
    before = facts()
    with pytest.raises(ServerFullError):
        queue.admin.revive(queue.admin.dead()[0].dead_id, now=at(1))
    assert facts() == before


def test_everything_that_drains_goes_on_when_memory_is_full(queue, full, at):
    def ending(mid, outcome):
        return Ending(mid=mid, token=full[mid].token, outcome=outcome, backoff=0.1)

    assert queue.extend([("e", full["e"].token)], 1, now=at(1)) == [True]
    assert queue.progress("e", full["e"].token, "half")
    endings = [ending("a", "done"), ending("b", "retry"), ending("c", "crashed")]
    replies, handed = queue.finish(endings, dequeue=1, now=at(2))
    assert replies == ["ok", "ok", "ok"]
    assert [m.mid for m in handed.messages] == ["c"]
    assert queue.release([("d", full["d"].token)], now=at(3)) == [True]
    assert queue.cancel("f", "g", now=at(4)) == ["cancelled", "cancelled"]
    queue.admin.pause()
    assert queue.dequeue(now=at(5)).paused
    queue.admin.resume()
    assert queue.admin.events_level("attempts") == "attempts"
    assert [m.mid for m in queue.dequeue(3, now=at(6)).messages] == ["d", "h"]
    queue.admin.collect(now=at(200))
    assert [m.mid for m in queue.dequeue(3, now=at(201)).messages] == ["b"]
    assert [m.mid for m in queue.dequeue(3, now=at(1_200)).messages] == ["e"]
    assert queue.admin.counts().locked == 5
    assert queue.end_session("somebody") == []
    assert queue.admin.fsck() == []
    assert queue.admin.purge(queue.admin.dead()[0].dead_id) == 1
    assert queue.admin.clear(now=at(1_300)) >= 5


def test_scripts_are_loaded_anew_when_memory_is_full(queue, redis, full, at):
    redis.script_flush()
    redis.config_set("maxmemory", 1)
    ending = Ending(mid="a", token=full["a"].token)
    assert queue.finish([ending], now=at(1)).replies == ["ok"]
    with pytest.raises(ServerFullError):
        queue.enqueue(b"v", now=at(2))


def test_refused_call_takes_effect_once_there_is_room(queue, redis, full, at):
    from jobq.client.numbered_calls import Caller

    caller = Caller()
    with pytest.raises(ServerFullError):
        queue.enqueue(b"v", mid="new", caller=caller, now=at(1))
    redis.config_set("maxmemory", 0)
    caller.number -= 1
    assert queue.enqueue(b"v", mid="new", caller=caller, now=at(2)).action == "added"


def test_queue_drains_after_the_limit_was_met(queue, redis, full, at, end, leftovers):
    with pytest.raises(ServerFullError):
        queue.enqueue(b"v", mid="new", now=at(1))
    redis.config_set("maxmemory", 0)
    queue.enqueue(b"v", mid="new", now=at(2))
    queue.admin.purge(queue.admin.dead()[0].dead_id)

    done, now = [], at(2_000)
    while queue.admin.counts().messages:
        now += 100
        for message in queue.dequeue(10, now=now).messages:
            end(queue, message, now=now)
            done.append(message.mid)
        queue.admin.collect(now=now)

    assert sorted(done) == [*"abcdefgh", "new"]
    assert leftovers() == set()
