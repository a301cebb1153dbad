"""`expires_in` and `retry_within`: late attempts don't start."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from jobq.errors import JobFailedError
from jobq.events import decode
from jobq.jobs import retry
from jobq.jobs.codec import encode
from jobq.jobs.context import Call
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.jobs.results import decode_result
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Message

HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def handed(content: bytes, attempt: int = 1) -> Message:
    return Message("mid-1", content, attempt, 0, 7, "first.token", "caller.1.0", 0)


def resolved(registry: Registry, content: bytes, attempt: int = 1) -> Call | Ending:
    return Executor(registry, worker="here").resolve("low", handed(content, attempt))


def test_expires_travels_as_a_moment_after_the_enqueue_or_the_delay(registry: Registry):
    send = job(name="send", registry=registry, expires_in="10m")(lambda to: None)
    at = now_ms() / 1000 + 9_000
    cases: tuple[tuple[Any, int], ...] = (({}, 600), ({"delay": "1h"}, 4_200), ({"at": at}, 9_600))
    options: Any
    for options, least_s in cases:
        for _ in range(2):  # encoding isn't shared by all calls
            before = now_ms()
            target: Any = send.options(**options)
            expires_at = target.per_message_options(now_ms()).expires_at
            assert abs(expires_at - before - least_s * 1000) < 60_000
    assert send.options(expires_in=None).per_message_options(1) is None
    changed = send.options(retries=1).per_message_options(1)
    assert changed is not None and (changed.retries, changed.expires_at) == (1, 600_001)


def test_a_message_that_expired_ends_without_a_run_and_is_not_dead(registry: Registry):
    job(name="send", registry=registry, result_ttl=60)(lambda: pytest.fail("it ran"))
    content = json.dumps({"job": "send", "options": {"expires_at": now_ms() - 1}}).encode()
    for attempt in (1, 2):
        ending = resolved(registry, content, attempt)
        assert isinstance(ending, Ending) and (ending.outcome, ending.reason) == ("expired", "")
        written = decode(f"expired\x1fmid-1\x1f1\x1f{ending.record}".encode())
        assert (written.job, written.attempt, written.error) == ("send", attempt, "expired")
        with pytest.raises(JobFailedError, match="send mid-1 expired at 20"):
            decode_result(ending.result or b"", "send", "mid-1")
    content = json.dumps({"job": "send", "options": {"expires_at": now_ms() + HOUR_MS}}).encode()
    assert isinstance(resolved(registry, content), Call)


def test_a_worker_drops_what_expired(queue: Queue):
    """The whole way: enqueued, handed out, ended; its mid is free, and its newer content runs."""
    queue.admin.events_level("attempts")
    queue.enqueue(b"old", mid="m")
    [first] = queue.dequeue().messages
    queue.enqueue(b"new", mid="m", on_conflict="requeue")
    expired = Ending(mid="m", token=first.token, outcome="expired")
    assert queue.finish([expired]).replies == ["ok"]
    [second] = queue.dequeue().messages
    assert (second.content, second.attempt) == (b"new", 1)
    queue.finish([Ending(mid="m", token=second.token, outcome="expired")])
    assert queue.status("m").word == "nil" and not queue.admin.dead()
    assert queue.finish([expired]).replies == ["stale"]
    assert [violation.rule for violation in queue.admin.fsck()] == []


def test_retry_for_ends_the_retries_where_the_next_would_begin_too_late(registry: Registry):
    def fail() -> None:
        raise ValueError("bad")

    policy = retry.fixed(600)
    target = job(name="fail", registry=registry, retry=policy, retry_within="1h")(fail)
    runner = Executor(registry, worker="here")
    for age_ms, outcome in ((0, "retry"), (2_900_000, "retry"), (3_100_000, "dead")):
        call = runner.resolve("low", handed(encode("fail", enqueued_at=now_ms() - age_ms), 99))
        assert isinstance(call, Call)
        ending = runner.run(call)
        assert ending.outcome == outcome
    assert "retry_within=3600 s is over" in ending.reason
    assert target.settings.nretries == 10_000
    assert target.options(retries=2).settings.rules.decide(3, ValueError("bad")).outcome == "dead"
    # When the producer's clock is unknown, no span can be measured.
    assert isinstance(resolved(registry, encode("fail"), 2), Call)


def test_after_a_crash_no_attempt_begins_beyond_retry_for(registry: Registry):
    job(name="send", registry=registry, retry_within="1h")(lambda: None)
    content = encode("send", enqueued_at=now_ms() - 2 * HOUR_MS)
    assert isinstance(resolved(registry, content), Call), "the first attempt may wait in a backlog"
    ending = resolved(registry, content, 2)
    assert isinstance(ending, Ending) and ending.outcome == "dead"
    assert ending.reason == "attempt 2 did not run: retry_within=3600 s is over"
    longer = {
        "job": "send",
        "enqueued_at": now_ms() - 2 * HOUR_MS,
        "options": {"retry_within": 9000},
    }
    assert isinstance(resolved(registry, json.dumps(longer).encode(), 2), Call)
