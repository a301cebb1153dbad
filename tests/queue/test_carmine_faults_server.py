"""Carmine's faults of clocks, memory and key names."""

from __future__ import annotations

import pytest
from freezegun import freeze_time
from redis.crc import key_slot

from jobq.errors import ConfigError, ServerFullError
from jobq.queue.queue import Queue
from jobq.queue.types import Ending


@pytest.mark.parametrize("moment", ["1999-01-01", "2099-01-01"])
def test_b15_clock_of_the_client_counts_for_nothing(queue, redis, moment):
    """All times came from client clocks: a worker two seconds ahead stole a live lock."""
    queue.enqueue(b"v", mid="m")
    [a] = queue.dequeue(lease=3600).messages
    server_ms = 1_000 * redis.time()[0]
    assert server_ms - 600_000 < a.lock_at - 3_600_000 < server_ms + 1_000

    with freeze_time(moment, tick=True):
        queue.enqueue(b"w", mid="later", delay=3_600)
        queue.admin.collect()
        assert queue.dequeue().messages == []
        assert queue.status("m").word == "locked"
        assert queue.status("later").word == "queued-with-backoff"
        assert queue.extend([("m", a.token)], 3_600) == [True]
        status = queue.status("m")

    assert server_ms - 600_000 < status.lock_at - 3_600_000 < server_ms + 600_000


def test_b19_full_memory_refuses_enqueue_whole_and_nothing_else(queue, redis, at, facts):
    """With memory full acks were half applied, dequeue was dead, enqueue went over."""
    queue.enqueue_many([("a", b"1"), ("b", b"2")], now=at(0))
    [a] = queue.dequeue(now=at(0)).messages
    redis.config_set("maxmemory", 1)
    try:
        before = facts()
        with pytest.raises(ServerFullError):
            queue.enqueue(b"v", mid="c", now=at(1))
        assert facts() == before
        replies, handed = queue.finish([Ending(mid="a", token=a.token)], dequeue=1, now=at(2))
        assert replies == ["ok"]
        assert [m.mid for m in handed.messages] == ["b"]
        assert queue.dequeue(now=at(3)).messages == []
    finally:
        redis.config_set("maxmemory", 0)
    assert queue.enqueue(b"v", mid="c", now=at(4)).action == "added"


def test_b24_keys_of_a_queue_share_one_slot(client, redis, at, end):
    """No hash tags: CROSSSLOT on a cluster; names were found by scanning, and could be patterns."""
    names = ["low", "a*", "[ab]", "a?"]
    for name in names:
        queue = Queue(name, client)
        queue.enqueue(name.encode(), mid="m", now=at(0))
        queue.enqueue(b"", mid="n", delay=60, now=at(0))
    for name in names:
        queue = Queue(name, client)
        [message] = queue.dequeue(now=at(1)).messages
        assert message.content == name.encode()
        end(queue, message, now=at(2), result=b"r", result_ttl=1)

    keys = {key for key in redis.keys("*") if b"{" in key}
    slots = {
        name: {key_slot(key) for key in keys if f"{{{name}}}".encode() in key} for name in names
    }
    assert all(len(found) == 1 for found in slots.values())
    assert len(set.union(*slots.values())) == len(names)


@pytest.mark.parametrize("name", ["", "a b", "a{b", "a}b", "{}", "a\n", "x" * 129])
def test_b24_name_that_would_break_the_tag_is_refused(client, name):
    """A brace in a queue's name would move the hash tag."""
    with pytest.raises(ConfigError, match="queue"):
        Queue(name, client)
