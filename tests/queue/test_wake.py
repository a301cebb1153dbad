"""Blocked children and the wake marker: none is lost, and a burst wakes as many as it needs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

NCHILDREN = 12
DEADLINE_S = 60


@pytest.fixture
def blocked(redis):
    """blocked(n): wait until n clients block."""

    def wait(n: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while redis.info("clients")["blocked_clients"] != n:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    return wait


@pytest.fixture
def children():
    with ThreadPoolExecutor(NCHILDREN) as pool:
        yield pool


def take_one(queue, redis, timeout_s=DEADLINE_S):
    """Wait like a child: ask, and when there is nothing wait on the marker; longer than any rest."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        got = queue.dequeue(lease=60)
        if got.messages:
            return got.messages[0].mid
        if got.poll_after_ms:
            redis.blpop(queue.wake_key, timeout_s)
    return None


def test_enqueue_ends_a_blocking_wait(queue, redis, children, blocked):
    waiting = children.submit(redis.blpop, queue.wake_key, DEADLINE_S)
    blocked(1)
    queue.enqueue(b"v")
    assert waiting.result() == (queue.wake_key.encode(), b"1")


@pytest.mark.parametrize("at_once", [True, False])
def test_burst_wakes_as_many_children_as_it_needs(queue, redis, children, blocked, at_once):
    taken = [children.submit(take_one, queue, redis) for _ in range(NCHILDREN)]
    blocked(NCHILDREN)

    mids = [f"m{i}" for i in range(NCHILDREN)]
    if at_once:
        queue.enqueue_many([(mid, b"") for mid in mids])
    else:
        for mid in mids:
            queue.enqueue(b"", mid=mid)

    assert sorted(child.result() for child in taken) == sorted(mids)


def test_promotion_by_one_child_wakes_the_others(queue, redis, children, blocked):
    queue.enqueue_many([(f"m{i}", b"") for i in range(3)], delay=3_600)
    redis.delete(queue.wake_key)
    taken = [children.submit(take_one, queue, redis) for _ in range(3)]
    blocked(3)
    queue.admin.collect(now=1_000 * redis.time()[0] + 3_700_000)
    assert sorted(child.result() for child in taken) == ["m0", "m1", "m2"]


def test_no_wake_up_is_lost_between_asking_and_blocking(queue, redis, children):
    """A lost one leaves a child in a wait much longer than the test's deadline."""
    n = 150

    def work() -> list[str]:
        return [mid for _ in range(n) if (mid := take_one(queue, redis))]

    workers = [children.submit(work) for _ in range(2)]
    for i in range(2 * n):
        queue.enqueue(b"", mid=f"m{i}")
        deadline = time.monotonic() + DEADLINE_S / 2
        while queue.admin.counts().ready and i % 3:
            assert time.monotonic() < deadline, "a message waits beside sleeping children"

    handled = workers[0].result() + workers[1].result()
    assert sorted(handled) == sorted(f"m{i}" for i in range(2 * n))
