"""Markers pushed by one queue's producers don't affect other queues, and don't delay their markers."""

from __future__ import annotations

import pytest

from jobq.queue.queue import Queue
from tests.lifecycle.conftest import until


@pytest.mark.parametrize("strict", [(), ("--strict",)])
def test_queue_is_woken_when_others_have_markers_without_end(
    strict, client, redis, start, send, ledger
):
    bad, worse, good = (Queue(name, client) for name in ("bad", "worse", "low"))
    worker = start("--processes", "1", "--lease", "100s", *strict, queues="bad,worse,low")
    send("quick", "first", to=bad)
    until(lambda: ledger.lines("end"))
    for _ in range(10):
        for each in (bad, worse):
            redis.lpush(each.wake_key, *["1"] * 10_000)
    send("quick", "a", to=good)
    until(lambda: len(ledger.lines("end")) == 2 or not redis.exists(bad.wake_key))
    assert redis.llen(bad.wake_key) > 10_000
    redis.delete(bad.wake_key, worse.wake_key)
    assert worker.stop() == 0
