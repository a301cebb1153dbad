"""T11: huge, deep and endless: inputs are bounded, and reads are paged."""

from __future__ import annotations

import json
import time

import pytest

from jobq.cli import main
from jobq.config import HARD_MAX_CONTENT
from jobq.errors import CodecError, ConfigError, JobqError, ScriptError
from jobq.jobs.codec import HARD_LIMIT, LIMIT, MAX_DEPTH, MAX_NAME, decode, encode
from jobq.queue.queue import Queue

BOMBS = {
    "deep lists": b'{"job":"x","args":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"job":"x","kwargs":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
    "deep and unclosed": b"[" * 500_000,
    "a bit too deep": b'{"job":"x","args":'
    + b"[" * (MAX_DEPTH + 3)
    + b"]" * (MAX_DEPTH + 3)
    + b"}",
    "huge number": b'{"job":"x","args":[' + b"9" * 100_000 + b'],"v":1}',
    "huge exponent": b'{"job":"x","enqueued_at":1e999999999}',
    "huge version": b'{"job":"x","v":' + b"9" * 5000 + b"}",
    "long name": b'{"job":"' + b"x" * (MAX_NAME + 1) + b'"}',
    "too long": b'{"job":"x","args":["' + b"a" * HARD_LIMIT + b'"]}',
    "many keys": b'{"job":"x","kwargs":{'
    + b",".join(b'"k%d":1' % n for n in range(50_000))
    + b"}}",
    "same key": b'{"job":"x",' + b'"args":[],' * 50_000 + b'"v":1}',
    "retries": b'{"job":"x","options":{"retries":99999999}}',
    "no time": b'{"job":"x","options":{"timeout":1e308}}',
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bomb_is_refused_or_read_quickly(bomb, attempt):
    began = time.thread_time()
    try:
        decode(BOMBS[bomb])
    except JobqError as error:
        told = str(error)
    else:
        told = ""
    assert len(told) < 1000
    ended = attempt(BOMBS[bomb])
    assert ended.outcome in ("dead", "unknown")
    assert len(ended.reason) < 1000 and len(ended.record) < 1000
    assert time.thread_time() - began < 10


def test_call_over_the_limit_never_leaves_the_producer():
    with pytest.raises(CodecError, match="Store the data elsewhere"):
        encode("x", ("a" * LIMIT,))
    with pytest.raises(CodecError):
        encode("x", ("a" * HARD_LIMIT,), limit=2**40)


def test_queue_refuses_what_is_too_long_whole(queue, redis):
    with pytest.raises(JobqError):
        queue.enqueue_many([("a", b"{}"), ("b", b"x" * (HARD_MAX_CONTENT + 1))])
    for mid in ("m" * 129, "", "a\nb", "a\x1fb"):
        with pytest.raises(ConfigError):
            queue.enqueue(b"{}", mid=mid)
    assert redis.hlen("jobq:{low}:messages") == 0
    for name in ("", "q" * 129, "a{b", "a b", "a\x1b"):
        with pytest.raises(ConfigError):
            Queue(name, queue.client)


def test_script_refuses_what_a_client_let_through(queue, redis, monkeypatch):
    monkeypatch.setattr("jobq.queue.queue.HARD_MAX_CONTENT", 64 * HARD_MAX_CONTENT)
    for size in (HARD_MAX_CONTENT + 1, 16 * HARD_MAX_CONTENT):
        with pytest.raises(JobqError, match="a content must be 1 MiB at most"):
            queue.enqueue_many([b"{}", b"x" * size])
    assert redis.hlen("jobq:{low}:messages") == 0


def test_page_is_bounded_whatever_is_asked_for(queue, capsys):
    queue.enqueue_many((f"m{n}", b"{}") for n in range(1500))
    for page in (queue.admin.content, lambda *at: queue.admin.dead(*at[1:])):
        for offset, limit in ((0, 10**9), (0, 1001), (0, 0), (0, -1), (-1, 10), (2**60, 10)):
            with pytest.raises(ConfigError, match="between 1 and 1,000"):
                page("ready", offset, limit)
    assert len(queue.admin.content("ready", limit=1000).entries) == 1000
    assert queue.admin.content("ready", offset=10**12).entries == []
    assert (
        main(
            [
                "queue",
                "peek",
                "--url",
                queue.client.url,
                "low",
                "--limit",
                "5",
                "--json",
            ]
        )
        == 0
    )
    assert len([json.loads(line) for line in capsys.readouterr().out.splitlines()]) == 5


def test_one_mid_enqueued_again_and_again_stays_one_message(queue, redis):
    for _ in range(5):
        queue.enqueue_many(("same", b"{}") for _ in range(500))
    counts = queue.admin.counts()
    assert (counts.messages, counts.ready) == (1, 1)
    assert redis.llen("jobq:{low}:wake") <= 1
    queue.admin.events_level("off")
    assert queue.admin.fsck() == []


def test_dequeue_hands_out_no_more_than_its_bound(queue, monkeypatch):
    queue.enqueue_many((f"m{n}", b"{}") for n in range(1500))
    with pytest.raises(ConfigError, match="between 1 and 1000"):
        queue.dequeue(1001)
    monkeypatch.setattr("jobq.queue.queue.MAX_COUNT", 10**9)
    with pytest.raises(ScriptError, match="limit must be a whole number from 1 to 1000"):
        queue.dequeue(10**6)
